"""The kit: one file that measures memlane beside its rivals on a stranger's machine with KVM.

`build.py` makes the file, `start.sh` unpacks it there, `runner.py` measures, `archive.py` packs the results and reads
an archive that came from outside. The measuring code is the lab's own: a sample of a kit is one of ours.
"""
