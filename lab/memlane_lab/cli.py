"""The command line: arguments in, exit code out.

0: done, and all that was expected holds; 1: an expectation fails, or the doctor finds a lack; 2: wrong arguments, or it
could not be done; 3: nothing fails, but something is undecided; 130: Ctrl-C.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.table import Table
from typer.exceptions import TyperException

from memlane_lab import guests, paths, workloads
from memlane_lab import report as reporting
from memlane_lab.bed.bed import Bed, BedSettings
from memlane_lab.commands import demo as demonstration
from memlane_lab.commands import doctor as examination
from memlane_lab.commands import front, power, published, shell
from memlane_lab.commands import ndr as rates
from memlane_lab.commands import predictions as predictions
from memlane_lab.commands import prepare as images
from memlane_lab.commands import profiling as profiling
from memlane_lab.commands import reference as references
from memlane_lab.common import strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import results, say, show, tell
from memlane_lab.experiment import experiment, outside, schemas
from memlane_lab.host.session import Session, exit_on_termination
from memlane_lab.kit import build as kits
from memlane_lab.measuring import retaking, rig
from memlane_lab.measuring import run as runs
from memlane_lab.paths import memlane
from memlane_lab.profiling import profiler
from memlane_lab.report import papers
from memlane_lab.report.tables import between as between_table
from memlane_lab.report.tables import levels as levels_table
from memlane_lab.report.tables import of_both as both_words
from memlane_lab.report.tables import verdict as verdict_words
from memlane_lab.results import agreement, comparison, disturbed, frame, levels
from memlane_lab.results.results import read
from memlane_lab.results.summary import Judgement
from memlane_lab.topo.command import app as topo
from memlane_lab.xen import bed as xen_bed

_HELP = """Boot real guests, connect them by memlane or another switch, and measure what each costs.

`memlane-lab doctor` tells what this machine lacks, `demo` compares two switches in a minute, `list` shows all
experiments, `run NAME` measures one and writes a report, and `topo up line 3` starts a network of routers.

