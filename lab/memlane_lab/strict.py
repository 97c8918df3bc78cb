"""What every stated or stored thing of the lab is made from, and how its mistakes are told."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Strict(BaseModel):
    """What is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def told(error: ValidationError) -> str:
    """All mistakes of a checked model, in one sentence."""
    return "; ".join(_mistake(found["loc"], found["msg"]) for found in error.errors())


def _mistake(place: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, place))
    said = message.removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
