"""UBI files as a log of one row per impression, in a temporary file, with an account of every line.

All documents of a page come together by its query_id, in parts on disk, so that memory is bounded.
"""

import shutil
from dataclasses import dataclass, field, replace

import polars as pl

from posbias.core.errors import SchemaError
from posbias.io.engines.engine import Engine
from posbias.io.log.log import Log
from posbias.io.log.rejects import check_dropped
from posbias.io.log.rows import UbiLines
from posbias.io.log.scan import FILE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.log.ubi_rules import QUERY_ID, UbiRules
from posbias.io.temporary.files import temporary_files
from posbias.io.ubi.outcomes import FATAL, REASONS, USED, Outcome
from posbias.io.ubi.pages import Resolved, resolve
from posbias.io.ubi.records import ACTION, OUTCOME, read_records

_PART = "posbias_part"
_BYTES_PER_PART = 256 << 20  # of text, of which the fields that are read take a fraction
_COMPRESSION_RATIO = 10  # UBI repeats itself
_SHOWN = 3
_MOSTLY = 0.5


def convert(log: Log, rules: UbiRules, engine: Engine) -> tuple[Log, UbiLines]:
    """Make a log of UBI files.

    Returns:
        The log, in the engine's directory for temporary files, and the account of all lines for the manifest: `lines`,
        those `used` by what they are, those `not_used` by reason, which add up to them; the `other_actions` by name,
        and where the `positions` of the rows come from.

    Raises:
        SchemaError: lines are `FATAL`, and bad rows stop the run; or nothing was shown, or most pages contradict
            themselves, whether or not bad rows stop the run.
        LogFormatError: a file cannot be read.
    """
    raw, made = engine.scratch / "ubi-records", engine.scratch / "ubi"
    made.mkdir()
    text = sum(source.bytes * (_COMPRESSION_RATIO if source.compressed else 1) for source in log.sources)
    n_parts = 1 + text // _BYTES_PER_PART
    records = pl.concat([_records(source, number, rules) for number, source in enumerate(log.sources)])
    part = pl.col(QUERY_ID).hash() % n_parts
    with reading(log.sources), temporary_files(engine.scratch):
        records.with_columns(part.cast(pl.Int64).alias(_PART)).sink_parquet(
            pl.PartitionBy(raw, key=_PART, include_key=False), compression="lz4", mkdir=True
        )
    tally = _Tally()
    for folder in sorted(raw.iterdir()):
        written = pl.scan_parquet(sorted(folder.glob("*.parquet")), hive_partitioning=False, glob=False)
        resolved = resolve(written.collect(), rules)
        with temporary_files(engine.scratch):
            resolved.rows.write_parquet(made / f"{folder.name}.parquet", compression="lz4")
        tally.add(resolved)
    shutil.rmtree(raw)
    account = tally.account()
    if engine.on_bad_rows == "error":
        _stop_at_fatal_lines(log, tally, account)
    fatal = {REASONS[outcome]: account.not_used.get(REASONS[outcome], 0) for outcome in FATAL}
    dropped = {why: lines for why, lines in fatal.items() if lines}
    check_dropped(log.request.inputs[0], dropped, account.lines, log.request.max_bad_rows, "lines")
    _judge(log, rules, tally, account)
    plain = replace(log.request, ubi=None, rules=replace(log.request.rules, position_base=1))
    return replace(log, request=plain, sources=tuple(find_sources([str(made)]))), account


@dataclass
class _Tally:
    """What is known after some parts.

    Attributes:
        lines: number of lines by outcome, and by action, of each part.
        fatal: the first lines with each fatal outcome, of each part.
        rows: number of rows of the log.
        by_ordinal: number of rows whose position is an ordinal.
        pages: number of pages.
        contradicting: number of pages that contradict themselves.
    """

    lines: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    fatal: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    rows: int = 0
    by_ordinal: int = 0
    pages: int = 0
    contradicting: int = 0

    def add(self, resolved: Resolved) -> None:
        """Count one more part."""
        self.lines.append(resolved.outcomes.group_by(OUTCOME, ACTION).agg(lines=pl.len().cast(pl.Int64)))
        fatal = resolved.outcomes.filter(pl.col(OUTCOME).is_in(list(map(int, FATAL))))
        self.fatal.append(fatal.sort(FILE, ROW).group_by(OUTCOME, maintain_order=True).head(_SHOWN))
        self.rows += resolved.rows.height
        self.by_ordinal += resolved.by_ordinal
        self.pages += resolved.pages
        self.contradicting += resolved.contradicting

    def account(self) -> UbiLines:
        """The account of all lines."""
        lines = pl.concat(self.lines).group_by(OUTCOME, ACTION).agg(pl.col("lines").sum())
        counts = dict(lines.group_by(OUTCOME).agg(pl.col("lines").sum()).iter_rows())
        others = lines.filter(pl.col(OUTCOME) == Outcome.OTHER_ACTION).sort("lines", ACTION, descending=[True, False])
        return UbiLines(
            lines=sum(counts.values()),
            used={name: counts.get(outcome, 0) for outcome, name in USED.items()},
            not_used={reason: counts[outcome] for outcome, reason in REASONS.items() if outcome in counts},
            other_actions=dict(others.select(ACTION, "lines").iter_rows()),
            positions={"from_hit_lists": self.rows - self.by_ordinal, "from_ordinals": self.by_ordinal},
        )


def _records(source: Source, number: int, rules: UbiRules) -> pl.LazyFrame:
    return read_records(scan_lines(source).with_columns(pl.lit(number, pl.UInt32).alias(FILE)), rules)


def _judge(log: Log, rules: UbiRules, tally: _Tally, account: UbiLines) -> None:
    """Stop where there is no log in the files."""
    where, pages, contradicting = log.request.inputs[0], tally.pages, tally.contradicting
    if contradicting > _MOSTLY * pages:
        raise SchemaError(
            f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries or "
            "hit lists, two documents at one position, or one at two. A query_id is one results page; too many of them "
            f"are not. {_in_words(account)}"
        )
    if tally.rows:
        return
    advice = "Nothing that was shown could be read."
    if rules.impressions == "hits":
        advice = (
            "No query has a hit list (query_response_hit_ids). If the log has impression events, say "
            "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
        )
    raise SchemaError(f"{where}: {advice} {_in_words(account)}")


def _in_words(account: UbiLines) -> str:
    reasons = ", ".join(f"{lines:,} x {reason}" for reason, lines in account.not_used.items())
    return f"Of {account.lines:,} lines: {reasons}."


def _stop_at_fatal_lines(log: Log, tally: _Tally, account: UbiLines) -> None:
    examples = pl.concat(tally.fatal).sort(OUTCOME, FILE, ROW)
    if not examples.height:
        return
    said = ["Some lines cannot be read as UBI:"]
    for outcome in examples[OUTCOME].unique(maintain_order=True):
        first: list[tuple[int, int]] = examples.filter(pl.col(OUTCOME) == outcome).head(_SHOWN).select(FILE, ROW).rows()
        places = "; ".join(f"{log.sources[file].path} line {row}" for file, row in first)
        said.append(f"  {account.not_used[REASONS[Outcome(outcome)]]:,} x {REASONS[Outcome(outcome)]}: {places}")
    said.append("Fix the files or the options, or drop these lines with --on-bad-rows drop.")
    raise SchemaError("\n".join(said))
