"""Errors of the lab: one sentence for the operator, with cause and remedy."""


class LabError(Exception):
    """A fault that the operator can understand and mend; its text is all they need to see."""


class NotAvailable(LabError):
    """Something that this machine lacks; the text says why it is needed, and how to get it."""
