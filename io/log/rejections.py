"""Messages about rejected rows and pages: reasons, places and advice."""

import csv
import re
import shlex
from collections.abc import Iterator, Mapping

import polars as pl

from posbias.core.errors import SchemaError, plural
from posbias.core.log.impressions import REJECTED, Rejection, RowRejection, has_date, thousands_pattern
from posbias.core.log.pages import HARMLESS, PageRejection, find_shifted_pages
from posbias.core.roles import is_count_name
from posbias.core.schema import NO_SUM_OF_RANKS, SESSION
from posbias.io.log.click_log import Log
from posbias.io.log.faults import (
    click_row_options,
    faults_in,
    impressions_by_position,
    is_top,
    rounded_id,
    summed_impressions,
)
from posbias.io.log.lists import Finding, find_click_words, find_timestamp_format, holds_times
from posbias.io.log.scan import FILE, ROW, TEXT_SEPARATORS, header_of, reading, schema_of, separator_of
from posbias.io.log.sources import read_end
from posbias.io.log.sql import sql_negated, sql_of_click, sql_option, sql_without

CLICKED_TWICE = "a clicked result is one row as an impression and another one as a click"
_SHOWN = 3  # rows per reason
_LAST_ROW = 1 << 16  # bytes, at most
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_SAMPLED = 10_000  # rows per reason
_FIRST_ROWS = 1 << 20  # in which pages with another base of positions are looked for


_REJECTIONS: dict[int, Rejection] = {code: code for code in (*RowRejection, *PageRejection)}
_SECOND_ROLE: dict[int, str] = {
    RowRejection.CLICKS_ABOVE_IMPRESSIONS: "impressions",
    RowRejection.SLOT_BELOW_PAGE: "page",
}
"""Roles beside that of the rejection, whose values a message shows too."""


def why_rejected(code: int) -> str:
    """Return the reason of a rejection in words, as messages and manifests state it."""
    return _REJECTIONS[code].words


_HARMLESS_REASONS = frozenset(map(why_rejected, HARMLESS))


def describe_rejected_rows(log: Log, counts: Mapping[int, int], read: int) -> list[str]:
    """Return the lines of the message about invalid rows: each reason with its first rows and advice.

    Args:
        log: the log.
        counts: number of rows by `RowRejection`.
        read: number of rows read.
    """
    total = sum(counts.values())
    lines = [f"{total:,} of {read:,} rows are not valid:"]
    for code in sorted(counts):
        lines.append(f"  {counts[code]:,} x {why_rejected(code)}: {'; '.join(_places(log, code))}")
        advice = _advice(log, code)
        lines += [f"    {advice}"] if advice else []
    if log.roles.position not in log.roles.cell:
        lines += advice_on_most({why_rejected(code): rows for code, rows in counts.items()}, read)
    return [*lines, *truncation_sentences(log), "Fix the log, or drop these rows with --on-bad-rows drop."]


def truncation_sentences(log: Log) -> list[str]:
    """Return a sentence for each text file whose last row has no line break and lacks fields."""
    sentences = list[str]()
    for source in log.sources:
        is_plain = source.format in TEXT_SEPARATORS and not source.compressed and source.copy is None
        last = read_end(source, _LAST_ROW).rpartition(b"\n")[2].decode(errors="replace") if is_plain else ""
        if last and len(next(csv.reader([last], delimiter=separator_of(source)))) < len(header_of(source)):
            sentences.append(f"{source.path} ends in the middle of a row: it seems to be cut off.")
    return sentences


def advice_without_sessions(log: Log, faulty: pl.DataFrame) -> str:
    """Return advice about at most three invalid sessions, whose id may stand for unknown ones; otherwise "".

    Args:
        log: a flat log, whose column of sessions no option names.
        faulty: the invalid sessions, in the column `session`.
    """
    is_guessed = len(log.roles.session) == 1 and not log.request.roles.session
    is_flat = not (log.click_sources or log.raw_sources) and log.nesting is None
    if not (0 < faulty.height <= _SHOWN and is_guessed and is_flat):
        return ""
    names = ", ".join(map(repr, faulty[SESSION].sort()))
    without = sql_without(log.roles.session[0])
    return f"only {names} cannot be one page: is the id unknown there? --model pbm needs no sessions: {without}"