Exit codes: 0 done; 1 measured otherwise than expected, or something is missing; 2 it could not be done; 3 undecided;
130 interrupted.
"""
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=_HELP)
app.add_typer(topo, name="topo")
app.add_typer(predictions.app, name="model")
app.command()(predictions.calibrate)
app.command("predict")(predictions.predict_command)


def _tell_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"memlane-lab {metadata.version('memlane-lab')}\n")
        raise typer.Exit


@app.callback()
def _common(
    as_json: Annotated[bool, typer.Option("--json", help="print results as JSON, one object a line")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    results.as_json = as_json
    outside.load()


def _experiments(begun: str) -> list[str]:
    """For shells: the names that a word may become."""
    known = [*(file.stem for file in experiment.supplied()), "papers", "all"]
    return [name for name in known if name.startswith(begun)]


def _profiled(begun: str) -> list[str]:
    """For shells: the labels of the newest profile that a word may become."""
    try:
        return [label for label in profiling.labels(profiling.newest(Path("results"))) if label.startswith(begun)]
    except LabError:
        return []


def _known_kind(name: str | None) -> str | None:
    if name not in {None, "auto", *guests.KINDS}:
        raise typer.BadParameter(f"there are no guests {name!r}; there are: auto, {', '.join(guests.KINDS)}")
    return name


def _known_path(name: str) -> str:
    if name not in paths.PATHS:
        raise typer.BadParameter(f"there is no path {name!r}; there are: {', '.join(paths.PATHS)}")
    return name


GuestOption = Annotated[
    str,
    typer.Option("--guest", callback=_known_kind, help="kind of guests; auto chooses the best that this machine runs"),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="folder of the results; by default results/DATE-TIME")]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="continue the run in the folder --out, or add rounds to it, if it has no primary endpoints; "
        "failed samples of a counted host are retried",
    ),
]
ResultsArgument = Annotated[Path, typer.Argument(help="a folder that `memlane-lab run` has filled", file_okay=False)]
PathOption = Annotated[str, typer.Option("--path", callback=_known_path, help="a path: see `memlane-lab list`")]


@app.command()
def prepare(
    kind: Annotated[
        str | None, typer.Option("--guest", callback=_known_kind, help="only for this kind of guests")
    ] = None,
) -> None:
    """Build or download the images that guests boot; quick when all of them are in the cache."""
    images.prepare(guests.choose(kind) if kind else None)


@app.command()
def doctor() -> None:
    """Check this machine: tools, kernels and permissions that the lab needs, with a remedy for each that is missing."""
    findings = list(examination.examine())
    results.print(examination.table(iter(findings)))
    if any(finding.lack and finding.needed for finding in findings):
        raise typer.Exit(1)


@app.command("list")
def list_all() -> None:
    """List experiments, workloads, and paths with the guests that each can serve."""
    asked = Table("experiment", "question", box=None)
    for file in experiment.supplied():
        asked.add_row(file.stem, experiment.load(file).question)
    flows = Table("workload", "what it is", "parameters", box=None)
    for name, workload in workloads.WORKLOADS.items():
        flows.add_row(name, workload.title, ", ".join(workload.Parameters.model_fields))
    laid = Table("path", *guests.KINDS, "what it is", box=None)
    for name, path in paths.PATHS.items():
        laid.add_row(name, *("no" if path.refuses(kind) else "yes" for kind in guests.KINDS), path.title)
    for table in (asked, flows, laid):
        results.print(table, "")


@app.command()
def guest(
    command: Annotated[list[str] | None, typer.Argument(help="a command to run; none: a shell")] = None,
    kind: GuestOption = "auto",
    path: PathOption = "bridge",
    peers: Annotated[int, typer.Option(help="number of further guests to boot on the path")] = 0,
    memory: Annotated[int | None, typer.Option(help="memory of each guest, in MiB")] = None,
) -> None:
    """Boot a guest and run a command, or a shell, in it. Its peers have the addresses 10.77.0.2, 10.77.0.3 ..."""
    chosen = guests.choose(kind)
    with Session() as session:
        if peers:
            settings = BedSettings([chosen] * (peers + 1), memory=memory)
            first = Bed(session, paths.make(session, path), settings).guests[0]
        else:
            first = guests.make(session, chosen, "a", memory=memory)
            first.boot()
        status = _run(first, command) if command else shell.converse(first)
    raise typer.Exit(status if status >= 0 else 128 - status)


def _run(first: guests.Guest, command: list[str]) -> int:
    result = first.run(command, timeout=24 * 3600)
    if results.as_json:
        results.print({"status": result.status, "stdout": result.stdout, "stderr": result.stderr})
        return result.status
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    return result.status


@app.command()
def run(
    experiments: Annotated[
        list[str],
        typer.Argument(help="names (see `memlane-lab list`), files, `papers` or `all`", autocompletion=_experiments),
    ],
    kind: GuestOption = "auto",
    out: OutOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, help="samples of each variant")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the random order of samples, to repeat a run")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="LABEL or DIMENSION=LABEL: only measure these variants")
    ] = None,
    versus: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="another build of memlane to compare with"),
    ] = None,
    primary: Annotated[
        bool, typer.Option("--primary", help="only measure the variants that primary endpoints compare")
    ] = False,
    resume: ResumeOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only print the planned samples and their duration")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="time that the run may take, as 30min or 2h: as many rounds as fit; retakes add")
    ] = None,
    retake: Annotated[
        int,
        typer.Option(
            min=0,
            max=retaking.MOST,
            help=f"times that a sample beside more than {disturbed.QUIET} CPUs of other work is taken again, unseen",
        ),
    ] = retaking.MOST,
) -> None:
    """Measure experiments and report on them.

    Five such runs of one build on three days, for `memlane-lab between`: memlane-lab run promises --primary
    """
    chosen = guests.choose(kind)
    if budget and repeat:
        raise typer.BadParameter("--budget and --repeat both set the number of rounds: leave one out")
    planned = runs.prepare(
        experiment.files(experiments), chosen, repeat, only=only or (), versus=versus, primary=primary
    )
    if budget:
        planned = runs.within(planned, _seconds(budget))
    for sentence in power.sentences(planned):
        say(sentence)
    if dry_run:
        results.print(runs.outlook(planned))
        return
    images.prepare(chosen, runs.shops(planned))
    folder = out or runs.default_folder()
    try:
        narrowing = [*_narrowing(only, versus, primary), *_retaking(retake)]
        runs.measure(planned, chosen, folder, seed, resume=resume, narrowing=narrowing, retake=retake)
    finally:
        _report(folder)
    if results.as_json:
        results.print(summarised(folder))
    if nothing := runs.unmeasured(folder):
        raise LabError(
            f"no sample of {', '.join(nothing)} could be measured: see the causes in {folder / 'report.html'}"
        )
    raise typer.Exit(_tell_changes(folder, versus) if versus else tell_verdicts(folder))


def _seconds(stated: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", stated)
    if not found:
        raise typer.BadParameter(f"{stated!r} is no time; times are as 90s, 30min, 2h")
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]]


@app.command()
def profile(
    experiments: Annotated[
        list[str], typer.Argument(help="names (see `memlane-lab list`) or files", autocompletion=_experiments)
    ],
    kind: GuestOption = "auto",
    out: OutOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, help="samples of each variant")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the random order of samples, to repeat a run")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="LABEL or DIMENSION=LABEL: only measure these variants")
    ] = None,
    versus: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="another build of memlane to profile too"),
    ] = None,
    rate: Annotated[
        int,
        typer.Option(
            min=100, max=20_000, help="profiler samples per second and CPU; more are more precise, but disturb more"
        ),
    ] = profiler.RATE,
    resume: ResumeOption = False,
) -> None:
    """Measure experiments while perf looks on, and say where the CPU time went, by party and by stage.

    For example: memlane-lab profile how_many_guests --only "no load" --only pairs=4 --repeat 6 --out results/busy
    """
    chosen = guests.choose(kind)
    planned = runs.prepare(experiment.files(experiments), chosen, repeat, only=only or (), versus=versus)
    for each in planned:
        profiler.check(each.experiment, each.variants, chosen)
    images.prepare(chosen, runs.shops(planned))
    folder = out or runs.default_folder()
    try:
        runs.measure(planned, chosen, folder, seed, resume=resume, narrowing=_narrowing(only, versus), rate=rate)
    finally:
        _report(folder)
    for table in profiling.tables(folder):
        results.print(table)


@app.command()
def explain(
    one: Annotated[
        str,
        typer.Argument(help="a label, such as bridge; or LABEL,LABEL of several dimensions", autocompletion=_profiled),
    ],
    other: Annotated[
        str,
        typer.Argument(help="another variant, such as memlane, to compare with", autocompletion=_profiled),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--in", help="a folder that `memlane-lab profile` filled; by default the newest in results"),
    ] = None,
    by: Annotated[profiling.By, typer.Option(help="kind of the parts")] = profiling.By.STAGE,
    per: Annotated[
        str | None,
        typer.Option(
            help="unit of work: KB, packet, exchange, interaction or second; by default the best for the workload"
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="maximum number of parts")] = 20,
) -> None:
    """Say by which stages two profiled variants differ, the largest first.

    For example: memlane-lab explain bridge memlane

    Or of two variants that differ in more: memlane-lab explain memlane,4 memlane,8 --by function --per packet
    """
    for table in profiling.explanations(folder or profiling.newest(Path("results")), one, other, by, per, rows):
        results.print(table)


def _narrowing(only: list[str] | None, versus: Path | None, primary: bool = False) -> list[str]:
    """The options of the command line that restrict the variants to be measured."""
    return [
        *(["--primary"] if primary else []),
        *(each for word in only or () for each in ("--only", word)),
        *(["--versus", str(versus)] if versus else []),
    ]


def _retaking(times: int) -> list[str]:
    """The option of the command line by which disturbed samples are taken again as often; none: the default."""
    return [] if times == retaking.MOST else ["--retake", str(times)]


def _tell_changes(folder: Path, versus: Path) -> int:
    changes = comparison.within(read(folder)[1])
    for table in comparison.tables(changes, f"before: {versus}"):
        results.print(table)
    return comparison.exit_code(changes)


def summarised(folder: Path) -> dict[str, Any]:
    """The verdicts of a run, as data."""
    judged = [verdict for each in reporting.judge(read(folder)[1]) for verdict in each]
    return {"folder": folder, "verdicts": [{"judgement": each.judgement, "verdict": each} for each in judged]}


def tell_verdicts(folder: Path) -> int:
    """Reports the expectations that fail; returns the exit code."""
    judged = [verdict for each in reporting.judge(read(folder)[1]) for verdict in each]
    counts = Counter(verdict.judgement for verdict in judged)
    for verdict in judged:
        if verdict.judgement is not Judgement.HOLDS:
            what, title, wanted, *_, word = verdict_words(verdict)
            say(f"{what}: {title}, {wanted}: {word}")
    if judged:
        say(", ".join(f"{word}: {counts[word]}" for word in Judgement))
    return 1 if counts[Judgement.FAILS] else 3 if counts[Judgement.UNDECIDED] else 0


@app.command()
def xen(
    script: Annotated[str, typer.Argument(help="script for dom0's shell, run once the guests are created")] = "xl list",
    path: Annotated[
        str, typer.Option(help="network path between the guests: netback, xenvmnic, memlane or none")
    ] = "netback",
    number: Annotated[int, typer.Option("--guests", min=0, max=8, help="number of guests: c1, s1, g3 ...")] = 2,
    inside: Annotated[
        str, typer.Option(help="script for each guest's shell; `finished GUEST` in SCRIPT waits for its end")
    ] = "",
    file: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="file to copy to /extra in dom0 and guests")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="let SCRIPT create the guests: xl create /plan/c1.cfg")] = False,
    seconds: Annotated[float, typer.Option(help="timeout of the run, in seconds")] = 590,
) -> None:
    """Boot Xen, dom0 and guests in an emulated PC, run a script in dom0, and print its output.

    Example: memlane-lab xen --inside 'ping -c 3 10.0.0.2' 'finished c1; xl list; ip link'
    """
    plan = xen_bed.Plan(
        path=path,
        guests=xen_bed.NAMES[:number],
        script=script,
        inside=inside,
        hold=hold,
        files=file or (),
        switch=memlane.program(),
    )
    with tempfile.TemporaryDirectory() as folder:
        parts = xen_bed.boot(plan, Path(folder), seconds=seconds)
    if results.as_json:
        results.print(parts)
        raise typer.Exit(int(parts["status"]))
    for part in ("script", "switch", *(f"guest-{name}" for name in plan.guests)):
        if part in parts:
            sys.stdout.write(f"== {part}\n{parts[part]}\n")
    raise typer.Exit(int(parts["status"]))


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    sys.stdout.write(json.dumps(schemas.experiments(), indent=2) + "\n")


@app.command()
def reference() -> None:
    """Generate the lab's pages in docs/reference from its experiments, workloads, paths, settings and measures."""
    for page in references.write():
        tell(f"the page: {page}")


