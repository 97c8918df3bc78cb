"""Topologies: what is stated, and what runs."""
