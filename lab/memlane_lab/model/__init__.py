"""The model: what a configuration that was never measured will get, from a short calibration.

Nouns, in the order in which data meets them:

- A **configuration** is what is asked about: path, pairs of guests, size of messages, load, placement of the CPUs.
- An **observation** is a configuration with what one sample of the lab told of it (`observations.py`).
- A **party** is who spends CPU time: senders and receivers, the host's kernel for each of them, the switch.
- A **cost** is what a party spends on a unit of work: a for each message, b for each byte, c for each wake-up
  (`costs.py`). Work is bytes where a stream flows, requests where answers are waited for (`work.py`).
- The **host** shares its CPUs among parties, and a guest its processor between its flow and its load (`host.py`).
- The **discrepancy** is what costs and host leave unexplained, as a smooth function of the configuration; with it come
  the bounds of a prediction (`discrepancy.py`).
- A **model** is all of these, fitted, in one JSON file (`fitted.py`); a **prediction** is what it says (`predict.py`).
- **What-ifs** change costs or CPUs before the host shares them (`what_if.py`).

The model is checked against configurations that it has not seen (`check.py`).
"""