def check_dropped(where: str, dropped: Mapping[str, int], total: int, most: float, what: str = "rows") -> None:
    """Raise SchemaError if too many invalid rows are left out; rows with harmless reasons do not count.

    Args:
        where: the log, for the message.
        dropped: number of rows that are left out, by reason.
        total: number of rows of the log.
        most: largest share of invalid rows, 0 to 1 (--max-bad-rows).
        what: a word for rows.
    """
    bad = {why: rows for why, rows in dropped.items() if why not in _HARMLESS_REASONS}
    lost = sum(bad.values())
    if lost <= most * total:
        return
    excess = f"--on-bad-rows drop would leave out {lost:,} of {total:,} {what} ({_percent(lost / total)})"
    lines = [f"{where}: {excess}, and at most {_percent(most)} may be left out (--max-bad-rows {most:g}):"]
    lines += [f"  {rows:,} x {why}" for why, rows in bad.items()]
    lines += advice_on_most(bad, total)
    lines += {code.advice for code in (RowRejection.NULL_SESSION, RowRejection.NULL_QUERY) if code.words in bad}
    lines.append("Fix the log, or raise --max-bad-rows if the rest is still a fair part of what was shown.")
    raise SchemaError(*lines)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def advice_on_most(bad: Mapping[str, int], total: int) -> Iterator[str]:
    """Yield advice about missing clicks if most invalid rows have them, and positions if a third of all rows has them.

    Args:
        bad: number of invalid rows by reason.
        total: number of rows of the log.
    """
    if 2 * bad.get(why_rejected(RowRejection.CLICK_MISSING), 0) > sum(bad.values()):
        yield _NULL_CLICKS
    if 3 * bad.get(why_rejected(RowRejection.POSITION_NOT_WHOLE), 0) > total:
        yield NO_SUM_OF_RANKS


_NULL_CLICKS = "If an empty click cell means no click, use --null-click 0."


def describe_rejected_pages(log: Log, counts: Mapping[int, int], examples: pl.DataFrame, *, dropped: bool) -> list[str]:
    """Return the lines of the message about invalid sessions: each reason with its first example, and advice.

    Args:
        log: the log.
        counts: number of invalid sessions by `PageRejection`.
        examples: `session` and `rejected` of invalid sessions, not necessarily of all.
        dropped: whether invalid sessions are left out, and are too many.
    """
    lines = [f"{plural(sum(counts.values()), 'sessions')} cannot be one results page each:"]
    advice: list[str] = []
    for code in sorted(counts):
        sessions = examples.lazy().filter(pl.col(REJECTED) == code).select(SESSION)
        page = ""
        for source in log.sources:
            with reading([source]):
                rows = log.impressions_with_place(source).join(sessions, on=SESSION, how="semi", maintain_order="left")
                first = rows.select(FILE, ROW, SESSION).head(1).collect(engine="streaming")
            if first.height:
                file, row, session = first.row(0)
                page = f"{file} row {row} (session = {session!r})"
                break
        lines.append(f"  {counts[code]:,} x {why_rejected(code)}: {page}")
        row_is_page = log.nesting is not None and _REJECTIONS[code] is PageRejection.SEVERAL_QUERIES
        advice.append("If each row is a page, use --session none." if row_is_page else _REJECTIONS[code].advice)
    instead = advice_without_sessions(log, examples) if examples.height == sum(counts.values()) else ""
    if PageRejection.REPEATED_DOC in counts:
        repeated = examples.filter(pl.col(REJECTED) == PageRejection.REPEATED_DOC).head(_SAMPLED).select(SESSION)
        with reading([*log.sources, *log.click_sources]):
            rows = log.impressions.join(repeated.lazy(), on=SESSION, how="semi")
            rounded = faults_in(rounded_id(rows.collect(engine="streaming"), log))
            options = () if rounded else click_row_options(log, rows)
        instead = f"{CLICKED_TWICE}: use {shlex.join(options)}" if options else instead
        if rounded:
            return [*lines, *(reason.sentence for reason in rounded)]
    lines += [f"{instead[0].upper()}{instead[1:]}."] if instead else dict.fromkeys(advice)
    if PageRejection.REPEATED_DOC in counts and not instead and log.request.duplicate_docs == "error":
        lines.append(
            "If the log was exported twice, or a page may show a document twice, use --duplicate-docs first (or keep, "
            "with --model pbm)."
        )
    if PageRejection.REPEATED_POSITION in counts and not instead:
        lines.append("If a page has several lists, with positions of their own, name the list: --cell COLUMN.")
    lines.append(
        "More than half of the rows are on such pages, too many to drop."
        if dropped
        else "If only some pages are damaged, drop them with --on-bad-rows drop."
    )
    return lines


