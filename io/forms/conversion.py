"""Raw files as a log of one row per impression, in temporary files, with an account of every line.

All records of a page, or of a visit, come together by its id, in parts on disk, so that memory is bounded.
"""

import shutil
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl

from posbias.core.errors import LogFormatError, SchemaError
from posbias.io.engines.engine import Engine
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import OUTCOME, Example, JoinedClicks
from posbias.io.log.raw import ACTION, Outcomes, RawReader, Resolved
from posbias.io.log.rejects import check_dropped
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.temporary.files import temporary_files

_PART = "posbias_part"
_BYTES_PER_PART = 128 << 20  # of text; as rows with their ids it takes several times that
_OF_MEMORY = 32  # a part takes that fraction of the memory at most
_COMPRESSION_RATIO = 10  # raw files repeat themselves
_SHOWN = 3


def convert(log: Log, reader: RawReader, engine: Engine) -> tuple[Log, RawLines, JoinedClicks]:
    """Make a log of raw files.

    Returns:
        The log, in the engine's directory for temporary files, and the account of all lines for the manifest: `lines`,
        those `used` by what they are, those `not_used` by reason, which add up to them; the `other_actions` by name,
        and where the `positions` of the rows come from, if there are several ways. And what became of its clicks.

    Raises:
        SchemaError: lines are fatal, and bad rows stop the run; or there is no log in the files, or nothing at all,
            whether or not bad rows stop the run.
        LogFormatError: a file cannot be read.
    """
    raw, made = engine.scratch / "raw-records", engine.scratch / "raw"
    made.mkdir()
    n_parts = _parts_for(log, engine)
    records = pl.concat(
        [reader.records(source, number) for number, source in enumerate(log.sources)], how="vertical_relaxed"
    )
    key = pl.col(reader.key)
    part = pl.when(key.is_null()).then(pl.col(ROW).cast(pl.UInt64)).otherwise(key.hash()) % n_parts
    with _reading(log.sources, reader), temporary_files(engine.scratch):
        records.with_columns(part.cast(pl.Int64).alias(_PART)).sink_parquet(
            pl.PartitionBy(raw, key=_PART, include_key=False), compression="lz4", mkdir=True
        )
    if not raw.exists():
        raise SchemaError(f"{log.request.inputs[0]}: the log holds no {reader.unit}.")
    tally = _Tally(reader.outcomes)
    for folder in sorted(raw.iterdir()):
        written = pl.scan_parquet(sorted(folder.glob("*.parquet")), hive_partitioning=False, glob=False)
        resolved = reader.resolve(written.collect())
        with temporary_files(engine.scratch):
            resolved.rows.write_parquet(made / f"{folder.name}.parquet", compression="lz4")
        tally.add(resolved)
    shutil.rmtree(raw)
    account = tally.account(reader)
    if engine.on_bad_rows == "error":
        _stop_at_fatal_lines(log, reader, tally, account)
    reasons = reader.outcomes.reasons
    fatal = {reasons[outcome]: account.not_used.get(reasons[outcome], 0) for outcome in reader.outcomes.fatal}
    dropped = {why: lines for why, lines in fatal.items() if lines}
    check_dropped(log.request.inputs[0], dropped, account.lines, log.request.max_bad_rows, reader.unit)
    reader.judge(log.request.inputs[0], tally.rows, tally.counts, account)
    clicks = JoinedClicks.of(pl.concat(tally.clicks), tally.examples)
    clicks.check(log.request.inputs[0])
    return log.made_of_raw(find_sources([str(made)])), account, clicks


@contextmanager
def _reading(sources: Sequence[Source], reader: RawReader) -> Generator[None]:
    """Turn what cannot be read into an error that names the file, and the line where there are lines."""
    try:
        with reading(sources):
            yield
    except LogFormatError as error:
        broken = next(filter(None, map(_not_utf8, sources)), None) if reader.of_lines else None
        raise LogFormatError(broken or str(error)) from error


