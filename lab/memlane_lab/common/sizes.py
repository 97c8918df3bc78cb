"""Sizes in bytes as people write them: 1400, "128K", "1M"."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse(text: Any) -> Any:  # noqa: ANN401
    """Bytes of "128K" or "1M"; anything else as it is, for pydantic to judge."""
    if isinstance(text, str) and (found := re.fullmatch(r"(\d+)([KM]?)", text)):
        return int(found[1]) * _UNITS[found[2]]
    return text


def text(size: int) -> str:
    """As people write it: 131072 is "128K"."""
    for unit in ("M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


Size = Annotated[int, BeforeValidator(parse), Field(ge=1)]
"""A number of bytes in an experiment's file."""
