"""Real guests on the memlane switch, end to end.

Each behaviour is one test, run on the **beds** that can tell something about it: two User Mode Linux guests, two QEMU
guests without KVM, one of each. In the order of reading:

1. `switch.py`: the switch, its ports stated in detail, its report.
2. `lan.py`: guests planned, booted and addressed on that switch.
3. `features.py`: features that guests have switched off, or never agreed to.
4. `transfer.py`: files of random bytes, checked by their hash; flows that go on in the background.
5. `client.py`: DPDK's testpmd as a front end that is no guest.

Coverage. Behaviour of the switch that depends on timing, on the front end or on the guest's kernel runs on all
beds. The product of offloads explodes, so it is covered like this:

- features that a guest can switch off while it runs: every mix of sender and receiver, on every bed, both ways;
- features never agreed to: each lack by itself on a User Mode Linux guest, which boots at once; on QEMU guests as
  pairs of lacks;
- several workers: every poll mode on User Mode Linux guests, the fastest senders; one poll mode on every bed.
"""
