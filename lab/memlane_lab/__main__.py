"""`python -m memlane_lab` is `memlane-lab`."""

from memlane_lab.cli import main

main()
