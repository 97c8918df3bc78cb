"""Paths, guests and workloads from outside of the lab: from a folder, or from packages that are installed.

A folder is named by `$MEMLANE_LAB_PLUGINS` (several: separated by colons); each of its Python files is loaded. A
package names its modules as entry points of the group `memlane_lab`. Their classes are like the lab's own
(docs/how-to/add-a-path.md). One that cannot be loaded is told in one sentence, and left out.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from memlane_lab import guests, paths, workloads
from memlane_lab.common.progress import say
from memlane_lab.guests import Guest
from memlane_lab.paths import NetworkPath
from memlane_lab.workloads import Workload

FOLDERS = "MEMLANE_LAB_PLUGINS"
GROUP = "memlane_lab"


def load() -> None:
    """Loads all of them."""
    for told, fault in [*_from_folders(), *_from_packages()]:
        if isinstance(told, ModuleType):
            for reason in register(told):
                say(f"memlane-lab: the plugin {told.__name__} is left out: {reason}")
        else:
            say(f"memlane-lab: the plugin {told} cannot be loaded: {type(fault).__name__}: {fault}")


def _from_folders() -> Iterator[tuple[ModuleType | str, BaseException | None]]:
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        if not Path(folder).is_dir():
            yield folder, FileNotFoundError(f"${FOLDERS} names no folder there")
        for file in sorted(Path(folder).glob("*.py")):
            try:
                yield _loaded(file), None
            except (Exception, SystemExit) as fault:
                yield str(file), fault


def _loaded(file: Path) -> ModuleType:
    name = f"memlane_lab_plugin_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("this is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit):
        del sys.modules[name]
        raise
    return module


def _from_packages() -> Iterator[tuple[ModuleType | str, BaseException | None]]:
    for point in metadata.entry_points(group=GROUP):
        try:
            found = point.load()
            yield found if isinstance(found, ModuleType) else sys.modules[found.__module__], None
        except (Exception, SystemExit) as fault:
            yield f"{point.name} ({point.value})", fault


def register(module: ModuleType) -> Iterator[str]:
    """Makes the module's classes known; yields why one is left out."""
    known: tuple[tuple[type, dict[Any, Any], str], ...] = (
        (NetworkPath, paths.PATHS, "name"), (Guest, guests.KINDS, "kind"), (Workload, workloads.WORKLOADS, "name"),
    )  # fmt: skip
    own = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    found = False
    for base, table, named_by in known:
        for each in own:
            if issubclass(each, base):
                found = True
                if inspect.isabstract(each):
                    missing = ", ".join(sorted(getattr(each, "__abstractmethods__", ())))
                    yield f"its class {each.__name__} lacks {missing}"
                elif table.setdefault(getattr(each, named_by), each) is not each:
                    yield f"there is a {base.__name__} called {getattr(each, named_by)!r} already"
    if not found:
        yield "it has no class made from NetworkPath, Guest or Workload"
