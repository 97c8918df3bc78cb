"""Numbers in messages, in plain English."""


def counted(number: int, one: str) -> str:
    """So many of a thing: "1 sample", "2 samples", "2 addresses"."""
    if number == 1:
        return f"{number} {one}"
    return f"{number} {one}{'es' if one.endswith('s') else 's'}"
