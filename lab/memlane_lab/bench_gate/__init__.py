"""Tells if this tree is slower than another commit: `make bench-gate REV=COMMIT`.

It builds both sides, runs both in turn, and judges each row by its interval.

- [`sides`] builds the two sides, the commit in a worktree of its own.
- [`rows`] runs a side once: the criterion benches, and `memlane-rig blast` through a network. A row's number is a
  cost, in nanoseconds.
- [`verdict`] judges the rounds of a row, and tells the table.
- [`observe`] is a command of its own, `make bench-observe`: the cost of captures, scrapes and `memlane top`.

No experiments with `--versus`: most rows are criterion benches of single functions, which have neither guests nor
flows, so both sides, their rounds and a bar for each row would stay beside an experiment for the few others.
"""
