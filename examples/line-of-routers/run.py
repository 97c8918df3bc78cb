#!/usr/bin/env python3
"""Ten routers in a line, driven from Python: what a broken and a slow link do to those who use them.

Run it with the lab's Python: `make build`, then `.venv/bin/python examples/line-of-routers/run.py [NUMBER]`.
"""

import sys
import time

from memlane_lab import topo


def main(count: int) -> None:
    """Brings the line up, looks at it, breaks it, mends it."""
    last = f"r{count}"
    with topo.up("line", count) as net:
        print(f"{count} routers, all routing tables full after {net.phases.routes:.1f} s")
        print(net["r1"].run(f"ping -c 3 -i 0.2 {last}").check().stdout.splitlines()[-1])

        print("the link between r1 and r2 is made slow: 20 ms each way")
        net.link("r1", "r2", delay="20ms")
        print(net["r1"].run(f"ping -c 3 -i 0.2 {last}").check().stdout.splitlines()[-1])

        print("it goes down")
        net.link("r1", "r2", up=False)
        began = time.monotonic()
        lost = net.plan.loopback(last)
        while lost in net["r1"].routes():
            time.sleep(0.05)
        print(f"r1 knows no way to {last} any more after {time.monotonic() - began:.1f} s")

        print("it comes up again")
        net.link("r1", "r2", up=True, clear=True)
        net.wait_routes()
        print(net["r1"].run(f"ping -c 3 -i 0.2 {last}").check().stdout.splitlines()[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
