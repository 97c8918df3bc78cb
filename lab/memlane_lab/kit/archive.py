"""The archive of a kit: packed on the other machine, and read here as hostile.

    run.json                          the run and its machine
    another_machine/result.json       all samples
    another_machine/*.csv, raw/       the same as tables, and the logs of failed samples: for people, never read here

A reader unpacks nothing: it walks through the archive, keeps two files of bounded size in memory, and takes from them
only what this module names. The experiment's statement, titles and labels are our own; text is printable and bounded.
"""

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import told
from memlane_lab.experiment import experiment, plan
from memlane_lab.experiment.experiment import Experiment, known_measures
from memlane_lab.results import comparison, results
from memlane_lab.results.results import ExperimentResult, Missing, RunRecord, Sample, VariantRecord

MOST_PACKED, MOST_UNPACKED, MOST_FILE = 32 << 20, 256 << 20, 16 << 20
"""Bytes of an archive, of all that is in it, and of one file that is read."""
MOST_FILES = 4096
_MOST_SAMPLES, _MOST_ROUNDS, _MOST_LOG = 5000, 100, 1 << 18
_NAME = re.compile(r"(?:run\.json|[a-z_]+/result\.json|[a-z_]+/[a-z]+\.csv|[a-z_]+/raw/[A-Za-z0-9._ /-]{1,160})")
"""Names of files that a kit packs; none has a folder `..`, which is looked for apart."""
_EXPERIMENT = "another_machine"
_COMMIT = re.compile(r"[0-9a-f]{12}")


class Refused(LabError):
    """An archive that is no kit's, or not as a kit packs it; the text is one sentence."""


# ---- packing


def pack(folder: Path, file: Path) -> None:
    """Packs the results in `folder`."""
    record, _ = results.read(folder)
    clean = record.model_copy(update={"machine": _plain(record.machine), "commands": []})
    with file.open("wb") as out, gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed:
        size = 0
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
            add(archive, "run.json", clean.model_dump_json(indent=1).encode())
            for path in sorted((folder / _EXPERIMENT).rglob("*")):
                name = str(path.relative_to(folder))
                if path.is_symlink() or not path.is_file() or not _NAME.fullmatch(name) or len(name) > 99:
                    continue
                content = path.read_bytes()
                content = content[-_MOST_LOG:] if "/raw/" in name else content
                if (size := size + len(content)) < MOST_UNPACKED // 2:
                    add(archive, name, content)


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Adds a file that belongs to root and has no time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


_UNUSUAL = re.compile(r"[^A-Za-z0-9 .,:;()@+=#~_/'-]|(?<=:)//|\bwww\.")
"""Text that a page in Markdown could take for more than text."""
_LONGEST = 200


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A description with printable text alone."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(str(name)): _plain(each) for name, each in value.items()}
    return value


def plain(text: str) -> str:
    """One line of text without anything that Markdown or HTML would take for a mark."""
    return _UNUSUAL.sub("?", " ".join(text.split()))[:_LONGEST].strip()


# ---- reading


