"""The base of all models that are read from files or written to them, and the messages about their mistakes."""

import difflib
import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from memlane_lab.common.errors import LabError

Stored = TypeVar("Stored", bound=BaseModel)
Place = tuple[int | str, ...]
"""A place in a document: ("link", 3, "delay")."""

_SHORT = reprlib.Repr()
"""Shortens values that messages repeat."""
_SHORT.maxstring = _SHORT.maxother = 60
_FEW = 20
"""Names that a message lists."""
_WORDS: Mapping[str, str] = {
    "missing": "must be stated",
    "string_type": "must be text, not {input}",
    "bool_type": "must be true or false, not {input}",
    "bool_parsing": "must be true or false, not {input}",
    "int_type": "must be a whole number, not {input}",
    "int_parsing": "must be a whole number, not {input}",
    "int_parsing_size": "must be a whole number, not {input}",
    "int_from_float": "must be a whole number, not {input}",
    "float_type": "must be a number, not {input}",
    "float_parsing": "must be a number, not {input}",
    "finite_number": "must be a finite number, not {input}",
    "greater_than_equal": "must be at least {ge}, not {input}",
    "greater_than": "must be more than {gt}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "less_than": "must be less than {lt}, not {input}",
    "literal_error": "must be {expected}, not {input}",
    "enum": "must be {expected}, not {input}",
    "list_type": "must be a list, not {input}",
    "tuple_type": "must be a list, not {input}",
    "dict_type": "must be a table, not {input}",
    "model_type": "must be a table, not {input}",
    "model_attributes_type": "must be a table, not {input}",
    "too_short": "must have {min_length} entries at least, and has {actual_length}",
    "too_long": "must have {max_length} entries at most, and has {actual_length}",
}
"""By pydantic's kind of a mistake, how it is told: its own words speak of models and inputs."""


class Strict(BaseModel):
    """A model in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True, populate_by_name=True)


def read(path: Path, model: type[Stored], version: int | None) -> Stored:
    """The content of a file of this `format_version`, which None leaves unread; raises with the mistakes in it."""
    try:
        stated = json.loads(path.read_text())
        found = stated.get("format_version") if isinstance(stated, dict) else None
        if version is not None and found != version:
            raise LabError(f"{path} has format version {found}, but this lab reads version {version} only")
        return model.model_validate(stated)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise LabError(f"{path} does not fit its format: {told(error, model)}") from error
    except ValueError as error:
        raise LabError(f"{path} is not valid JSON: {error}") from error


def told(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """All mistakes of a checked model, in one sentence."""
    return "; ".join(keyed(place, text) for place, text in mistakes(error, model))


def mistakes(error: ValidationError, model: type[BaseModel] | None = None) -> Iterator[tuple[Place, str]]:
    """Each mistake with its place; with the `model`, unknown keys are told with the known key that is meant."""
    for found in error.errors():
        yield found["loc"], _words(found, model)


def keyed(place: Place, text: str) -> str:
    """The text of a mistake behind the key that it is about."""
    where = ".".join(map(str, place))
    return f"{where}: {text}" if where else text


def hint(word: object, known: Iterable[str]) -> str:
    """A suggestion for a mistyped word: the end of a sentence."""
    names = list(known)
    close = difflib.get_close_matches(str(word), names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= _FEW else ""


def shown(value: object) -> str:
    """A wrong value for a message, cut off where it is long."""
    return _SHORT.repr(value)


def _words(found: ErrorDetails, model: type[BaseModel] | None) -> str:
    kind, context = found["type"], found.get("ctx", {})
    if kind == "extra_forbidden":
        return f"no such key{hint(found['loc'][-1], _keys(model, found['loc'][:-1]))}"
    if kind not in _WORDS:
        return found["msg"].removeprefix("Value error, ")
    text = _WORDS[kind].format(input=shown(found["input"]), **context)
    return text + (_close(found["input"], context["expected"]) if kind == "literal_error" else "")


def _close(word: object, expected: str) -> str:
    close = difflib.get_close_matches(str(word), expected.split("'")[1::2], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _keys(model: Any, place: Place) -> list[str]:  # noqa: ANN401
    """The keys that the table at this place of a model may have."""
    for step in place:
        if isinstance(step, str) and (field := _field(model, step)):
            model = _table(field.annotation)
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    return [field.alias or name for name, field in fields.items()]


def _field(model: Any, key: str) -> Any:  # noqa: ANN401
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    return next((field for name, field in fields.items() if key in (name, field.alias)), None)


def _table(annotation: Any) -> Any:  # noqa: ANN401
    """The model within a field's type: the type itself, or the one inside a list or a choice."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _table(part))), None)
