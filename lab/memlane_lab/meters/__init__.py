"""Meters: counters read before and after the measured part of a sample, in the order in which a sample meets them.

1. `placement.py`: how far the host's two CPUs are apart, before and after.
2. `host.py`: CPU time of every party and of the whole host, as the host counts it.
3. `inside.py`: counters of each guest's own kernel: CPU time, frames, interrupts.
4. `network.py`: counters of the path: kicks, interrupts, drops, received bytes.
5. `account.py`: readings and the flows' own figures, turned into measures.

All count upwards; a rate is the difference of two readings by the time between them, each meter by its own clock, so
that it does no harm that they are not read at the same instant.
"""
