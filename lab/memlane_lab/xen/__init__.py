"""Xen: the real hypervisor, its dom0 and guests, in QEMU, for counting instructions and for trying things.

`images.py`   the booted files, from Debian's packages: hypervisor, kernel, the file systems of dom0 and of the guests
`bed.py`      a boot: the plan of dom0 and the guests, their actions, their output
`dom0_init`   dom0's first program: Xen's daemons, the path between the guests, the guests, then a script
`guest_init`  a guest's first program

To try something in there, with files of one's own, which lie in /extra of dom0 and of the guests:

    memlane-lab xen --file my-tool --inside 'ping -c 1 10.0.0.2' 'finished c1; /extra/my-tool; xenstore-ls'

It boots Xen, dom0 and two guests, c1 (10.0.0.1) and s1 (10.0.0.2), takes about a minute, and prints the output.
`--path none` gives guests interfaces without a back end. `--hold` leaves making the guests to the script: each
one's configuration for xl is /plan/NAME.cfg.
"""
