"""Rows that break the contract: counted per reason, and shown with file, row and value.

Counting is part of the first reading. Rows are located by a second one, only when there are any.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial

import polars as pl

from posbias.core.column_names import plain
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED, Fault, RowFault
from posbias.core.log.pages import HARMLESS, PageFault
from posbias.core.schema import NAMES_OF_COUNTS, SESSION
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.misread import unused_count
from posbias.io.log.scan import FILE, ROW, reading
from posbias.io.log.written_values import find_click_words, find_timestamp_format

_SHOWN = 3
_WITH_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_SAMPLED = 10_000  # rows of one fault


_FAULTS: dict[int, Fault] = {fault: fault for fault in (*RowFault, *PageFault)}
_BESIDE: dict[int, str] = {RowFault.CLICKS_ABOVE_IMPRESSIONS: "impressions", RowFault.SLOT_BELOW_PAGE: "page"}


def reason(code: int) -> str:
    """A fault in words, as it stands in messages and in the manifest."""
    return _FAULTS[code].words


_HARMLESS_REASONS = frozenset(map(reason, HARMLESS))


def describe_row_faults(log: Log, counts: Mapping[int, int], read: int) -> str:
    """What is wrong with rows by themselves, each reason with its first rows, and what to do."""
    total = sum(counts.values())
    lines = [f"{total:,} of {read:,} rows are not valid:"]
    for code in sorted(counts):
        lines.append(f"  {counts[code]:,} x {reason(code)}: {'; '.join(_places(log, code))}")
        advice = _ADVICE[code](log) if code in _ADVICE else _FAULTS[code].advice
        lines += [f"    {advice}"] if advice else []
    lines += [_NULL_CLICKS] if _mostly_null_clicks({reason(code): rows for code, rows in counts.items()}) else []
    lines.append("Fix the log, or drop these rows with --on-bad-rows drop.")
    return "\n".join(lines)


def check_dropped(where: str, dropped: Mapping[str, int], total: int, most: float, what: str = "rows") -> None:
    """See that what is left out because it breaks the contract is a small part of the log.

    Args:
        where: the log, for the message.
        dropped: how many rows were left out, by reason in words.
        total: how many rows there are.
        most: the share of them that may be left out (--max-bad-rows).
        what: what rows are called.

    Raises:
        SchemaError: more would be left out.
    """
    bad = {why: rows for why, rows in dropped.items() if why not in _HARMLESS_REASONS}
    lost = sum(bad.values())
    if lost <= most * total:
        return
    found = f"--on-bad-rows drop would leave out {lost:,} of {total:,} {what} ({_percent(lost / total)})"
    lines = [f"{where}: {found}, and at most {_percent(most)} may be left out (--max-bad-rows {most:g}):"]
    lines += [f"  {rows:,} x {why}" for why, rows in bad.items()]
    lines += [_NULL_CLICKS] if _mostly_null_clicks(bad) else []
    lines.append("Fix the log, or raise --max-bad-rows if the rest is still a fair part of what was shown.")
    raise SchemaError("\n".join(lines))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _mostly_null_clicks(dropped: Mapping[str, int]) -> bool:
    return 2 * dropped.get(reason(RowFault.CLICK_MISSING), 0) > sum(dropped.values())


_NULL_CLICKS = "If an empty click cell means no click, say --null-click 0."


def describe_page_faults(log: Log, counts: Mapping[int, int], examples: pl.DataFrame, *, dropped: bool) -> str:
    """What is wrong with sessions, each reason with the first of its examples, and what to do.

    Args:
        log: where they stand.
        counts: number of sessions per `PageFault`.
        examples: `session` and `rejected` of some of them, or of all.
        dropped: whether faulty sessions are left out.
    """
    lines = [f"{sum(counts.values()):,} sessions cannot be one results page each:"]
    advice: list[str] = []
    for code in sorted(counts):
        lines.append(
            f"  {counts[code]:,} x {reason(code)}: {_first_page(log, examples.filter(pl.col(REJECTED) == code))}"
        )
        advice.append(_FAULTS[code].advice)
    lines += dict.fromkeys(advice)
    if PageFault.REPEATED_DOC in counts:
        lines.append("If a page may show a document twice, say --duplicate-docs first (or keep, with --model pbm).")
    lines.append(
        "More than half of the rows are on such pages, too many to drop."
        if dropped
        else "If only some pages are damaged, drop them with --on-bad-rows drop."
    )
    return "\n".join(lines)


def _places(log: Log, code: int) -> list[str]:
    played = [getattr(log.roles, role) for role in (_FAULTS[code].role, _BESIDE.get(code)) if role is not None]
    names = [name for names in played for name in ([names] if isinstance(names, str) else names)]
    found: list[str] = []
    for source in log.sources:
        with reading([source]):
            rows = (
                log.impressions_with_place(source)
                .filter(pl.col(REJECTED) == code)
                .select(FILE, ROW, *(f"raw_{name}" for name in names if not name.startswith("posbias_")))
                .head(_SHOWN - len(found))
                .collect(engine="streaming")
            )
        for row in rows.iter_rows(named=True):
            values = ", ".join(f"{name} = {row[f'raw_{name}']!r}" for name in names if f"raw_{name}" in row)
            found.append(f"{row[FILE]} row {row[ROW]}" + (f" ({values})" if values else ""))
        if len(found) >= _SHOWN:
            break
    return found


def _base_advice(log: Log) -> str:
    base = log.request.rules.position_base
    column = log.roles.position
    below = pl.col(f"raw_{column}").filter(pl.col(REJECTED) == RowFault.POSITION_BELOW_BASE)
    found = [
        log.impressions_with_place(source).select(below.cast(pl.Float64).min()).collect(engine="streaming").item()
        for source in log.sources
    ]
    smallest = min(position for position in found if position is not None)
    return f"Positions count from {base} here. If this log counts from {smallest:g}, say --position-base {smallest:g}."


def _page_advice(log: Log) -> str:
    base = 1 if log.rules.paging is None else log.rules.paging.base
    return f"Pages count from {base} here. If this log counts them from {1 - base}, say --page-base {1 - base}."


def _time_advice(log: Log) -> str:
    unit = log.rules.time_unit
    asked = log.rules.values.timestamp_format
    if asked is not None:
        return f"They are read as {shlex.quote(asked)} here (--timestamp-format)."
    found = find_timestamp_format(_faulty_values(log, log.roles.timestamp, RowFault.TIMESTAMP_INVALID))
    if found is not None:
        return _said_with_options(found)
    return "" if unit is None else f"Numbers are read as {unit.words} here, as most of the first rows say."


def _said_with_options(found: Finding) -> str:
    """What was recognised, as advice."""
    said = f"{found.said[0].upper()}{found.said[1:]}"
    return f"{said}: say {'' if found.certain else 'which one, e.g. '}{shlex.join(found.options)}."


def _faulty_values(log: Log, column: str | None, code: int) -> list[str]:
    """The values of a text column in rows of one fault, each once, of a sample."""
    found = list[str]()
    for source in log.sources:
        impressions = log.impressions_with_place(source)
        if impressions.collect_schema().get(f"raw_{column}") != pl.String:
            return []
        with reading([source]):
            faulty = impressions.filter(pl.col(REJECTED) == code).head(_SAMPLED).select(f"raw_{column}")
            values = faulty.collect(engine="streaming").to_series()
        found += values.drop_nulls().unique(maintain_order=True).to_list()
    return found


def _click_advice(log: Log) -> str:
    """The option for clicks that are counts: what it is depends on whether impressions are counts too."""
    found = find_click_words(_faulty_values(log, log.roles.click, RowFault.CLICK_INVALID))
    if found is not None:
        return _said_with_options(found)
    count = log.roles.weight if log.roles.weight and plain(log.roles.weight) in NAMES_OF_COUNTS else unused_count(log)
    if count is None or log.request.rules.click_counts:
        return RowFault.CLICK_INVALID.advice
    instead = ", instead of --weight-column" if count == log.roles.weight else ""
    return f"If a row adds up impressions and clicks, say --impressions {count} --click {log.roles.click}{instead}."


def _comma_advice(code: int, log: Log) -> str:
    """The option for numbers with a comma, where it is commas that are wrong with them."""
    values = _faulty_values(log, getattr(log.roles, _FAULTS[code].role), code)
    if values and not log.rules.values.decimal_comma and all(_WITH_COMMA.fullmatch(value) for value in values):
        return "If numbers have a comma before their fraction here, say --decimal ,."
    return _FAULTS[code].advice


_ADVICE: dict[int, Callable[[Log], str]] = {
    RowFault.CLICK_INVALID: _click_advice,
    RowFault.POSITION_BELOW_BASE: _base_advice,
    RowFault.PAGE_INVALID: _page_advice,
    RowFault.POSITION_NOT_WHOLE: partial(_comma_advice, RowFault.POSITION_NOT_WHOLE),
    RowFault.WEIGHT_INVALID: partial(_comma_advice, RowFault.WEIGHT_INVALID),
    RowFault.TIMESTAMP_INVALID: _time_advice,
}


def _first_page(log: Log, sessions: pl.DataFrame) -> str:
    for source in log.sources:
        with reading([source]):
            page = (
                log.impressions_with_place(source)
                .join(sessions.lazy().select(SESSION), on=SESSION, how="semi", maintain_order="left")
                .select(FILE, ROW, SESSION)
                .head(1)
                .collect(engine="streaming")
            )
        if page.height:
            file, row, session = page.row(0)
            return f"{file} row {row} (session = {session!r})"
    return ""
