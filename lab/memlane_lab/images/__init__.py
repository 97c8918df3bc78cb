"""Images: what guests boot, in the order in which it is made.

1. `debian.py`: packages, downloaded by an apt of our own from the machine's own mirror.
2. `agent.py`: the control agent, built from `lab/agent`.
3. `root.py`: the root tree and its initramfs: agent, `/init`, programs and their libraries.
4. `uml_kernel.py`: the kernel of User Mode Linux, built from Debian's kernel source.
5. `machine_kernel.py`: Debian's ready kernels for QEMU, with the modules that a guest needs.

Each is a function that returns paths in the cache and builds only what is missing; `commands/prepare.py` calls all.
"""