def _places(log: Log, code: int) -> list[str]:
    """Return file, row and invalid values of the first three rows with a reason."""
    roles = [role for role in (_REJECTIONS[code].role, _SECOND_ROLE.get(code)) if role is not None]
    columns = [getattr(log.roles, role) for role in roles]
    names = [name for names in columns for name in ([names] if isinstance(names, str) else names or ())]
    ids = (*log.roles.session, *log.roles.ids()) if _REJECTIONS[code] is RowRejection.TIMESTAMP_INVALID else ()
    places: list[str] = []
    for source in log.sources:
        with reading([source]):
            impressions = log.impressions_with_place(source)
            schema = impressions.collect_schema()
            names += [name for name in ids if name not in names and has_date(schema.get(f"raw_{name}"))]
            raw = [f"raw_{name}" for name in names if not name.startswith("posbias_")]
            rows = (
                impressions.filter(pl.col(REJECTED) == code)
                .select(FILE, ROW, *(pl.col(name).cast(pl.String) if has_date(schema[name]) else name for name in raw))
                .head(_SHOWN - len(places))
                .collect(engine="streaming")
            )
        for row in rows.iter_rows(named=True):
            values = ", ".join(f"{name} = {row[f'raw_{name}']!r}" for name in names if f"raw_{name}" in row)
            places.append(f"{row[FILE]} row {row[ROW]}" + (f" ({values})" if values else ""))
        if len(places) >= _SHOWN:
            break
    return places


def _advice_on_base(log: Log) -> str:
    """Return advice about positions below the base, by the positions of all rows."""
    base, column = log.request.rules.position_base, log.roles.position
    with reading([*log.sources, *log.click_sources]):
        shown = impressions_by_position(log.impressions)
    smallest, largest = min(shown) + base - 1, max(shown) + base - 1
    if smallest < largest < 0 and column is not None:
        return f"All positions are negative. If {largest} is the top, read them with {sql_negated(column)}."
    if is_top(min(shown), shown):
        return f"Positions count from {base} here. If this log counts from {smallest}, use --position-base {smallest}."
    if find_shifted_pages(log.impressions.head(_FIRST_ROWS).collect(engine="streaming"), log.roles.cell):
        return f"Some pages count from {smallest}, and most from {smallest + 1}: `posbias check` says which."
    few = f"few rows have it, beside those of {smallest + 1}"
    return f"{smallest} seems to mean that the position is unknown: {few}."


def _advice(log: Log, code: int) -> str:
    """Return advice about rows with a reason, or ""."""
    match code:
        case RowRejection.CLICK_INVALID:
            return _click_advice(log)
        case RowRejection.TIMESTAMP_INVALID:
            how, times = _timestamp_advice(log), log.roles.timestamp
            if log.request.roles.timestamp is not None or times is None:
                return how
            return f"{how} --timestamp none leaves {times!r} out, which no option names.".strip()
        case RowRejection.POSITION_BELOW_BASE:
            return _advice_on_base(log)
        case RowRejection.PAGE_INVALID:
            base = 1 if log.rules.paging is None else log.rules.paging.base
            return f"Pages count from {base} here. If this log counts them from {1 - base}, use --page-base {1 - base}."
        case _:
            return _number_advice(log, code) if code in _NUMBERS else _REJECTIONS[code].advice


