"""The commands of `memlane-lab`; `cli.py` reads their arguments."""
