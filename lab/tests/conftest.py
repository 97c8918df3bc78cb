"""What all tests of the lab share."""

pytest_plugins = ["memlane_lab.testing"]