@app.command()
def report(
    folder: ResultsArgument,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="folder for figures as wide as a paper's column, SVG and PDF")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="file for one table of all samples: .parquet or .csv")
    ] = None,
) -> None:
    """Write the report of a run's results again: a page, and on request figures and a table for papers.

    For example: memlane-lab report results/mine --figures figures --table samples.parquet
    """
    if figures or table:
        found = published.read_either(folder)[1]
        for file in papers.write(found, figures) if figures else ():
            tell(f"the figure: {file}")
        if table:
            tell(f"the table: {frame.write(found, table)}")
        return
    tell(f"the report: {reporting.write(folder)}")


@app.command()
def publish(
    source: Annotated[
        Path | None,
        typer.Argument(help="results of a run, or the archive of a kit; by default the published ones", exists=True),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", help="name of a run's page; by default that of its first experiment")
    ] = None,
) -> None:
    """Copy a run's samples into docs/benchmarks, and generate its page docs/benchmarks/DATE/NAME.md from them.

    An archive of a kit (`memlane-lab kit`) is checked, and stands beside our own runs in docs/benchmarks/kits.md.
    """
    if source and source.is_file():
        if name is not None:
            raise typer.BadParameter("a kit's page is named by its archive: leave out --as")
        pages = [published.publish_archive(source)]
    else:
        pages = [published.publish(source, name)] if source else published.make_pages()
    for page in pages:
        tell(f"the page: {page}")


