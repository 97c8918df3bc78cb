"""What the commands of `memlane-lab` do; `cli.py` reads their arguments."""
