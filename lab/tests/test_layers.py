"""The folders of the lab lie in one order: a module imports from its own folder or from those below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import memlane_lab

ORDER = (
    "common", "host", "images", "guests", "paths", "statistics", "bed", "counting", "shop", "workloads", "xen",
    "experiment", "meters", "results", "profiling", "report", "model", "measuring", "kit", "topo", "bench_gate",
    "commands",
)  # fmt: skip
"""From the bottom to the top."""
DOORS = {"__init__.py", "__main__.py", "cli.py"}
"""The only modules outside the folders; they may import everything."""
_PACKAGE = Path(memlane_lab.__file__).parent


def _imports(path: Path, *, types: bool = True) -> Iterator[str]:
    """The lab's modules that the file imports, inside functions too, without the package's name before.

    Without `types`, imports for type checkers alone are left out.
    """
    tree = ast.parse(path.read_text())
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    skipped = set() if types else {inner for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if node not in skipped and isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            below = (node.module or "").split(".")[1:]
            yield from (".".join([*below, each.name]) for each in node.names)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == "memlane_lab"


def _upward(path: Path) -> Iterator[str]:
    own = ORDER.index(path.relative_to(_PACKAGE).parts[0])
    for name in _imports(path):
        if ORDER.index(name.split(".")[0]) > own:
            yield f"{path.relative_to(_PACKAGE)} imports {name}"


def test_every_module_lies_in_a_folder_of_the_order() -> None:
    assert {path.name for path in _PACKAGE.glob("*.py")} == DOORS
    assert {path.parent.name for path in _PACKAGE.glob("*/__init__.py")} == set(ORDER)


def test_no_module_imports_from_a_folder_above_its_own() -> None:
    inside = [path for path in sorted(_PACKAGE.rglob("*.py")) if path.parent != _PACKAGE]
    assert not [told for path in inside for told in _upward(path)]


def _module(name: str) -> str:
    """The module that an imported name is or lies in."""
    while name and not (_PACKAGE / f"{name.replace('.', '/')}.py").exists():
        name = name.rpartition(".")[0]
    return name


def test_no_two_modules_import_each_other() -> None:
    graph = {
        ".".join(path.relative_to(_PACKAGE).with_suffix("").parts): {
            _module(name) for name in _imports(path, types=False)
        }
        - {""}
        for path in sorted(_PACKAGE.rglob("*.py"))
    }
    while leaves := [name for name, wanted in graph.items() if not wanted & graph.keys()]:
        for name in leaves:
            del graph[name]
    while roots := graph.keys() - {name for wanted in graph.values() for name in wanted}:
        for name in roots:
            del graph[name]
    assert not graph, f"these modules import each other in a circle: {', '.join(sorted(graph))}"
