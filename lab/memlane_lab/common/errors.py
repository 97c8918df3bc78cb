"""What goes wrong, said to the operator in one sentence with cause and remedy."""


class LabError(Exception):
    """A fault that the operator can understand and mend; its text is all they need to see."""


class NotAvailable(LabError):
    """What was asked for is not to be had on this machine; the text says why, and how to get it."""
