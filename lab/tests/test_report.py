"""Results are written and read back; the report shows them and works in a real browser."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memlane_lab import report
from memlane_lab.common.errors import LabError
from memlane_lab.experiment import claims, plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.report import lead, page, tables
from memlane_lab.results import comparison, results, summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.results.summary import Judgement
from memlane_lab.statistics import stats
from tests import made_up


def _written(folder: Path, *found: ExperimentResult, **machine: object) -> Path:
    results.write(folder, made_up.record(*(each.experiment.name for each in found), **machine))
    for each in found:
        results.write_experiment(folder, each)
    return folder


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    made = made_up.result()
    record, found = results.read(_written(tmp_path, made))
    assert found == [made]
    assert record.experiments == ["made_up"]


def _appended(folder: Path, made: ExperimentResult) -> None:
    """As a run does it: the files are written before the first sample, then each sample is appended."""
    bare = [each.model_copy(update={"facts": {}}) for each in made.variants]
    _written(folder, made.model_copy(update={"samples": [], "variants": bare}))
    for count, sample in enumerate(made.samples, 1):
        results.append_sample(folder, made.model_copy(update={"samples": made.samples[:count]}), sample)


def test_appended_samples_are_read_and_tabulated_as_those_written_at_once(tmp_path: Path) -> None:
    made = made_up.result()
    _appended(tmp_path / "appended", made)
    _written(tmp_path / "at-once", made)
    assert results.read(tmp_path / "appended")[1] == [made]
    for name in ("samples.csv", "parties.csv", "series.csv"):
        texts = [(tmp_path / way / "made_up" / name).read_text() for way in ("appended", "at-once")]
        assert texts[0] == texts[1]


def test_appending_a_sample_leaves_the_others_alone(tmp_path: Path) -> None:
    made = made_up.result()
    _appended(tmp_path, made)
    place = tmp_path / "made_up"
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    more = made.samples[0].model_copy(update={"number": 100})
    results.append_sample(tmp_path, made.model_copy(update={"samples": [*made.samples, more]}), more)
    after = {path.name: path.read_bytes() for path in place.iterdir()}
    assert after["result.json"] == before["result.json"]
    assert all(after[name].startswith(before[name]) for name in before)
    assert len(after["samples.jsonl"]) > len(before["samples.jsonl"])


def test_a_crash_costs_the_sample_that_was_being_written_and_no_other(tmp_path: Path) -> None:
    made = made_up.result()
    _appended(tmp_path, made)
    journal = tmp_path / "made_up" / "samples.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert results.read(tmp_path)[1][0].samples == made.samples[:-1]
    results.write_experiment(tmp_path, made)
    assert not journal.exists()
    assert results.read(tmp_path)[1] == [made]


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    _written(tmp_path, made_up.result())
    stated = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(stated | {"format_version": 99}))
    with pytest.raises(LabError, match="format version 99, but this lab reads version 2"):
        results.read(tmp_path)
    with pytest.raises(LabError, match=r"no run\.json"):
        results.read(tmp_path / "nowhere")


def test_samples_are_tidy(tmp_path: Path) -> None:
    _written(tmp_path, made_up.result())
    with (tmp_path / "made_up" / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if row["measure"] == "throughput" and not row["flow"] and row["path"] == "memlane"]
    assert len(whole) == 16
    assert {row["unit"] for row in whole} == {"bit/s"}
    (failed,) = (row for row in rows if row["measure"] == "error")
    assert failed["value"] == "LabError: <the cable> broke"
    with (tmp_path / "made_up" / "series.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 33


def test_rows_stand_side_by_side_with_the_sources_figures() -> None:
    idle, loaded = summary.rows(made_up.result(), "throughput")
    assert idle.group == {"load": "0"}
    assert idle.cells["memlane"].interval is not None
    assert idle.cells["memlane"].interval.estimate == pytest.approx(4e9)
    assert idle.cells["none"].reason == "there is no veth here"
    contrast = idle.contrasts["memlane", "bridge"]
    assert contrast.ratio is not None
    assert contrast.ratio.estimate == pytest.approx(2.0)
    assert contrast.probability == pytest.approx(2 / 2**8)
    assert contrast.paper == pytest.approx(2.5)
    assert loaded.contrasts["memlane", "bridge"].paper is None


def _judgements(*expect: dict[str, Any], **made: Any) -> dict[str, Judgement]:
    judged = summary.verdicts(made_up.result(expect=expect, **made))
    return {each.what: each.judgement for each in judged}


def test_expectations_are_judged() -> None:
    idle, loaded = summary.verdicts(made_up.result())
    assert (idle.judgement, idle.wanted, idle.versus) == (Judgement.HOLDS, "at least 1.5 x", "bridge")
    assert (loaded.judgement, loaded.what) == (Judgement.FAILS, "memlane, load 90")
    unmeasured = {"measure": "rtt_p99", "at_most": 1.0, "where": {"path": "memlane"}}
    assert set(_judgements(unmeasured).values()) == {Judgement.UNDECIDED}


def test_a_bound_within_the_interval_decides_nothing() -> None:
    result = made_up.result(expect=[{"measure": "rtt_p50", "at_most": 1.0, "where": {"path": "memlane", "load": "0"}}])
    wavering = [
        each.model_copy(
            update={"values": {"rtt_p50": 1.0 + (each.labels["path"] == "memlane") * 0.1 * (-1) ** each.round}}
        )
        for each in result.good
    ]
    (verdict,) = summary.verdicts(result.model_copy(update={"samples": wavering}))
    assert (verdict.judgement, verdict.reason) == (Judgement.UNDECIDED, "the bound is within the interval")


def test_a_bound_of_nothing_is_a_bound() -> None:
    assert _judgements(
        {"measure": "rtt_p50", "at_most": 0, "alone": True, "where": {"path": "memlane", "load": "0"}}
    ) == {"memlane, load 0": Judgement.FAILS}


def test_few_samples_decide_nothing() -> None:
    (idle, _) = summary.verdicts(made_up.result(spread=(1.0, 1.0, 1.0, 1.0, 1.0)))
    assert (idle.judgement, idle.reason) == (Judgement.UNDECIDED, "5 samples are too few for an interval")


def test_a_missing_variant_does_not_vanish() -> None:
    expected = {"measure": "throughput", "at_least": 1.0, "where": {"path": "none", "load": "0"}}
    (verdict,) = summary.verdicts(made_up.result(expect=[expected]))
    assert verdict.judgement is Judgement.UNDECIDED
    assert verdict.reason == "none, load 0 is missing: there is no veth here"


def test_nothing_is_proved_against_a_dead_baseline() -> None:
    def values(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | ({"throughput": 0.0} if labels["path"] == "bridge" else {})

    (idle, _) = summary.verdicts(made_up.result(values))
    assert idle.judgement is Judgement.UNDECIDED
    assert idle.reason == "bridge, load 0 gave nothing in 8 of 8 rounds"


def test_costs_of_rounds_without_any_delivery_are_not_left_out() -> None:
    expected = {"measure": "cpu_per_gb", "at_most": 1.0, "where": {"path": "memlane", "load": "0"}}
    made = made_up.result(expect=[expected])
    samples = [
        each.model_copy(update={"values": {"throughput": 0.0}})
        if each.round < 3 and each.labels == {"path": "bridge", "load": "0"}
        else each
        for each in made.samples
    ]
    dead = made.model_copy(update={"samples": samples})
    (verdict,) = summary.verdicts(dead)
    assert (verdict.judgement, verdict.reason) == (
        Judgement.UNDECIDED, "bridge, load 0 delivered nothing in 3 of 8 rounds",
    )  # fmt: skip
    idle, _ = summary.rows(dead, "cpu_per_gb")
    assert idle.contrasts["memlane", "bridge"].ratio is None


def test_a_measure_may_be_judged_by_itself() -> None:
    alone = {"measure": "throughput", "at_least": 3e9, "alone": True, "where": {"path": "memlane"}}
    judged = summary.verdicts(made_up.result(expect=[alone]))
    assert [each.judgement for each in judged] == [Judgement.HOLDS, Judgement.FAILS]
    _, _, wanted, shown, _, word = tables.verdict(judged[0])
    assert (wanted, shown.main, word) == ("at least 3e+09 bit/s", "4.00 Gbit/s", "holds")


def test_who_is_better_than_what_holds_by_itself_is_said() -> None:
    def values(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | {"first_share": 5.8 if labels["path"] == "bridge" else 0.95}

    alone = {"measure": "first_share", "at_least": 0.9, "alone": True, "where": {"path": "memlane", "load": "0"}}
    (verdict,) = summary.verdicts(made_up.result(values, expect=[alone]))
    assert tables.verdict(verdict)[-1] == "holds: but bridge: 5.80"


def test_each_baseline_has_its_verdict() -> None:
    labels = ["bridge", "ovs-dpdk", "memlane"]
    made = made_up.result(vary={"path": labels, "load": [0]}, baseline=labels[:2], paper=[])
    assert [each.versus for each in summary.verdicts(made)] == ["bridge", "ovs-dpdk"]
    (row,) = summary.rows(made, "throughput")
    assert list(row.contrasts) == [("memlane", "bridge"), ("memlane", "ovs-dpdk")]


PRIMARY = {"measure": "throughput", "at_least": 1.5, "where": {"path": "memlane"}, "primary": True}


def test_primary_endpoints_are_corrected_for_their_number_and_others_are_not() -> None:
    exploratory = {"measure": "rtt_p50", "at_most": 2.0, "where": {"path": "memlane"}}
    (judged,) = page.judge([made_up.result(expect=[PRIMARY, exploratory])])
    # Eight of eight rounds lie on one side of the bound: p = 2 / 2^8; two endpoints are primary.
    assert [each.probability for each in judged] == [pytest.approx(2 / 2**8)] * 4
    assert [each.corrected for each in judged] == [pytest.approx(2 * 2 / 2**8)] * 2 + [None] * 2
    assert [each.judgement for each in judged] == ["holds", "fails", "holds", "holds"]


def test_a_primary_endpoint_that_is_not_beyond_chance_after_correction_is_undecided() -> None:
    (judged,) = page.judge([made_up.result(expect=[PRIMARY], spread=made_up.SPREAD[:6])])
    assert [each.corrected for each in judged] == [pytest.approx(2 * 2 / 2**6)] * 2
    assert [each.reason for each in judged] == ["6 rounds are too few for so many primary endpoints"] * 2
    (alone,) = page.judge([made_up.result(expect=[PRIMARY | {"primary": False}], spread=made_up.SPREAD[:6])])
    assert [each.judgement for each in alone] == ["holds", "fails"]


def test_more_than_eight_primary_endpoints_are_refused_and_few_rounds_advised_against() -> None:
    asked = made_up.result().experiment
    nine = Experiment.model_validate(made_up.STATED | {"expect": [PRIMARY] * 5})
    with pytest.raises(LabError, match="10 primary endpoints, but more than 8 cannot be decided together"):
        plan.variants(nine)
    named = Experiment.model_validate(made_up.STATED | {"expect": [PRIMARY]})
    assert "8 rounds are few for primary endpoints" in claims.advice(named)
    assert claims.advice(named.model_copy(update={"repeat": 12})) == claims.advice(asked) == ""


def test_the_rounds_of_one_placement_stand_beside_those_of_all() -> None:
    made = made_up.result()
    moved = [each.model_copy(update={"placement": "far" if each.round < 2 else "near"}) for each in made.samples]
    idle, _ = summary.verdicts(made.model_copy(update={"samples": moved}))
    assert (idle.rounds, idle.placement) == (8, "mixed")
    assert idle.one_placement is not None
    assert (idle.one_placement.placement, idle.one_placement.rounds) == ("near", 6)
    assert tables.verdict(idle)[-2] == "near: 2.00 x (n = 6)"


def test_a_table_with_small_and_large_values_gives_each_row_its_unit() -> None:
    table = tables.of_measure(made_up.result(), "throughput")
    assert table is not None
    assert (table.unit, table.rows[0][1][1].main) == ("Gbit/s", "4.00")

    def values(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | {"throughput": 5e6 if labels["load"] == "90" else 2e9}

    wide = tables.of_measure(made_up.result(values), "throughput")
    assert wide is not None
    assert (wide.unit, [row[1][0].main for row in wide.rows]) == ("", ["2.00 Gbit/s", "5.00 Mbit/s"])


def test_each_path_is_shown_at_the_placement_that_is_best_for_it() -> None:
    rates = {("bridge", "one"): 3e9, ("bridge", "two"): 1e9, ("memlane", "one"): 2e9, ("memlane", "two"): 6e9}

    def values(labels: dict[str, str]) -> dict[str, float]:
        return {"throughput": rates[labels["path"], labels["cpus"]], "rtt_p50": 1e-4, "cpu": 1.0}

    place = {"one": {"place": {"clients": 0, "servers": 0, "network": 0}}, "two": {}}
    vary = {"path": ["bridge", "memlane"], "cpus": place}
    made = made_up.result(values, vary=vary, best_over="cpus", paper=[], expect=[])
    (best,) = summary.at_best(made, "throughput")
    assert best.chosen == {"bridge": "one", "memlane": "two"}
    ratio = best.contrasts["memlane", "bridge"].ratio
    assert ratio is not None
    assert ratio.estimate == pytest.approx(2.0)
    table = tables.at_best(made, "throughput")
    assert table is not None
    assert table.rows[0][1].endswith("), one")
    assert "each at the best of cpus" in page.render(made_up.record("made_up"), [made])
    assert list(summary.at_best(made_up.result(), "throughput")) == []
    with pytest.raises(LabError, match="best_over: there is no dimension 'cpu'; there are: path, load"):
        plan.variants(Experiment.model_validate(made_up.STATED | {"best_over": "cpu"}))


def test_drops_are_shown_by_reason() -> None:
    result = made_up.result()
    assert tables.drops(result) is None
    first = result.variants[0].name
    samples = [
        each.model_copy(update={"drops": {"link-loss": 20.0, "same-port": 1.0} if each.variant == first else {}})
        for each in result.samples
    ]
    result = result.model_copy(update={"samples": samples})
    told = tables.drops(result)
    assert told is not None
    assert told.header == ["variant", "link-loss", "same-port"]
    assert told.rows[0][0] == first
    assert [cell.split()[0] for cell in told.rows[0][1:]] == ["20.0", "1.00"]
    assert all(cell.startswith("0") for cell in told.rows[1][1:])
    text = page.render(made_up.record("made_up"), [result])
    assert "dropped, by reason" in text
    assert "link-loss" in text


def test_the_page_says_all_that_is_known() -> None:
    text = page.render(made_up.record("made_up"), [made_up.result()])
    for word in (
        "Does the report show", "Made up &amp; &lt;escaped&gt;", "there is no veth here", "&lt;the cable&gt; broke",
        "Failed samples: 1 of 33", "source: 2.50 Gbit/s (theirs)", "standing alone", "fails", "Abacus",
        "memlane-lab run", "p = 0.0078", "tcp-segmentation-offload on", "7.2.12",
    ):  # fmt: skip
        assert word in text, word


def test_an_interrupted_run_is_reported_as_such() -> None:
    record = made_up.record("made_up").model_copy(update={"ended": None})
    text = page.render(record, [made_up.result().model_copy(update={"complete": False, "samples": []})])
    assert "this run was interrupted" in text
    assert "Not all samples were taken" in text


PROBE = """<script>
window.faults = [];
window.addEventListener("error", event => window.faults.push(event.message || String(event.target.src)), true);
window.addEventListener("load", () => setTimeout(() => {
  const seen = document.createElement("pre");
  seen.id = "seen";
  const drawn = [...document.querySelectorAll(".plotly-graph-div")].map(plot => ({
    name: plot.id,
    marks: plot.querySelectorAll(".main-svg .point, .main-svg .points path, .main-svg .js-line").length,
    width: plot.getBoundingClientRect().width,
    drawn: plot.querySelector(".main-svg").getBoundingClientRect().width,
    cut: [...plot.querySelectorAll("text")].filter(text => {
      const [own, all] = [text.getBoundingClientRect(), plot.getBoundingClientRect()];
      return own.width && (own.right > all.right + 1 || own.left < all.left - 1); }).map(text => text.textContent),
  }));
  const asked = performance.getEntriesByType("resource").map(entry => entry.name);
  seen.textContent = JSON.stringify({faults: window.faults, drawn: drawn, asked: asked,
    across: document.documentElement.scrollWidth, high: document.querySelector(".lead")?.getBoundingClientRect().top});
  document.body.append(seen);
}, 500));
</script>"""


@pytest.mark.real
def test_a_browser_draws_every_plot_without_a_network_or_an_error(tmp_path: Path) -> None:
    path = report.write(_written(tmp_path, made_up.result()))
    seen = _seen(tmp_path, path.read_text(), 1180)
    assert seen["faults"] == []
    assert seen["asked"] == []
    drawn = {plot["name"]: plot for plot in seen["drawn"]}
    assert list(drawn) == [f"plot-made_up-{number}" for number in range(6)]  # 3 measures, CPU, rates, latencies
    for plot in drawn.values():
        assert plot["marks"] > 0, plot
        assert 300 < plot["drawn"] <= plot["width"] + 1, plot


def _seen(folder: Path, page: str, width: int) -> dict[str, Any]:
    """A browser's picture of a page in a window of so many pixels; it has no narrow ones itself."""
    browser = shutil.which("chromium")
    assert browser, "chromium is missing: run `lab/install-packages test`"
    (folder / "probed.html").write_text(page.replace("<head>", f"<head>{PROBE}", 1))
    frame = (
        f"<body><iframe id=f src=probed.html width={width} height=3000></iframe><script>addEventListener('load', () => "
    )
    frame += "setTimeout(() => document.body.append(f.contentDocument.getElementById('seen')), 3000));</script></body>"
    (folder / "frame.html").write_text(frame)
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"),
        *("--dump-dom", "--window-size=1300,4000", "--allow-file-access-from-files"),
        *(f"--user-data-dir={folder / 'profile'}", f"file://{folder / 'frame.html'}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found, done.stderr
    seen: dict[str, Any] = json.loads(found[1].replace("&amp;", "&"))
    return seen


@pytest.mark.real
def test_nothing_is_cut_on_a_phone(tmp_path: Path) -> None:
    seen = _seen(tmp_path, page.render(made_up.record("made_up"), [_two_paths()]), 390)
    assert seen["faults"] == []
    assert seen["across"] <= 390
    assert seen["high"] < 400, "the sentence is on the first screen"
    assert len(seen["drawn"]) == 6
    for plot in seen["drawn"]:
        assert plot["drawn"] <= plot["width"] + 1 <= 390, plot
        assert plot["cut"] == [], plot


def _two_paths(**values: float) -> ExperimentResult:
    """As the demo has it: two paths, and nothing that is expected."""

    def made(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | values

    return made_up.result(made, expect=[], paper=[], vary={"path": ["bridge", "memlane"], "load": [0, 90]})


def test_a_report_of_two_paths_begins_with_one_sentence_and_one_picture() -> None:
    text = page.render(made_up.record("made_up"), [_two_paths()])
    sentence = (
        "Between two uml guests of this machine, memlane has, beside bridge: 2.0 times the received throughput "
        "(load 0) and 1.0 times the received throughput (load 90). Medians of 8 samples of"
    )
    assert sentence in text
    body = text[text.index("<body>") :]
    places = [body.index(words) for words in (sentence, 'class="picture"', "<h2", "order statistics")]
    assert places == sorted(places)
    assert body.count('class="bar"') == 4
    assert "calc((100% - 8em) * 0.5000)" in body, "the bridge's bar is half as long"
    assert "not quiet" not in body
    assert 'class="picture"' not in page.render(made_up.record("made_up"), [made_up.result()]), "it has expectations"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"others": 1.4}, "other programs took 1.4 of this machine&#39;s 2 CPUs while this was measured"),
        ({"steal": 0.5}, "the host below took 0.50 of this machine&#39;s 2 CPUs"),
    ],
)
def test_what_makes_the_figures_worthless_is_said_first(values: dict[str, float], told: str) -> None:
    text = page.render(made_up.record("made_up", cpus=2), [_two_paths(**values)])
    assert told in text
    assert text.index(told) < text.index("Between two uml guests")
    assert told.replace("&#39;", "'").partition(" of this")[0] in lead.spoiled(_two_paths(**values))
    assert "The machine was not quiet" in report.markdown(made_up.record("made_up"), [_two_paths(**values)])


