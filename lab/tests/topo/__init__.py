"""Topologies: files and shapes, and running networks."""
