"""What goes wrong, said to the operator in one sentence with cause and remedy."""


class LabError(Exception):
    """A fault that the operator can understand and mend; its text is all they need to see."""


class NotAvailable(LabError):
    """This machine lacks what was asked for; the text says what, why, and how to get it."""
