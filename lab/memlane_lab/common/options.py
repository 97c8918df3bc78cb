"""Commands that take their options as one object."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

S = TypeVar("S")


def options(settings: type[S]) -> Callable[[Callable[[S], None]], Callable[..., None]]:
    """Makes a Typer command of a function that takes one dataclass: each of its fields is an argument or an option."""

    def decorate(command: Callable[[S], None]) -> Callable[..., None]:
        def called(**given: Any) -> None:  # noqa: ANN401
            command(settings(**given))

        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        called.__annotations__ = get_type_hints(settings, include_extras=True)
        called.__signature__ = inspect.signature(settings)  # type: ignore[attr-defined]
        return called

    return decorate
