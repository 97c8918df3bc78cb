"""The model: predicts configurations that were never measured, from a short calibration.

Nouns, in the order in which data meets them:

- A **configuration** is the subject of a prediction: path, pairs of guests, message size, load, placement of the CPUs.
- An **observation** is a configuration with the figures of one sample of the lab (`observations.py`).
- A **party** spends CPU time: senders and receivers, the host's kernel for each of them, the switch.
- A **cost** is a party's CPU time for a unit of work: a for each message, b for each byte, c for each wake-up
  (`costs.py`). Work is bytes where a stream flows, requests where answers are waited for (`work.py`).
- The **host** shares its CPUs among parties, and a guest its processor between its flow and its load (`host.py`).
- The **discrepancy** is the residual of costs and host, as a smooth function of the configuration; with it come
  the bounds of a prediction (`discrepancy.py`).
- A **model** is all of these, fitted, in one JSON file (`fitted.py`); `predict.py` makes a **prediction** from it.
- **What-ifs** change costs or CPUs before the host shares them (`what_if.py`).

The model is checked against configurations that it has not seen (`check.py`).
"""