def read(file: Path) -> tuple[RunRecord, ExperimentResult]:
    """The run in an archive from outside; raises `Refused` with one sentence."""
    try:
        if (size := file.stat().st_size) > MOST_PACKED:
            raise Refused(f"{file} has {size} bytes: a kit's archive has {MOST_PACKED} at most")
        found = _files(file)
        record = _checked(file, "run.json", found["run.json"], _Record)
        result = _checked(file, _RESULT, found[_RESULT], _Result)
    except KeyError as error:
        raise Refused(f"{file} has no file {error.args[0]}: no kit has made it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"{file} cannot be read as a kit's archive: {error}") from None
    return _run(file, record, result)


_RESULT = f"{_EXPERIMENT}/result.json"
_BLOCK = 512


def _files(file: Path) -> dict[str, bytes]:
    """The files that are read, by name; all others are passed over."""
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    with gzip.open(file, "rb") as packed:
        for name, size in _headers(file, packed):
            if name in seen or len(seen) >= MOST_FILES:
                raise Refused(f"{file} has {name} twice, or more than {MOST_FILES} files")
            seen.add(name)
            wanted = name in {"run.json", _RESULT}
            if wanted and size > MOST_FILE:
                raise Refused(f"{name} in {file} has {size} bytes: {MOST_FILE} are the most")
            content = _read(file, packed, size, keep=wanted)
            if wanted:
                found[name] = content
            _read(file, packed, -size % _BLOCK, keep=False)
    return found


def _headers(file: Path, packed: gzip.GzipFile) -> Iterator[tuple[str, int]]:
    """Name and size of each file, by a POSIX ustar header (pax(1)); the caller passes over the content."""
    total = 0
    while any(block := packed.read(_BLOCK)):
        if len(block) < _BLOCK or block[257:262] != b"ustar":
            raise Refused(f"{file} is no tar archive of a kit")
        name = block[:100].split(b"\0")[0].decode("ascii", "replace")
        digits = block[124:136].strip(b"\0 ")
        if block[156:157] not in b"0\0" or block[345:346] != b"\0" or not re.fullmatch(rb"[0-7]{1,11}", digits):
            raise Refused(f"{file} has an entry that is no plain file: {plain(name)}")
        if not _NAME.fullmatch(name) or ".." in name.split("/"):
            raise Refused(f"{file} has a file that no kit packs: {plain(name)}")
        size = int(digits, 8)
        if (total := total + size + _BLOCK) > MOST_UNPACKED:
            raise Refused(f"{file} unpacks to more than {MOST_UNPACKED} bytes")
        yield name, size


def _read(file: Path, packed: gzip.GzipFile, size: int, *, keep: bool) -> bytes:
    kept = bytearray()
    while size > 0:
        if not (piece := packed.read(min(size, 1 << 20))):
            raise Refused(f"{file} ends in the middle of a file")
        size -= len(piece)
        if keep:
            kept += piece
    return bytes(kept)


Plain = Annotated[str, StringConstraints(max_length=_LONGEST), AfterValidator(lambda text: _only_plain(text))]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e18, le=1e18)]
Told = Annotated[dict[Plain, Plain], Field(max_length=40)]


def _only_plain(text: str) -> str:
    if plain(text) != text:
        raise ValueError("has characters that no kit writes")
    return text