def _not_utf8(source: Source) -> str | None:
    """What is wrong with a file that is not UTF-8."""
    try:
        scan_lines(source).select(pl.col(LINE).str.len_bytes().sum()).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        damaged = pl.col(LINE).str.contains("\ufffd", literal=True)
        first = scan_lines(source, lossy=True).filter(damaged).select(ROW).head(1).collect(engine="streaming")
        return f"{source.path} line {first.item()}: is not UTF-8. Write the file as UTF-8." if first.height else None
    return None


def _parts_for(log: Log, engine: Engine) -> int:
    """How many parts the records are split into."""
    packed = ("parquet", "ipc")
    size = sum(
        source.bytes * (_COMPRESSION_RATIO if source.compressed or source.format in packed else 1)
        for source in log.sources
    )
    return 1 + size // min(_BYTES_PER_PART, max(engine.memory // _OF_MEMORY, 1))


@dataclass
class _Tally:
    """What is known after some parts.

    Attributes:
        outcomes: what can become of a line.
        lines: number of lines by outcome, and by action, of each part.
        fatal: the first lines with each fatal outcome, of each part.
        clicks: `Resolved.clicks` of each part.
        examples: some ids of clicks that are lost.
        rows: number of rows of the log.
        counts: what else is added up.
    """

    outcomes: Outcomes
    lines: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    fatal: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    clicks: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    examples: list[Example] = field(default_factory=list[Example])
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])

    def add(self, resolved: Resolved) -> None:
        """Count one more part."""
        self.lines.append(resolved.outcomes.group_by(OUTCOME, ACTION).agg(lines=pl.len().cast(pl.Int64)))
        fatal = resolved.outcomes.filter(pl.col(OUTCOME).is_in(list(map(int, self.outcomes.fatal))))
        self.fatal.append(fatal.sort(FILE, ROW).group_by(OUTCOME, maintain_order=True).head(_SHOWN))
        self.clicks.append(resolved.clicks)
        self.examples += resolved.examples
        self.rows += resolved.rows.height
        self.counts.update(resolved.counts)

    def account(self, reader: RawReader) -> RawLines:
        """The account of all lines."""
        lines = pl.concat(self.lines).group_by(OUTCOME, ACTION).agg(pl.col("lines").sum())
        counts = dict(lines.group_by(OUTCOME).agg(pl.col("lines").sum()).iter_rows())
        others = lines.filter(pl.col(OUTCOME) == self.outcomes.other_action)
        others = others.drop_nulls(ACTION).sort("lines", ACTION, descending=[True, False])
        return RawLines(
            lines=sum(counts.values()),
            used={name: counts.get(outcome, 0) for outcome, name in self.outcomes.used.items()},
            not_used={
                reason: counts[outcome] for outcome, reason in self.outcomes.reasons.items() if outcome in counts
            },
            other_actions=dict(others.select(ACTION, "lines").iter_rows()),
            positions=reader.positions(self.rows, self.counts),
        )


def _stop_at_fatal_lines(log: Log, reader: RawReader, tally: _Tally, account: RawLines) -> None:
    examples = pl.concat(tally.fatal).sort(OUTCOME, FILE, ROW)
    if not examples.height:
        return
    said = [f"Some {reader.unit} cannot be read as {reader.title}:"]
    for outcome in examples[OUTCOME].unique(maintain_order=True):
        first: list[tuple[int, int]] = examples.filter(pl.col(OUTCOME) == outcome).head(_SHOWN).select(FILE, ROW).rows()
        places = "; ".join(f"{log.sources[file].path} {reader.unit[:-1]} {row}" for file, row in first)
        why = reader.outcomes.reasons[outcome]
        said.append(f"  {account.not_used[why]:,} x {why}: {places}")
    said.append(f"Fix the files or the options, or drop these {reader.unit} with --on-bad-rows drop.")
    raise SchemaError("\n".join(said))
