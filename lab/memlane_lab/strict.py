"""What every stated or stored thing of the lab is made from, and how its mistakes are told."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from memlane_lab.errors import LabError

Stored = TypeVar("Stored", bound=BaseModel)


class Strict(BaseModel):
    """What is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def read(path: Path, model: type[Stored], version: int) -> Stored:
    """What a file of this `format_version` holds; raises with what is wrong with it."""
    try:
        stated = json.loads(path.read_text())
        found = stated.get("format_version") if isinstance(stated, dict) else None
        if found != version:
            raise LabError(f"{path} has format version {found}, but this lab reads version {version} only")
        return model.model_validate(stated)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise LabError(f"{path} is not what it says it is: {told(error)}") from error
    except ValueError as error:
        raise LabError(f"{path} is no JSON: {error}") from error


def told(error: ValidationError) -> str:
    """All mistakes of a checked model, in one sentence."""
    return "; ".join(_mistake(found["loc"], found["msg"]) for found in error.errors())


def _mistake(place: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, place))
    said = message.removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
