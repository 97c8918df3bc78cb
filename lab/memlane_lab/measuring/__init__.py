"""Measuring: a run with its samples, live or counted, and the description of the machine."""
