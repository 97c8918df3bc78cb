"""Beds: guests booted together on one path, with the load and the events that an experiment adds."""