@app.command()
def kit(
    out: Annotated[Path, typer.Option("--out", help="the file", dir_okay=False)] = Path("target/memlane-kit"),
    switch: Annotated[
        Path,
        typer.Option(dir_okay=False, help="the static switch; by default that of `make static`", show_default=False),
    ] = kits.SWITCH,
) -> None:
    """Make one file that measures memlane beside its rivals on another machine, with KVM, in 20 minutes.

    There `sudo ./memlane-kit` makes an archive; `memlane-lab publish ARCHIVE` shows it beside our figures.
    """
    tell(f"the kit: {kits.build(out, switch)}")


@app.command()
def figures(
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; name each shown run of another switch than the present one")
    ] = False,
    release: Annotated[bool, typer.Option("--release", help="with --check: exit code 1 if there is any")] = False,
) -> None:
    """Write the figures of README and docs again: of each, the newest published run of this release.

    Before a release: memlane-lab figures --check --release
    """
    if not check:
        for page in published.make_pages():
            tell(f"the page: {page}")
    told = front.stale(front.shown_commits())
    for sentence in told:
        say(sentence)
    raise typer.Exit(1 if told and release else 0)


@app.command()
def compare(before: ResultsArgument, after: ResultsArgument) -> None:
    """Compare two runs that differ in one thing at most: another switch, another kernel, another kind of guests."""
    changes, what = comparison.compare(before, after)
    if results.as_json:
        results.print({"what": what, "changes": [{"verdict": each.verdict, "change": each} for each in changes]})
    for table in comparison.tables(changes, what) if not results.as_json else ():
        results.print(table)
    raise typer.Exit(comparison.exit_code(changes))


