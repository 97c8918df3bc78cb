"""Results as one table, for pandas, R and whatever reads Parquet: a row for each measure of each sample or flow.

| column | |
|---|---|
| experiment, guest, sample, round, variant, began, took, placement | of the sample |
| a column for each dimension | its label; none where the experiment has no such dimension |
| flow | empty: of the whole sample |
| measure, unit, value | in the base unit |
| error | of a failed sample, which has this row only |
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.experiment.experiment import measure
from memlane_lab.results.results import ExperimentResult, Sample


def rows(found: Sequence[ExperimentResult]) -> Iterator[dict[str, Any]]:
    """The rows of all experiments; all have the same keys."""
    dimensions = dict.fromkeys(name for result in found for name in result.experiment.vary)
    for result in found:
        for sample in result.samples:
            yield from _of_sample(result, sample, dict.fromkeys(dimensions) | sample.labels)


def _of_sample(result: ExperimentResult, sample: Sample, labels: dict[str, Any]) -> Iterator[dict[str, Any]]:
    common = {
        "experiment": result.experiment.name, "guest": result.guest, "sample": sample.number, "round": sample.round,
        "variant": sample.variant, "began": sample.began, "took": sample.took, "placement": sample.placement, **labels,
    }  # fmt: skip
    if sample.error is not None:
        yield common | {"flow": "", "measure": "", "unit": "", "value": None, "error": sample.error}
    told = [("", sample.values), *((flow.name, flow.values) for flow in sample.flows)]
    for flow, values in told:
        for name, value in values.items():
            yield common | {"flow": flow, "measure": name, "unit": measure(name).unit, "value": value, "error": None}


def to_frame(found: Sequence[ExperimentResult]) -> Any:  # noqa: ANN401
    """The rows as a DataFrame of pandas."""
    try:
        import pandas
    except ImportError as error:
        raise LabError("a table of all samples needs pandas: pip install 'memlane-lab[papers]'") from error
    frame = pandas.DataFrame(rows(found))
    return frame.assign(began=pandas.to_datetime(frame["began"], errors="coerce")) if len(frame) else frame


def write(found: Sequence[ExperimentResult], file: Path) -> Path:
    """Writes the table as Parquet, or as CSV, by the file's ending."""
    if file.suffix not in {".parquet", ".csv"}:
        raise LabError(f"{file} names no kind of table that can be written: its ending is .parquet or .csv")
    frame = to_frame(found)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv":
        frame.to_csv(file, index=False)
        return file
    try:
        frame.to_parquet(file, index=False)
    except ImportError as error:
        raise LabError("Parquet needs pyarrow: pip install 'memlane-lab[papers]'") from error
    return file
