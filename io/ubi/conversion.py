"""UBI files as a log of one row per impression, in a temporary file, with an account of every line.

All documents of a page come together by its query_id, in parts on disk, so that memory is bounded.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from posbias.core.errors import SchemaError
from posbias.io.engines.engine import Engine
from posbias.io.logs import Log
from posbias.io.owned import temporary_files
from posbias.io.scan import FILE, ROW, reading, scan_lines
from posbias.io.sources import Source, find_sources
from posbias.io.ubi.fates import DAMAGED, REASONS, USED, Fate
from posbias.io.ubi.pages import Settled, settle
from posbias.io.ubi.records import ACTION, FATE, read_records
from posbias.io.ubi.rules import QUERY_ID, UbiRules

_PART = "posbias_part"
_BYTES_PER_PART = 256 << 20  # of text, of which the fields that are read take a fraction
_COMPRESSION_RATIO = 10  # UBI repeats itself
_SHOWN = 3
_MOSTLY = 0.5


def convert(log: Log, rules: UbiRules, engine: Engine) -> tuple[Log, dict[str, Any]]:
    """Make a log of UBI files.

    Returns:
        The log, in the engine's directory for temporary files, and the account of all lines for the manifest: `lines`,
        those `used` by what they are, those `not_used` by reason, and the `other_actions` by name.

    Raises:
        SchemaError: lines are damaged and bad rows stop the run; or nothing was shown; or most pages contradict
            themselves.
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
    settled: list[Settled] = []
    for folder in sorted(raw.iterdir()):
        found = settle(pl.read_parquet(folder / "*.parquet"), rules)
        with temporary_files(engine.scratch):
            found.rows.write_parquet(made / f"{folder.name}.parquet", compression="lz4")
        settled.append(replace(found, rows=found.rows.clear()))
    lines = pl.concat([found.fates for found in settled]).group_by(FATE, ACTION).agg(lines=pl.len().cast(pl.Int64))
    account = _account(lines)
    _judge(log, rules, engine, settled, account)
    sources = tuple(find_sources([str(made)]))
    plain = replace(log.request, ubi=None, rules=replace(log.request.rules, position_base=1))
    return replace(log, request=plain, sources=sources), account


def _records(source: Source, number: int, rules: UbiRules) -> pl.LazyFrame:
    return read_records(scan_lines(source).with_columns(pl.lit(number, pl.UInt32).alias(FILE)), rules)


def _account(lines: pl.DataFrame) -> dict[str, Any]:
    counts = dict(lines.group_by(FATE).agg(pl.col("lines").sum()).iter_rows())
    others = lines.filter(pl.col(FATE) == Fate.OTHER_ACTION).sort("lines", ACTION, descending=[True, False])
    return {
        "lines": int(lines["lines"].sum()),
        "used": {name: int(counts.get(fate, 0)) for fate, name in USED.items()},
        "not_used": {reason: int(counts[fate]) for fate, reason in REASONS.items() if fate in counts},
        "other_actions": dict(others.select(ACTION, "lines").iter_rows()),
    }


def _judge(log: Log, rules: UbiRules, engine: Engine, settled: Sequence[Settled], account: dict[str, Any]) -> None:
    """Stop where the files are not what they should be."""
    where = log.request.inputs[0]
    damaged = [fate for fate in DAMAGED if REASONS[fate] in account["not_used"]]
    if damaged and engine.on_bad_rows == "error":
        raise SchemaError(_describe_damage(log, rules, damaged, account))
    pages, contradicting = (sum(getattr(found, name) for found in settled) for name in ("pages", "contradicting"))
    if contradicting > _MOSTLY * pages:
        raise SchemaError(
            f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries or "
            "hit lists, two documents at one position, or one at two. A query_id is one results page; too many of them "
            f"are not. {_in_words(account)}"
        )
    if account["used"]["queries"]:
        return
    advice = "Nothing that was shown could be read."
    if rules.impressions == "hits":
        advice = (
            "No query has a hit list (query_response_hit_ids). If the log has impression events, say "
            "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
        )
    raise SchemaError(f"{where}: {advice} {_in_words(account)}")


def _in_words(account: dict[str, Any]) -> str:
    reasons = ", ".join(f"{lines:,} x {reason}" for reason, lines in account["not_used"].items())
    return f"Of {account['lines']:,} lines: {reasons}."


def _describe_damage(log: Log, rules: UbiRules, damaged: Sequence[Fate], account: dict[str, Any]) -> str:
    said = ["Some lines are no UBI documents:"]
    for fate in damaged:
        reason = REASONS[fate]
        said.append(f"  {account['not_used'][reason]:,} x {reason}: {'; '.join(_places(log, rules, fate))}")
    said.append("Mend the files, or leave these lines out and have them counted with --on-bad-rows drop.")
    return "\n".join(said)


def _places(log: Log, rules: UbiRules, fate: Fate) -> list[str]:
    found: list[str] = []
    for number, source in enumerate(log.sources):
        rows = _records(source, number, rules).filter(pl.col(FATE) == fate).select(ROW).head(_SHOWN - len(found))
        found += [f"{source.path} line {row}" for row in rows.collect(engine="streaming")[ROW]]
        if len(found) >= _SHOWN:
            break
    return found