@app.command()
def agree(one: ResultsArgument, other: ResultsArgument) -> None:
    """Say whether two runs, also of two machines or days, agree on the ratios that both judge.

    For example, the published run and one of your own:
    memlane-lab agree docs/benchmarks/2026-11-25/promises results/mine
    """
    (mine, found), (theirs, others) = published.read_either(one), published.read_either(other)
    if mine.guest != theirs.guest:
        raise LabError(
            f"{one} has {mine.guest} guests, {other} has {theirs.guest} guests: compare runs of one kind of guests"
        )
    if not (both := agreement.between(found, others)):
        raise LabError(f"{one} and {other} have no expectation in common: run the same experiments again")
    if changed := agreement.other_builds(mine, theirs):
        say(f"the two runs are of other builds ({changed}): where they are apart, the build may be the reason")
    runs_told = (f"{each.began}, commit {each.machine.get('commit', 'unknown')}" for each in (mine, theirs))
    table = Table("", "", "expected", *runs_told, "", title=agreement.came(both))
    for what, title, wanted, mine_text, their_text, word in map(both_words, both):
        table.add_row(what, title, wanted, mine_text.line, their_text.line, word)
    show(table, [{"agreement": each.agreement, "ratio": each} for each in both])
    raise typer.Exit(agreement.exit_code(both))


