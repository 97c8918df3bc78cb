"""The page of results shows the committed samples, and nothing else."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memlane_lab import cli, report
from memlane_lab.commands import front, published
from memlane_lab.common.errors import LabError
from memlane_lab.experiment import claims, experiment
from memlane_lab.measuring import machine
from memlane_lab.report import figures, shown, tables
from memlane_lab.results import agreement, results, summary
from tests import made_up


def test_the_page_is_what_the_committed_samples_say() -> None:
    pages = published.made()
    assert published.FOLDER / "2026-11-25" / "promises.md" in pages
    assert {page: page.read_text() for page in pages} == pages, "run `memlane-lab publish`"
    whole = published.archives()
    assert published.FOLDER / "2026-11-26" / "promises" / "page.md.gz" in whole
    assert {file: published.archived(file) for file in whole} == whole, "run `memlane-lab publish`"
    assert set(published.FOLDER.glob("*/*/page.md.gz")) == whole.keys()


def test_readme_and_plots_regenerate_to_themselves() -> None:
    top = published.FOLDER.parents[1]
    pages = published.made()
    front = {top / "README.md", top / "docs" / "index.md", top / "docs" / "explanation" / "performance.md"}
    plots = {page for page in pages if page.name.startswith("performance-")}
    assert front <= pages.keys()
    assert len(plots) == 4
    for page in front:
        assert shown.BEGIN in pages[page]
        table = pages[page].split(shown.BEGIN)[1].split(shown.END)[0].removeprefix("\n\n").removesuffix("\n")
        assert pages[page] == page.read_text(), "run `memlane-lab figures`"
        other = page.read_text().replace(table, table.replace(" x ", " y ", 1))
        assert other != page.read_text()
        assert shown.placed(other, table) == page.read_text()


def _front_page(folder: Path) -> tuple[Path, str]:
    page = folder.parents[1] / "README.md"
    if not page.exists():
        page.write_text(f"before\n\n{shown.BEGIN}\n{shown.END}\n\nafter\n")
    published.make_pages(folder)
    return page, page.read_text()


def test_the_front_page_shows_the_newest_run_whatever_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"

    def publish(day: int, factor: float, commit: str, guest: str = "uml") -> None:
        run = made_up.front(tmp_path / str(day), day, factor, guest, commit=commit)
        published.publish(run, "promises", folder)

    publish(2, 1.5, "222222222222")
    publish(1, 1.0, "111111111111")
    page, text = _front_page(folder)
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    row = next(line for line in text.splitlines() if line.startswith("| TCP, 1 MB writes: throughput"))
    assert row == (
        "| TCP, 1 MB writes: throughput | 3.00 x (2.70 to 3.30, n = 8) <sup>a</sup> | 1.80 to 3.30, 2 runs | "
        "*not measured* | *not measured* | *not measured* | *not measured* |"
    )
    assert "commit 222222222222" in text
    assert "111111111111" not in text
    publish(3, 0.5, "333333333333", guest="kvm")
    assert page.read_text() != text  # publishing writes the front page again
    _, text = _front_page(folder)
    assert "| 1.00 x (0.900 to 1.10, n = 8) <sup>a</sup> | 0.900 to 1.10, 1 run |" in text
    assert "QEMU with KVM guests on 2 CPUs of Abacus" in text
    assert page.read_text() == published.made(folder)[page]
    every = (folder / "figures.md").read_text()
    assert [commit * 12 in every for commit in "123"] == [True, True, True]


def test_figures_of_another_release_are_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    for day, version in ((1, "0.1.0"), (2, "0.2.0")):
        run = made_up.front(tmp_path / version, day, day, versions={"memlane": f"memlane {version} (build {day})"})
        published.publish(run, "promises", folder)
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "0.1.0"\n')
    assert list(published.front(folder)) == ["2026-11-21/promises"]
    assert "2.00 x" in _front_page(folder)[1]


def test_figures_of_an_older_data_path_are_warned_of_and_fail_at_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    for name in ("switch/dataplane/worker.rs", "switch/daemon/main.rs"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("old")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    first = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "switch/daemon/main.rs").write_text("new")
    assert front.stale({first: ["2026-11-21/promises"]}, tmp_path) == []
    (tmp_path / "switch/dataplane/worker.rs").write_text("new")
    (told,) = front.stale({first: ["2026-11-21/promises"]}, tmp_path)
    assert told.startswith(f"figures of 2026-11-21/promises are of commit {first}: 1 file of switch/virtq")
    (told,) = front.stale({"0123456789ab": ["x"]}, tmp_path)
    assert told.endswith("this clone does not have that commit: fetch the whole history")
    shown_runs = {run for runs in front.shown_commits().values() for run in runs}
    plotted = {run for runs in figures.commits(published.front()).values() for run in runs}
    assert "2026-11-25/guests-beside-guests" in plotted  # of the plot of fairness
    assert plotted <= shown_runs
    monkeypatch.setattr(front, "stale", lambda _: ["figures of x are old"])
    for words, code in ((["--check"], 0), (["--check", "--release"], 1)):
        asked = CliRunner().invoke(cli.app, ["figures", *words])
        assert asked.exit_code == code, asked.output


@pytest.mark.parametrize(
    "name",
    ["README.md", "docs/index.md", "docs/explanation/performance.md", "docs/benchmarks/what-was-learnt.md"],
)
def test_figures_of_a_page_stand_on_the_benchmarks_that_it_links_to(name: str) -> None:
    page = published.FOLDER.parents[1] / name
    text = page.read_text()
    linked = [(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]*\.md)\)", text)]
    told = "".join(map(_whole, linked)).replace("**", "")
    figures = re.findall(r"([0-9.]+) x\*{0,2}\s\(([0-9.]+\sto\s[0-9.]+)[,)]", text)
    assert figures
    assert [each for each in figures if f"{each[0]} x ({' '.join(each[1].split())}, n" not in told] == []


def _whole(page: Path) -> str:
    """A page of the benchmarks, from its archive where it has one; no other."""
    if published.FOLDER not in page.parents:
        return ""
    return published.whole_page(page.with_suffix(""))


def test_no_row_of_the_papers_is_silent() -> None:
    text = (published.FOLDER / "notes" / "review.md").read_text()
    section = text.partition("## The papers' rows\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| S")]
    assert len(rows) > 25
    told = re.compile(r"\.\./\d{4}-\d\d-\d\d/|\*nominal\*|withdrawn|a run of one's own|any run|by arithmetic")
    assert [row for row in rows if len(row) != 4 or not told.search(row[3])] == []
    # The paper's own figure, or the word that it has none.
    assert [row for row in rows if not re.search(r"\d", row[1]) and not re.match(r"none\b", row[1])] == []
    named = set(re.findall(r"lab/experiments/(\w+)\.toml", section))
    runs = [json.loads(run.read_text()) for run in published.FOLDER.glob("*/*/run.json")]
    shown = {each["experiment"]["name"] for run in runs for each in run["experiments"]}
    for name in named - shown:  # without samples, which its row says
        assert all("*nominal*" in row[3] for row in rows if f"/{name}.toml" in " ".join(row)), name


def test_the_papers_figures_stand_on_the_pages_of_their_rows() -> None:
    count = 0
    for file in published.FOLDER.glob("*/*/run.json"):
        text = published.whole_page(file.parent)
        for result in published.read(file.parent)[1]:
            known = summary.known(result)
            for figure in result.experiment.paper:
                if any(claims.matches(labels, figure.where) for labels in known):
                    assert tables.paper(figure) in text, (file.parent.name, figure)
                    count += 1
    assert count > 20


def test_figures_of_the_papers_are_those_of_the_papers() -> None:
    """Between two machines 941, 925, 941 and 930 Mbit/s; 938 is the one flow of experiment 1 alone."""
    stated = {each.stem: experiment.load(each) for each in experiment.supplied()}
    ends = {each.where["ends"]: each.value for each in stated["guest_and_host_across_hosts"].paper}
    assert ends == {"host to host": 941e6, "host to guest": 925e6, "guest to host": 941e6, "guest to guest": 930e6}
    assert [name for name, each in stated.items() for one in each.paper if one.value == 938e6] == [
        "what_virtualisation_costs"
    ]


def test_what_was_learnt_is_a_page_of_600_words() -> None:
    assert len((published.FOLDER / "what-was-learnt.md").read_text().split()) <= 600


def test_the_committed_samples_are_small() -> None:
    assert sum(file.stat().st_size for file in published.FOLDER.rglob("*.*")) < 4 << 20


def _published(tmp_path: Path, *, complete: bool = True, name: str | None = None) -> Path:
    """The folder of all pages; a run's own is in that of its day, which is 2026-11-22."""
    run, folder = tmp_path / "run", tmp_path / "docs" / "benchmarks"
    results.write(run, made_up.record("made_up"))
    results.write_experiment(run, made_up.result().model_copy(update={"complete": complete}))
    published.publish(run, name, folder)
    return folder


