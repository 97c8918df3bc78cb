"""Figures: the measures with their units, latency histograms, estimates with their intervals."""
