"""Counting: the exact path length of a packet, every instruction of a whole host told by party and by stage.

A **host** in QEMU (its processor emulated, its clock counting instructions) holds two machines and the path between
them; `init` lays it and runs a **plan** of flows. The **plugin** (lab/plugin/path.c) counts what every task of that
host executes between two marks; `counts.py` turns tasks into **parties** and addresses into **stages**.

In the order in which a sample meets them: `kernel.py` (the host's kernel and its symbols), `host.py` (an image,
a boot, its output), `counts.py`; `measuring/counted.py` takes the samples.
"""