def _timestamp_advice(log: Log) -> str:
    """Return how timestamps are parsed, or the option that would parse them."""
    declared, unit = log.rules.values.timestamp_format, log.rules.time_unit
    if declared is not None:
        return f"They are read as {shlex.quote(declared)} here (--timestamp-format)."
    if has_date(schema_of(log.sources[0]).get(log.roles.timestamp or "")):
        return (
            "Times beyond the years 1 to 9999 are shown as the nearest in them: are they infinite, or in other units?"
        )
    finding = find_timestamp_format(_faulty_values(log, log.roles.timestamp, RowRejection.TIMESTAMP_INVALID))
    if finding is not None:
        return _with_options(finding)
    return "" if unit is None else f"Numbers are read as {unit.words} here, as most of the first rows say."


def _with_options(finding: Finding) -> str:
    """Return a finding as advice to use its options."""
    sentence = f"{finding.text[0].upper()}{finding.text[1:]}"
    return f"{sentence}: use {'' if finding.certain else 'the right one of them, e.g. '}{shlex.join(finding.options)}."


def _faulty_values(log: Log, column: str | None, code: int) -> list[str]:
    """Return the distinct values of a text column in rows with a reason, of a sample of each file."""
    faulty_values = list[str]()
    for source in log.sources:
        impressions = log.impressions_with_place(source)
        if impressions.collect_schema().get(f"raw_{column}") != pl.String:
            return []
        with reading([source]):
            faulty = impressions.filter(pl.col(REJECTED) == code).head(_SAMPLED).select(f"raw_{column}")
            values = faulty.collect(engine="streaming").to_series()
        faulty_values += values.drop_nulls().unique(maintain_order=True).to_list()
    return faulty_values


def _click_advice(log: Log) -> str:
    """Return the option for clicks that are words, times, or counts beside counts of impressions."""
    values = _faulty_values(log, log.roles.click, RowRejection.CLICK_INVALID)
    finding = find_click_words(values)
    if finding is not None:
        return _with_options(finding)
    if holds_times(pl.Series(values, dtype=pl.String)):
        instead = " instead of --click" if log.request.roles.click else ""
        return f"If these are times of clicks, use {sql_option(sql_of_click(log.roles.click or ''))}{instead}."
    count = log.roles.weight if log.roles.weight and is_count_name(log.roles.weight) else summed_impressions(log)
    if count is None or log.request.rules.click_counts:
        return RowRejection.CLICK_INVALID.advice
    instead = ", instead of --weight-column" if count == log.roles.weight else ""
    options = ("--impressions", count, "--click", log.roles.click or "")
    return f"If a row adds up impressions and clicks, use {shlex.join(options)}{instead}."


def _number_advice(log: Log, code: int) -> str:
    """Return the option for numbers with a decimal comma, or with marks between thousands."""
    if _REJECTIONS[code] is RowRejection.POSITION_NOT_WHOLE and log.roles.position in log.roles.cell:
        return "The last --cell is taken to be the position. Name another column with --position."
    values = _faulty_values(log, getattr(log.roles, _REJECTIONS[code].role), code)
    has_option = log.rules.values.decimal_comma
    if values and all(re.match(thousands_pattern("," if has_option else "."), value) for value in values):
        mark, what = ("commas", "leave out") if has_option else ("points", "use")
        return f"If {mark} stand between thousands here, {what} --decimal ,."
    if values and not has_option and all(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return "If numbers have a comma before their fraction here, use --decimal ,."
    return _REJECTIONS[code].advice


_NUMBERS = (
    *(RowRejection.POSITION_NOT_WHOLE, RowRejection.WEIGHT_INVALID),
    *(RowRejection.IMPRESSIONS_INVALID, RowRejection.CLICKS_INVALID),
)