def test_published_samples_give_the_same_tables_and_verdicts(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    own = folder / "2026-11-22" / "made-up"
    record, (result,) = published.read(own)
    whole = made_up.result()
    assert report.markdown(record, [result]) == report.markdown(made_up.record("made_up"), [whole])
    assert summary.verdicts(result) == summary.verdicts(whole)
    assert (len(result.samples), len(result.failed)) == (33, 1)
    pages = published.made(folder)
    lists = {folder / name for name in ("index.md", "headlines.md", "kits.md")}
    assert set(pages) == {published.page(own), own / "made_up.svg", *lists}
    assert {page: page.read_text() for page in pages} == pages


def test_a_run_has_a_page_of_its_name_and_day_and_stands_in_the_list(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    index = folder / "index.md"
    assert "shop" not in index.read_text()
    _published(tmp_path, name="shop")
    pages = published.made(folder)
    day = folder / "2026-11-22"
    assert {page for page in pages if page.suffix == ".md"} == {
        day / "made-up.md", day / "shop.md", index, folder / "headlines.md", folder / "kits.md",
    }  # fmt: skip
    assert "![throughput, received](shop/made_up.svg)" in pages[day / "shop.md"]
    assert "| 2026-11-22 | [shop](2026-11-22/shop.md) |" in index.read_text()
    assert "[shop](shop/run.json)" in pages[day / "shop.md"]
    assert f"({published.MEASURING})" in pages[day / "shop.md"]
    with pytest.raises(LabError, match=r"'\.\./x' cannot be the name of a page"):
        _published(tmp_path, name="../x")


def test_two_runs_agree_where_their_intervals_have_a_value_in_common(tmp_path: Path) -> None:
    folder = _published(tmp_path, name="promises")
    again = published.publish(tmp_path / "run", "promises-again", folder)
    assert "2 agree, 0 apart, 0 undecided" in again.read_text()

    def slower(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | ({"throughput": 2.6e9} if labels == {"path": "memlane", "load": "0"} else {})

    found = agreement.between([made_up.result()], [made_up.result(slower)])
    assert [each.agreement for each in found] == ["apart", "agree"]
    assert agreement.exit_code(found) == 1
    few = [made_up.result(spread=made_up.SPREAD[:5])]
    assert [each.agreement for each in agreement.between([made_up.result()], few)] == ["undecided"] * 2
    assert agreement.between([made_up.result()], [made_up.result(seconds=9)]) == []


def test_runs_of_one_build_have_an_interval_between_them(tmp_path: Path) -> None:
    def of(number: int, factor: float = 1.0, **machine: object) -> agreement.Run:
        def values(labels: dict[str, str]) -> dict[str, float]:
            rate = made_up.usual(labels)["throughput"] * (factor if labels["path"] == "memlane" else 1)
            return made_up.usual(labels) | {"throughput": rate}

        record = made_up.record("made_up", **machine)
        return record.model_copy(update={"began": f"2026-11-2{number}T00:00:00"}), [made_up.result(values)]

    runs = [of(number, factor) for number, factor in enumerate((0.9, 0.95, 1.0, 1.05, 1.1))]
    idle, loaded = agreement.between_runs(runs)
    assert idle.ratios == pytest.approx([1.8, 1.9, 2.0, 2.1, 2.2])
    assert (idle.judgement, loaded.judgement) == ("holds", "fails")
    assert idle.found is not None
    assert idle.found.another is not None
    assert 1.5 < idle.found.another[0] < 1.8 < 2.2 < idle.found.another[1]
    assert agreement.places([record for record, _ in runs]) == "5 runs (days: 5, machines: 1)"
    assert agreement.places([runs[0][0]] * 5) == (
        "5 runs (days: 1, machines: 1): no headline yet, which needs 5 runs on 3 days or machines"
    )
    few = agreement.between_runs(runs[:4])
    assert [each.judgement for each in few] == ["undecided"] * 2
    assert agreement.places([record for record, _ in runs[:4]]).endswith(
        ": no headline yet, which needs 5 runs on 3 days or machines"
    )
    with pytest.raises(LabError, match="memlane: 1 there, 2 here"):
        agreement.between_runs([*runs, of(6, versions={"memlane": "2"})])
    with pytest.raises(LabError, match="the run that began at 2026-11-20T00:00:00 is named twice"):
        agreement.between_runs([*runs, runs[0]])
    with pytest.raises(LabError, match=r"these runs are not of one experiment: made_up, seconds: \S+ against 9"):
        agreement.between_runs([*runs, (of(6)[0], [made_up.result(seconds=9)])])
    for number, (record, found) in enumerate(runs):
        results.write(tmp_path / str(number), record)
        results.write_experiment(tmp_path / str(number), found[0])
    told = CliRunner().invoke(cli.app, ["between", *(str(tmp_path / str(number)) for number in range(5))])
    assert told.exit_code == 1, told.output
    assert "days: 5" in told.output


def test_runs_of_other_builds_are_flagged() -> None:
    one, other = made_up.record("made_up"), made_up.record("made_up", versions={"memlane": "2"})
    assert agreement.other_builds(one, one) == ""
    page = report.markdown(other, [made_up.result()], beside=(one, [made_up.result()]))
    assert "The two runs are of other builds (memlane: 1 there, 2 here)" in page


def test_a_run_is_held_against_a_published_one(tmp_path: Path) -> None:
    folder = _published(tmp_path) / "2026-11-22" / "made-up"
    assert published.read_either(folder)[0] == published.read_either(tmp_path / "run")[0]
    told = CliRunner().invoke(cli.app, ["agree", str(folder), str(tmp_path / "run")])
    assert told.exit_code == 0, told.output
    assert "2 agree, 0 apart, 0 undecided" in told.output


def test_the_same_samples_give_the_same_files(tmp_path: Path) -> None:
    one, other = (
        _published(tmp_path / name) / "2026-11-22" / "made-up" / "made_up.csv.gz" for name in ("one", "other")
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_page_that_says_something_else_is_found_out(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    page = published.page(folder / "2026-11-22" / "made-up")
    page.write_text(page.read_text().replace("4.00", "5.00"))
    assert page.read_text() != published.made(folder)[page]


def test_samples_that_were_edited_by_hand_are_found(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    file = folder / "2026-11-22" / "made-up" / "made_up.csv.gz"
    rows = gzip.decompress(file.read_bytes()).decode()
    assert rows.splitlines()[0] == "sample,round,variant,placement,began,path,load,flow,measure,value"
    assert ",2026-11-22T00:00:00,memlane,0,,throughput,4e+09" in rows
    file.write_bytes(gzip.compress(rows.replace(",throughput,4e+09", ",throughput,5e+09").encode()))
    with pytest.raises(LabError, match=r"made_up\.csv\.gz is not the file that was published: its digest differs"):
        published.made(folder)
    own = tmp_path / "run" / "made_up" / "result.json"
    own.write_text(own.read_text().replace("4000000000.0", "5000000000.0", 1))
    with pytest.raises(LabError, match=r"were changed after they had been measured: their digest differs"):
        published.publish(tmp_path / "run", None, folder)


def test_published_files_that_are_broken_are_told_in_a_sentence(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    own = folder / "2026-11-22" / "made-up"
    file, samples = own / "run.json", own / "made_up.csv.gz"
    text = file.read_text()
    for broken, said in (
        (text.replace('"at_least": 1.5', '"at_least": "x"'), "at_least: must be a number, not 'x'"),
        (text[:300], "is not valid JSON"),
    ):
        file.write_text(broken)
        told = CliRunner().invoke(cli.app, ["agree", str(tmp_path / "run"), str(own)])
        assert isinstance(told.exception, LabError)
        assert said in str(told.exception)
    file.write_text(text)
    with pytest.raises(LabError, match="holds samples that are published, not a run's own folder: its page is"):
        published.publish(own, None, folder)
    samples.unlink()
    with pytest.raises(LabError, match=r"made-up lacks made_up\.csv\.gz, which its run\.json names"):
        published.read(own)


def test_every_committed_file_of_samples_has_its_digest() -> None:
    for run in published.FOLDER.glob("*/*/run.json"):
        digests = json.loads(run.read_text())["digests"]
        assert sorted(digests) == sorted(file.name for file in run.parent.glob("*.csv.gz"))


def test_a_run_of_two_commits_is_not_published(tmp_path: Path) -> None:
    run = tmp_path / "run"
    results.write(run, made_up.record("made_up", commit="0123456789ab, ba9876543210"))
    results.write_experiment(run, made_up.result())
    with pytest.raises(LabError, match="mixes samples of several commits"):
        published.publish(run, None, tmp_path / "docs" / "benchmarks")


def test_half_a_run_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="has not measured all of made_up: continue with --resume"):
        _published(tmp_path, complete=False)


def test_what_nobody_else_has_is_not_published(tmp_path: Path) -> None:
    run = tmp_path / "run"
    results.write(run, made_up.record("made_up", commit=f"0123456789ab{machine.CHANGED}"))
    results.write_experiment(run, made_up.result())
    with pytest.raises(LabError, match="was measured on 0123456789ab with changes, which nobody else has"):
        published.publish(run, None, tmp_path / "docs" / "benchmarks")


def test_published_samples_have_the_present_names_of_their_measures() -> None:
    _, (promises,) = published.read(published.FOLDER / "2026-11-26" / "promises")
    assert "path_interrupts_per_frame" in promises.experiment.measures
    assert "calls_per_frame" not in promises.experiment.measures
    counted = [sample.values for sample in promises.good if "kicks" in sample.values]
    assert counted
    assert all("path_interrupts" in values and "calls" not in values for values in counted)


def test_headlines_tell_the_days_of_each_build(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    contents = folder.parent / "SUMMARY.md"
    folder.mkdir(parents=True)
    contents.write_text(
        "- [List](benchmarks/index.md)\n  - [gone](benchmarks/2026-01-01/gone.md)\n  - [n](benchmarks/notes/n.md)\n"
    )
    page = folder / "headlines.md"
    for number, factor in enumerate((0.9, 0.95, 1.0, 1.05)):
        published.publish(made_up.headline(tmp_path / str(number), number, factor), "headlines", folder)
    needs = "no headline yet, which needs 5 runs on 3 days or machines"
    assert f"**4 runs (days: 4, machines: 1): {needs}**" in page.read_text()
    assert "| 1.80, 1.90, 2.00, 2.10 | 1.95 x | - | 1.17 x | undecided |" in page.read_text()
    published.publish(made_up.headline(tmp_path / "other", 4, 1.1, versions={"memlane": "2"}), "headlines", folder)
    assert f"## 2\n\n**1 run (days: 1, machines: 1): {needs}**" in page.read_text()
    published.publish(made_up.headline(tmp_path / "5", 5, 1.1), "headlines", folder)
    assert "## 1\n\n**5 runs (days: 5, machines: 1)**" in page.read_text()
    assert "| [2026-11-25/headlines](2026-11-25/headlines.md) | 2026-11-25T00:00:00 |" in page.read_text()
    assert contents.read_text().splitlines() == [
        "- [List](benchmarks/index.md)",
        *(f"  - [headlines, 2026-11-2{day}](benchmarks/2026-11-2{day}/headlines.md)" for day in (5, 4, 3, 2, 1, 0)),
        "  - [n](benchmarks/notes/n.md)",
    ]
    assert {file: file.read_text() for file in published.made(folder)} == published.made(folder)


def test_a_page_does_not_take_the_place_of_another_run(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    first = made_up.headline(tmp_path / "first", 0, 1.0)
    assert published.publish(first, "headlines", folder) == published.publish(first, "headlines", folder)
    record, _ = results.read(made_up.headline(tmp_path / "later", 0, 1.1))
    results.write(tmp_path / "later", record.model_copy(update={"began": "2026-11-20T15:00:00"}))
    with pytest.raises(LabError, match=r"headlines holds another run, which began at 2026-11-20T00:00:00: give this"):
        published.publish(tmp_path / "later", "headlines", folder)
    assert published.publish(tmp_path / "later", "headlines-later", folder).exists()
    assert "**2 runs (days: 1, machines: 1): no headline yet" in (folder / "headlines.md").read_text()
