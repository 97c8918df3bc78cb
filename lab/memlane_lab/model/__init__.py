"""The model: predicts configurations that were never measured, from a short calibration, by regression.

- A **configuration** is the subject of a prediction: path, pairs of guests, message size, load.
- An **observation** is a configuration with the figures of one sample of the lab (`observations.py`).
- A **surface** is one figure over all configurations: a quadratic, and a Gaussian process over its residuals
  (`surface.py`, `process.py`); with it come the bounds of a prediction.
- A **model** is a calibration's observations in one JSON file, and the surfaces that follow (`fitted.py`); `predict.py`
  makes a **prediction** from it.

The model is checked against configurations that it has not seen, beside trivial rivals (`check.py`).
"""
