"""Labels: by dimension, the name of a variant's value."""

import re

Labels = dict[str, str]
"""By dimension, in the order in which the experiment states dimensions."""


def words(labels: Labels, *, but: str = "") -> str:
    """The labels for people, all but that of the dimension `but`; a bare number stands with its dimension's name."""
    return ", ".join(_word(name, label) for name, label in labels.items() if name != but)


def _word(dimension: str, label: str) -> str:
    return f"{dimension.replace('_', ' ')} {label}" if re.fullmatch(r"[\d.]+[KMG]?", label) else label
