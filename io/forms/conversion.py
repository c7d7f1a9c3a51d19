"""Raw files as a log of one row per impression, in temporary files, with an account of every line.

All records of a page, or of a visit, come together by its id, in parts on disk, so that memory is bounded.
"""

import shutil
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import polars as pl

from posbias.core.errors import LogFormatError, SchemaError
from posbias.io.engines.engine import Engine
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import OUTCOME, JoinedClicks
from posbias.io.log.raw import ACTION, RawReader, Resolved
from posbias.io.log.rejects import check_dropped
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.temporary.files import temporary_files

_PART, _LINES = "posbias_part", "lines"
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
    parts, lines, fatal = list[Resolved](), list[pl.DataFrame](), list[pl.DataFrame]()
    is_fatal = pl.col(OUTCOME).is_in([*map(int, reader.outcomes.fatal)])
    for folder in sorted(raw.iterdir()):
        written = pl.scan_parquet(sorted(folder.glob("*.parquet")), hive_partitioning=False, glob=False)
        part = reader.resolve(written.collect())
        with temporary_files(engine.scratch):
            part.rows.write_parquet(made / f"{folder.name}.parquet", compression="lz4")
        lines.append(part.outcomes.group_by(OUTCOME, ACTION).agg(pl.len().cast(pl.Int64).alias(_LINES)))
        damaged = part.outcomes.filter(is_fatal).sort(FILE, ROW)
        fatal.append(damaged.group_by(OUTCOME, maintain_order=True).head(_SHOWN))
        parts.append(replace(part, rows=part.rows.select(pl.len()), outcomes=damaged.clear()))
    shutil.rmtree(raw)
    rows, counts = (
        sum(part.rows.item() for part in parts),
        sum((Counter(part.counts) for part in parts), Counter[str]()),
    )
    account = _account(pl.concat(lines), rows, counts, reader)
    where, reasons = log.request.inputs[0], reader.outcomes.reasons
    if engine.on_bad_rows == "error":
        _stop_at_fatal_lines(log, reader, pl.concat(fatal), account)
    fatal_reasons = {reasons[outcome] for outcome in reader.outcomes.fatal}
    dropped = {why: number for why, number in account.not_used.items() if why in fatal_reasons}
    check_dropped(where, dropped, account.lines, log.request.max_bad_rows, reader.unit)
    reader.judge(where, rows, counts, account)
    examples = [example for part in parts for example in part.examples]
    clicks = JoinedClicks.of(pl.concat(part.clicks for part in parts), examples)
    clicks.check(where)
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


def _account(lines: pl.DataFrame, rows: int, counts: Counter[str], reader: RawReader) -> RawLines:
    """The account of all lines."""
    numbers = dict(lines.group_by(OUTCOME).agg(pl.col(_LINES).sum()).iter_rows())
    others = lines.filter(pl.col(OUTCOME) == reader.outcomes.other_action).drop_nulls(ACTION)
    others = others.group_by(ACTION).agg(pl.col(_LINES).sum()).sort(_LINES, ACTION, descending=[True, False])
    return RawLines(
        lines=sum(numbers.values()),
        used={name: numbers.get(outcome, 0) for outcome, name in reader.outcomes.used.items()},
        not_used={
            reason: numbers[outcome] for outcome, reason in reader.outcomes.reasons.items() if outcome in numbers
        },
        other_actions=dict(others.iter_rows()),
        positions=reader.positions(rows, counts),
    )


def _stop_at_fatal_lines(log: Log, reader: RawReader, fatal: pl.DataFrame, account: RawLines) -> None:
    fatal = fatal.sort(OUTCOME, FILE, ROW)
    if not fatal.height:
        return
    said = [f"Some {reader.unit} cannot be read as {reader.title}:"]
    for outcome in fatal[OUTCOME].unique(maintain_order=True):
        first: list[tuple[int, int]] = fatal.filter(pl.col(OUTCOME) == outcome).head(_SHOWN).select(FILE, ROW).rows()
        places = "; ".join(f"{log.sources[file].path} {reader.unit[:-1]} {row}" for file, row in first)
        why = reader.outcomes.reasons[outcome]
        said.append(f"  {account.not_used[why]:,} x {why}: {places}")
    said.append(f"Fix the files or the options, or drop these {reader.unit} with --on-bad-rows drop.")
    raise SchemaError("\n".join(said))
