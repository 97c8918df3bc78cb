"""The lab's own programs for guests, built from `lab/agent`."""

from pathlib import Path

from memlane_lab.images import static_program

SOURCE = Path(__file__).parents[2] / "agent"


def sources() -> list[Path]:
    """The files that the programs are made from."""
    return static_program.sources(SOURCE)


def build() -> list[Path]:
    """Builds the control agent and what else the lab brings (a few seconds the first time); returns the programs."""
    return static_program.build(SOURCE, ("memlane-agent", "exchange", "own-root"), "the guests' own programs")
