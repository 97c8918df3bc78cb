"""Profiling: where the CPU time of a packet goes on the live host, by party and by stage.

`perf` interrupts every CPU of the host some thousand times a second while a sample's flows run. Each **hit** tells the
task, the address and the host kernel's calls that led there. A hit becomes a **part**: a party (the sender's program,
its guest's kernel, the host's kernel on its behalf ...), a place, a function, and by `stages.toml` a stage. Parts of
all samples are the **profile**, which is kept beside the run's results (`profile.json`, `profile.csv`).

In the order in which a hit meets them: `perf.py` (perf and its output), `owners.py` (the task's party, the function),
`profiler.py` (a sample's beginning and end), `profile.py` (the files), `costs.py` (parts into costs per KB and per
packet, with the error of sampling), `explain.py` (the difference of two variants).
"""