def test_runs_that_differ_in_one_thing_are_compared(tmp_path: Path) -> None:
    def faster(labels: dict[str, str]) -> dict[str, float]:
        usual = made_up.usual(labels)
        return usual | {"throughput": usual["throughput"] * 1.5, "rtt_p50": usual["rtt_p50"] * 1.2}

    before = _written(tmp_path / "one", made_up.result())
    after = _written(tmp_path / "two", made_up.result(faster, repeat=7), versions={"memlane": "2"})
    changes, what = comparison.compare(before, after)
    assert what == 'version: memlane: "1" against "2"'
    assert {(each.measure, each.verdict) for each in changes} == {
        ("throughput", "better"), ("cpu_per_gb", "alike"), ("rtt_p50", "worse")
    }  # fmt: skip
    assert [table.row_count for table in comparison.tables(changes, what)] == [12]
    assert comparison.exit_code(changes) == 1
    same, _ = comparison.compare(before, before)
    assert {each.verdict for each in same if each.measure != "throughput"} == {"alike"}
    assert comparison.exit_code([each for each in same if each.measure != "throughput"]) == 0
    assert comparison.exit_code(same) == 3  # a spread of 10 % with 8 samples does not show 5 %


def test_two_builds_in_one_run_are_compared_within_rounds(tmp_path: Path) -> None:
    binary = tmp_path / "memlane"
    binary.touch()
    asked = plan.versus(made_up.result().experiment, binary)
    assert {each.labels["path"] for each in plan.variants(asked)} == {"memlane"}

    def values(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | {"throughput": 2e9 if labels["build"] == "after" else 1e9}

    stated = asked.model_dump(mode="json")
    changes = comparison.within([made_up.result(values, **stated)])
    found = {each.variant: (each.verdict, each.ratio) for each in changes if each.measure == "throughput"}
    assert found == {f"memlane, load {load}": ("better", stats.Interval(2.0, 2.0, 2.0)) for load in (0, 90)}


def test_runs_that_differ_in_more_are_not(tmp_path: Path) -> None:
    before = _written(tmp_path / "one", made_up.result())
    after = _written(tmp_path / "two", made_up.result(seconds=9), versions={"memlane": "2"})
    with pytest.raises(LabError, match=r"version: memlane.*experiment made_up"):
        comparison.compare(before, after)
    other = _written(tmp_path / "three", made_up.result(name="other"))
    with pytest.raises(LabError, match="only one of the two runs has measured made_up, other"):
        comparison.compare(before, other)


def test_what_two_runs_do_not_share_is_told() -> None:
    assert comparison.differences(made_up.record(), made_up.record("made_up")) == ""
    assert comparison.differences(made_up.record(), made_up.record(cpu="Pentium")).startswith("machine: cpu")


def test_the_tables_can_be_had_in_markdown() -> None:
    text = report.markdown(made_up.record("made_up"), [made_up.result()])
    assert "## What is expected: exploratory: 1 hold, 1 fail, 0 undecided" in text
    assert "| load | bridge | memlane | none | memlane / bridge |" in text
    rows = [line for line in text.splitlines() if line.startswith("| 90 | **2.00**")]
    assert rows[0].count("|") == 6
    assert "- none, load 90: there is no veth here" in text
    assert "\n\n\n" not in text