class _Taken(BaseModel):
    """Base: other keys are left alone, and reach no page."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class _Machine(_Taken):
    cpu: Plain
    cpus: int = Field(ge=1, le=65_536)
    memory: Plain
    kernel: Plain
    hypervisor: bool
    governor: Plain
    caches: Plain
    huge_pages: Plain = Field(alias="huge pages")
    load_average: Plain = Field(alias="load average")
    commit: Plain
    lab_commit: Plain = Field(alias="lab commit")
    versions: Told
    images: Told = Field(alias="guests' images")
    prices: Annotated[dict[Plain, Number], Field(max_length=10)] = {}


class _Record(_Taken):
    format_version: Literal[2]
    guest: Literal["kvm", "tcg"]
    began: datetime
    machine: _Machine


class _Sample(_Taken):
    number: int = Field(ge=1, le=1_000_000)
    round: int = Field(ge=0, lt=_MOST_ROUNDS)
    variant: Annotated[str, StringConstraints(max_length=_LONGEST)]
    began: datetime
    placement: Literal["near", "far", "between", "moved", "unknown"]
    values: Annotated[dict[str, Number], Field(max_length=200)]
    error: Annotated[str, StringConstraints(max_length=MOST_FILE)] | None


class _Missing(_Taken):
    variant: Annotated[str, StringConstraints(max_length=_LONGEST)]
    reason: Annotated[str, StringConstraints(max_length=10_000)]


class _Result(_Taken):
    format_version: Literal[2]
    experiment: dict[str, Any]
    seed: int = Field(ge=0, le=1_000_000)
    complete: bool
    missing: Annotated[list[_Missing], Field(max_length=100)]
    samples: Annotated[list[_Sample], Field(min_length=1, max_length=_MOST_SAMPLES)]


_Model = TypeVar("_Model", bound=BaseModel)


def _checked(file: Path, name: str, content: bytes, model: type[_Model]) -> _Model:
    try:
        return model.model_validate(json.loads(content))
    except ValidationError as error:
        first = told(error).split("; ")[0]
        raise Refused(f"{name} in {file} does not fit its format: {plain(first)}") from None
    except (ValueError, RecursionError):
        raise Refused(f"{name} in {file} is not valid JSON") from None


def _run(file: Path, record: _Record, result: _Result) -> tuple[RunRecord, ExperimentResult]:
    """The run in our own words: of the archive are numbers, times, and plain text of the machine."""
    if not result.complete:
        raise Refused(f"{file} is of a run that was interrupted: let the kit measure to its end")
    for commit in (record.machine.commit, record.machine.lab_commit):
        if not _COMMIT.fullmatch(commit):
            raise Refused(f"{file} is of commit {commit}, which nobody else has: make the kit of a committed tree")
    ours = _statement(file, result)
    variants = {each.name: each for each in plan.variants(ours)}
    measures = known_measures()
    for sample in result.samples:
        if sample.variant not in variants or not set(sample.values) <= set(measures):
            raise Refused(f"{file} has a sample of a variant, or a measure, that this lab does not know")
    if len({each.number for each in result.samples}) != len(result.samples):
        raise Refused(f"{file} has two samples of one number")
    if len({(each.round, each.variant) for each in result.samples}) != len(result.samples):
        raise Refused(f"{file} has two samples of one variant in a round")
    absent = {each.variant: plain(each.reason) for each in result.missing if each.variant in variants}
    own = ExperimentResult(
        experiment=ours.model_copy(update={"repeat": max(each.round for each in result.samples) + 1}),
        file=f"lab/experiments/{_EXPERIMENT}.toml",
        guest=record.guest,
        seed=result.seed,
        complete=True,
        variants=[
            VariantRecord(name=each.name, labels=each.labels, setting={})
            for each in variants.values()
            if each.name not in absent
        ],
        missing=[Missing(variant=name, labels=variants[name].labels, reason=reason) for name, reason in absent.items()],
        samples=[
            Sample(
                number=each.number,
                round=each.round,
                variant=each.variant,
                labels=variants[each.variant].labels,
                began=_moment(each.began),
                took=0,
                placement=each.placement,
                placements=(each.placement, each.placement),
                values=each.values if each.error is None else {},
                error=None if each.error is None else plain(each.error),
            )
            for each in result.samples
            if each.variant not in absent
        ],
    )
    if not own.good:
        raise Refused(f"{file} has no good sample; the first failed because of: {own.failed[0].error}" if own.failed
                      else f"{file} has no sample")  # fmt: skip
    machine = record.machine.model_dump(by_alias=True)
    told_run = RunRecord(
        commands=["sudo ./memlane-kit"],
        guest=record.guest,
        began=_moment(record.began),
        machine=machine,
        experiments=[_EXPERIMENT],
    )
    return told_run, own


def _statement(file: Path, result: _Result) -> Experiment:
    """Our own statement of the experiment; raises if the kit had another."""
    ours = experiment.load(experiment.FOLDER / f"{_EXPERIMENT}.toml")
    try:
        theirs = Experiment.model_validate(result.experiment)
    except (ValidationError, RecursionError):
        raise Refused(f"{file} states an experiment that this lab cannot read") from None
    if theirs.name != ours.name or (changed := comparison.stated_differently(ours, theirs)):
        other = changed if theirs.name == ours.name else theirs.name
        raise Refused(f"{file} is of another experiment than this lab's {_EXPERIMENT}: {plain(other)}")
    return ours


def _moment(told_moment: datetime) -> str:
    try:
        return told_moment.astimezone(UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        raise Refused(f"the archive names a moment that is none: {plain(str(told_moment))}") from None
