"""Tests of the lab; those marked `real` boot guests."""