@app.command()
def between(
    runs_named: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of five runs or more of one build", file_okay=False)
    ],
) -> None:
    """Give each ratio its interval between runs of one build, each run a block, and the interval of one more run.

    A second table tells the variance of primary endpoints by level: sample, boot, run and day.

    For example: memlane-lab between results/day-1 results/day-2 results/day-3 results/day-4 results/day-5
    """
    read_runs = [published.read_either(folder) for folder in runs_named]
    found = agreement.between_runs(read_runs)
    caption = agreement.places([record for record, _ in read_runs])
    show(between_table(found, caption), {"runs": caption, "ratios": found})
    spreads = levels.of_endpoints(read_runs)
    show(levels_table(spreads), {"variance by level": spreads})
    raise typer.Exit(agreement.between_exit_code(found))


@app.command()
def ndr(
    path: PathOption = "memlane",
    size: Annotated[int, typer.Option(min=60, max=65549, help="bytes of a frame")] = 64,
    highest: Annotated[float, typer.Option(min=1000, help="highest load to try, in frames a second")] = 20e6,
    trial: Annotated[float, typer.Option(min=0.1, help="seconds of a trial that counts in full")] = 1.0,
    total: Annotated[float, typer.Option(min=0.1, help="seconds of trials that decide a load at the latest")] = 11.0,
    budget: Annotated[str, typer.Option(help="time of all trials, as 10min")] = "10min",
) -> None:
    """Search for the highest loads without loss (NDR) and with 0.5 % of it (PDR), by MLRsearch, one way.

    Traffic is memlane-rig's. For example: memlane-lab ndr --path ovs-dpdk --size 1518 --budget 5min
    """
    found = rig.search(path, size, highest, rig.goals(trial, total), _seconds(budget))
    show(rates.table(found), found)
    raise typer.Exit(0 if all(each.finished for each in found.found) else 3)


@app.command()
def demo(kind: GuestOption = "auto", out: OutOption = None) -> None:
    """Measure two guests on the standard path and two on memlane, in about a minute, and show the difference."""
    folder = out or runs.default_folder().with_name(f"demo-{runs.default_folder().name}")
    try:
        table = demonstration.measure(guests.choose(kind), folder)
    finally:
        _report(folder)
    results.print(table)
    tell(f"the whole report: {folder / 'report.html'}")


def _report(folder: Path) -> None:
    """Writes the report of all samples so far, also after an interruption."""
    if (folder / "run.json").exists():
        say(f"the report: {reporting.write(folder)}")
        runs.own_files_again(folder)


def main() -> NoReturn:
    """Runs the command; faults that the operator can mend are told in one sentence."""
    exit_on_termination()
    status: object = 0
    try:
        status = app(_json_first(sys.argv[1:]), standalone_mode=False)
    except LabError as error:
        say(f"memlane-lab: {error}")
        sys.exit(2)
    except TyperException as error:
        _tell_usage(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if status == _INTERRUPTED:
        say("memlane-lab: interrupted; everything it had started is gone")
    sys.exit(status if isinstance(status, int) else 0)


def _json_first(words: list[str]) -> list[str]:
    """The arguments with `--json` in front, because it is of all commands; those of topologies have their own."""
    own = words[: words.index("--")] if "--" in words else words
    if "--json" not in own or "topo" in own[:1]:
        return words
    return ["--json", *(word for word in own if word != "--json"), *words[len(own) :]]


_INTERRUPTED = 130


def _tell_usage(error: TyperException) -> None:
    """The fault of the command line in a sentence; a command without its arguments shows its help."""
    told, context = error.format_message(), getattr(error, "ctx", None)
    if not told.strip():
        return  # the help stands there already
    if isinstance(error, typer.BadParameter) and error.param and isinstance(error.__cause__, ValidationError):
        wrong = "; ".join(text for _, text in strict.mistakes(error.__cause__))
        told = f"{error.param.opts[0]}: {wrong}"
    more = f"; see {context.command_path} --help" if context else ""
    say(f"memlane-lab: {told.rstrip('.')}{more}")
