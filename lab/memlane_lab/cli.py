"""The command line: arguments in, exit code out. 0: done; 1: could not be done; 2: wrong arguments; 130: Ctrl-C."""

import sys
from enum import StrEnum
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from memlane_lab import demo as demonstration
from memlane_lab import doctor as examination
from memlane_lab import guests, paths, shell
from memlane_lab.bed import Bed
from memlane_lab.errors import LabError
from memlane_lab.images import prepare as images
from memlane_lab.progress import results, say
from memlane_lab.session import Session, exit_on_termination

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


class Wanted(StrEnum):
    """A kind of guest, or the best that this machine can run."""

    AUTO = "auto"
    KVM = "kvm"
    UML = "uml"
    TCG = "tcg"
    NETNS = "netns"


def _known_path(name: str) -> str:
    if name not in paths.PATHS:
        raise typer.BadParameter(f"there is no path {name!r}; there are: {', '.join(paths.PATHS)}")
    return name


GuestOption = Annotated[Wanted, typer.Option("--guest", help="what kind of guests")]
PathOption = Annotated[str, typer.Option("--path", callback=_known_path, help="a path: see `memlane-lab list`")]


@app.command()
def prepare() -> None:
    """Build or download what guests boot; a moment when it is all there."""
    images.prepare()


@app.command()
def doctor() -> None:
    """Say what this machine offers and what it lacks, with the remedy."""
    findings = list(examination.examine())
    results.print(examination.table(iter(findings)))
    if any(finding.lack and finding.needed for finding in findings):
        raise typer.Exit(1)


@app.command("list")
def list_all() -> None:
    """List paths, and which guests each can serve."""
    table = Table("path", *guests.KINDS, "what it is")
    for name, path in paths.PATHS.items():
        table.add_row(name, *("no" if path.refuses(kind) else "yes" for kind in guests.KINDS), path.title)
    results.print(table)


@app.command()
def guest(
    command: Annotated[list[str] | None, typer.Argument(help="a command to run; none: a shell")] = None,
    kind: GuestOption = Wanted.AUTO,
    path: PathOption = "bridge",
    peers: Annotated[int, typer.Option(help="how many more guests to boot on the path")] = 0,
    memory: Annotated[int | None, typer.Option(help="MiB")] = None,
) -> None:
    """Boot a guest and run a command, or a shell, in it. Its peers have the addresses 10.77.0.2, 10.77.0.3 ..."""
    chosen = guests.choose(kind)
    with Session() as session:
        if peers:
            first = Bed(session, paths.make(session, path), [chosen] * (peers + 1), memory=memory).guests[0]
        else:
            first = guests.make(session, chosen, "a", memory=memory)
            first.boot()
        status = _run(first, command) if command else shell.converse(first)
    raise typer.Exit(status if status >= 0 else 128 - status)


def _run(first: guests.Guest, command: list[str]) -> int:
    result = first.run(command, timeout=24 * 3600)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    return result.status


@app.command()
def demo(
    path: PathOption = "memlane",
    kind: GuestOption = Wanted.AUTO,
    seconds: Annotated[int, typer.Option(help="how long each measurement takes")] = 3,
) -> None:
    """Boot two guests on a path and show ping and TCP between them."""
    demonstration.show(path, guests.choose(kind), seconds)


def main() -> NoReturn:
    """Runs the command; faults that the operator can mend are told in one sentence."""
    exit_on_termination()
    try:
        app(standalone_mode=True)
    except LabError as error:
        say(f"memlane-lab: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("memlane-lab: interrupted; everything it had started is gone")
        sys.exit(130)
    sys.exit(0)
