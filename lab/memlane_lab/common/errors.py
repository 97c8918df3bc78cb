"""Errors of the lab: one sentence for the operator, with cause and remedy."""

import traceback
from collections.abc import Callable
from pathlib import Path


class LabError(Exception):
    """A fault that the operator can understand and mend; its text is all they need to see."""


def told(fault: BaseException) -> str:
    """The fault in one line; one of code, such as a plugin's, with its place."""
    text = f"{type(fault).__name__}: {fault}"
    frames = traceback.extract_tb(fault.__traceback__)
    return text if isinstance(fault, LabError) or not frames else f"{text} ({_place(frames[-1])})"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"


def reason(ask: Callable[[], str | None]) -> str | None:
    """The answer of `ask`, which belongs to a plugin; the fault in it is an answer, too."""
    try:
        return ask()
    except Exception as fault:  # any, because a plugin is other people's code
        return told(fault)


class NotAvailable(LabError):
    """Something that this machine lacks; the text says why it is needed, and how to get it."""
