"""Plugins that are found by their file: each file of `guests/`, `paths/` and `workloads/` brings its class with it.

So a new guest, path or workload is one new file, and nothing else changes.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def found(package: str, places: Sequence[str], base: type[T], *, named_by: str) -> list[type[T]]:
    """Imports every module of the package (which lies at `places`); returns the classes there made from `base`.

    Those only that are complete: nothing abstract is left, and they have a name (the attribute `named_by`).
    """
    for module in pkgutil.iter_modules(places, f"{package}."):
        importlib.import_module(module.name)
    complete = (kind for kind in _descendants(base) if not inspect.isabstract(kind) and hasattr(kind, named_by))
    return [kind for kind in complete if kind.__module__.startswith(f"{package}.")]


def _descendants(base: type[T]) -> Iterator[type[T]]:
    for child in base.__subclasses__():
        yield child
        yield from _descendants(child)
