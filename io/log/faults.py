"""Rows and columns that break the rules, and where they are."""

import csv
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED, Fault, RowFault, grouped, is_dated
from posbias.core.log.pages import HARMLESS, PageFault
from posbias.core.roles import plain, says_offset, says_page, says_rank
from posbias.core.schema import CLICK, DOC, IMPRESSIONS, NAMES_OF_COUNTS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.click_log import Log
from posbias.io.log.fault_table import faults_in
from posbias.io.log.lists import OURS, Finding, find_click_words, find_timestamp_format
from posbias.io.log.scan import FILE, ROW, TEXT_SEPARATORS, header_of, reading, scan_sources, schema_of, separator_of
from posbias.io.log.sources import read_end
from posbias.io.log.sql import sql_without
from posbias.io.results.conclusions import Reason

_IMPRESSIONS, _CLICKS = pl.col("impressions"), pl.col("clicks")
_ROWS = 200_000  # the first ones, that are looked at
_FEWEST_LATER = 0.01  # share of the rows on later pages
_AS_OFTEN = 0.2  # a later page has a result at its top, beside the first page
_MOST_PAGES = 1000
_MOST_PERIODS = 100  # different values of a column that divides sums: weeks, countries, devices
_SHOWN_AGAIN = 0.1  # share of the results of later pages that stand on the first page as well
_FEWEST_RANKS = 3  # different ones: fewer are as well numbers of clicks
_NEARLY_ALL = 0.99
_SEVERAL_CLICKS, _FEWEST_SUMS = 0.1, 20  # of the clicked rows, and how many at least
_LAST_ROW = 1 << 16  # bytes that hold it
_NO_CLICK = {"0", "0.0", "false", "f"}
_OF_SECOND = 0.5  # impressions at the top of lists, per impression one position below


def unused_count(log: Log) -> str | None:
    """A column that is called like a number of impressions and plays no role, where rows have no sessions."""
    if log.raw is not None or log.nesting is not None or log.has_sessions or log.roles.impressions is not None:
        return None
    names = [name for name in schema_of(log.sources[0]) if plain(name) in NAMES_OF_COUNTS]
    return next((name for name in names if name not in log.roles.columns()), None)


def summed_impressions(log: Log) -> str | None:
    """The unused column whose counts of impressions the clicks of a table of sums belong to, by name or by values.

    By values, it holds whole numbers, none below the clicks, and each document stands once at each position of a query,
    or once for each combination of what else has few values, such as weeks.
    """
    position, click = log.roles.position, log.roles.click
    apart = log.raw is not None or log.nesting is not None or log.click_sources
    if apart or log.has_sessions or log.roles.impressions is not None or position is None or click is None:
        return None
    named = unused_count(log)
    if named is not None:
        return named if are_sums(log, named, click) else None
    key = [*dict.fromkeys((*log.roles.query, *log.roles.doc, position))]  # without queries, the query is the document
    others = [
        name for name, dtype in schema_of(log.sources[0]).items() if name not in {*key, click} and not dtype.is_nested()
    ]
    rows = log.first_rows(_ROWS, (*key, click, *others)).drop_nulls(key)
    few = [name for name in others if rows[name].n_unique() <= _MOST_PERIODS]
    for name in (name for name in others if name not in log.roles.columns() and not rows[name].dtype.is_temporal()):
        parts = [*key, *(other for other in few if other != name)]
        count, clicks = (rows[column].cast(pl.Float64, strict=False) for column in (name, click))
        if (count >= clicks).all() and not rows.select(parts).is_duplicated().any() and are_sums(log, name, click):
            return name
    return None


def check_no_sums(log: Log) -> None:
    """Raise SchemaError if `--click-counts` is given for a table of sums: it makes one click of all clicks on a row.

    Raises:
        SchemaError: a column goes with the clicks as the impressions that were clicked, or no document stands at a
            position of a query twice, and many have several clicks there.
    """
    weight, click = log.roles.weight, log.roles.click
    if not log.request.rules.click_counts or log.nesting is not None or log.click_sources or click is None:
        return
    may_be = weight is not None and (plain(weight) in NAMES_OF_COUNTS or not log.has_sessions)
    count = weight if weight is not None and may_be and are_sums(log, weight, click) else summed_impressions(log)
    if count is None:
        if not log.has_sessions:
            _check_rows_repeat(log, click)
        return
    instead = f"instead of --click-counts{' and --weight-column' if count == weight else ''}"
    raise SchemaError(
        f"{log.sources[0].path}: {count!r} and {click!r} look like sums of impressions and of the clicks on them, and "
        f"--click-counts takes each row for one click at most. Use --impressions {shlex.quote(count)} --click "
        f"{shlex.quote(click)}, {instead}. If they are none, write the clicks as 0 and 1."
    )


def _check_rows_repeat(log: Log, click: str) -> None:
    """Raise SchemaError where no document stands at a position of a query twice, and many have several clicks there."""
    position = () if log.roles.position is None else (log.roles.position,)
    key = [*dict.fromkeys((*log.roles.query, *log.roles.doc, *position))]
    rows = log.first_rows(_ROWS, (*key, click))
    clicks = rows[click].cast(pl.Float64, strict=False).fill_null(0)
    clicked, several = int((clicks > 0).sum()), int((clicks > 1).sum())
    if several >= max(_SEVERAL_CLICKS * clicked, _FEWEST_SUMS) and not rows.select(key).is_duplicated().any():
        raise SchemaError(
            f"{log.sources[0].path}: each document stands once at each position of a query, and {several:,} of "
            f"{clicked:,} clicked rows have several clicks. These are sums that lack their impressions, and "
            "--click-counts would take each row for one impression. Add how often each was shown, and name that column "
            "(--impressions COLUMN)."
        )


def are_sums(log: Log, impressions: str, clicks: str) -> bool:
    """Whether two columns hold whole numbers, impressions >= clicks, that differ, and some rows several clicks."""
    counts = pl.col(impressions).alias("impressions"), pl.col(clicks).alias("clicks")
    with reading(log.sources):
        answer = (
            scan_sources(log.sources)
            .select(count.cast(pl.Float64, strict=False) for count in counts)
            .drop_nulls()
            .select(
                ((_IMPRESSIONS.floor() == _IMPRESSIONS) & (_IMPRESSIONS >= _CLICKS)).all()
                & (_CLICKS > 1).any()
                & (_IMPRESSIONS.min() != _IMPRESSIONS.max())
            )
            .collect(engine="streaming")
        )
    return bool(answer.item())


def undeclared_page(log: Log) -> tuple[Finding, float] | None:
    """A column that seems to number pages, or to count the results above them, beside positions that begin anew.

    Returns:
        What it looks like, with the options that say so, and the share of the rows that are on later pages; None where
        there is no such column, or where an option names one.
    """
    position = log.roles.position
    of_lines = log.raw is not None and log.raw.of_lines
    if log.roles.page is not None or log.request.roles.no_page or of_lines or position is None:
        return None
    played = set(log.roles.columns()).difference(log.roles.session)
    for name, dtype in schema_of(log.sources[0]).items():
        is_offset = says_offset(name)
        if name in played or dtype.is_nested() or not (is_offset or says_page(name)):
            continue
        queries = () if log.roles.no_query else log.roles.query
        keys = [key for key in (*log.roles.session, *queries) if key != name]
        rows = log.first_rows(_ROWS, (name, position, *keys, *log.roles.doc))
        rows = _with_numbers(log, rows, name, position).drop_nulls((name, position))
        finding = _begins_anew(rows, name, position, is_offset=is_offset)
        if finding is not None and _goes_on(rows, name, keys, log.roles):
            return finding
    return None


def _with_numbers(log: Log, rows: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Rows whose columns of these names hold numbers, as the log writes them; null where there is none."""
    texts = [name for name in names if rows.schema[name] == pl.String]
    others = pl.col(name for name in names if name not in texts).cast(pl.Float64, strict=False)
    return rows.with_columns(others, *(log.request.rules.values.number(pl.col(name)) for name in texts))


def _goes_on(rows: pl.DataFrame, page: str, keys: Sequence[str], roles: Roles) -> bool:
    """Whether later pages show other documents than the first one, as far as sessions say what belongs together.

    A column that counts the searches of a visit begins positions anew as well: but there, a query that is searched
    again shows its documents again.
    """
    docs, is_later = [*keys, *roles.doc], pl.col(page) > pl.col(page).min()
    later, first = rows.filter(is_later), rows.filter(~is_later)
    with_first = (
        later.join(first.select(keys).unique(), on=keys, how="semi") if roles.session and keys else later.clear()
    )
    if 2 * with_first.height < later.height:
        return page not in roles.session
    shown_again = with_first.join(first.select(docs).unique(), on=docs, how="semi")
    return shown_again.height <= _SHOWN_AGAIN * with_first.height


def _begins_anew(rows: pl.DataFrame, name: str, position: str, *, is_offset: bool) -> tuple[Finding, float] | None:
    """Whether slots on later pages are those of the first one; None also where the column numbers no pages."""
    if not rows.height:
        return None
    page, slot = rows[name].to_numpy(), rows[position].to_numpy()
    first, top = page.min(), slot.min()
    later = page[page > first]
    if first not in {0, 1} or not len(later) or not np.isfinite(page).all() or (page % 1).any():
        return None
    size, step = int(slot.max() - top) + 1, int(later.min() - first)
    numbers_pages = step == 1 and later.max() <= _MOST_PAGES
    counts_results = step >= max(size, 2) and not ((later - first) % step).any()
    if not (counts_results if is_offset else numbers_pages):
        return None
    at_top, share = slot == top, len(later) / len(page)
    if share < _FEWEST_LATER or at_top[page > first].mean() < _AS_OFTEN * at_top[page == first].mean():
        return None
    in_words = "the place in the list" if position.startswith(OURS) else repr(position)
    size, base = 1 if is_offset else size, int(first)
    counts = "the number of results above the page" if size == 1 else "the number of the results page"
    usual = 0 if size == 1 else 1
    first_page = () if base == usual else ("--page-base", str(base))
    options = ("--page", name, "--page-size", str(size), *first_page)
    return Finding(f"{name!r} looks like {counts}, and {in_words} begins anew on each", options, certain=False), share


def check_slots(log: Log) -> None:
    """Raise SchemaError if positions begin anew on each of several pages of one list of results.

    Raises:
        SchemaError: they do, by a column that numbers pages and that no option names.
    """
    undeclared = undeclared_page(log)
    if undeclared is None:
        return
    finding, later = undeclared
    _, column, _, size, *_ = finding.options
    per_page = "" if size == "1" else f", if a page holds {size} results"
    raise SchemaError(
        f"{log.request.where}: results of later pages ({later:.0%} of the rows) would count as top positions: "
        f"{finding.text}. Use {shlex.join(finding.options)}{per_page}. If {column!r} is something else, use --page "
        "none."
    )


def clicked_rank(log: Log) -> int | None:
    """The number of the topmost rank, where the click column seems to hold the rank of the clicked result.

    It stands in the row of that result alone, or in every row of its page. A number of clicks is neither as large as
    the position, nor the same down a page.
    """
    roles, click = log.roles, log.roles.click
    apart = log.raw is not None or log.click_sources or roles.impressions is not None
    if apart or click is None or click.startswith(OURS):
        return None
    position = roles.position or ""
    rows = log.first_rows(_ROWS, (click, position, *roles.session))
    if rows.schema[click].is_nested() or rows.schema[click] == pl.Boolean:
        return None
    rows = _with_numbers(log, rows, click, position).drop_nulls(position)
    filled = rows.drop_nulls(click)
    if not filled.height:
        return None
    rank, at = filled[click].to_numpy(), filled[position].to_numpy()
    usual, declared = log.request.rules.position_base, log.request.rules.click_ranks
    top = int(rank.min()) if rank.min() in {0, 1} else usual
    if declared is not None:  # a page may have no click at the top
        top = top if rank.max() - declared > rows[position].to_numpy().max() - usual else declared
    if len(np.unique(rank)) >= _FEWEST_RANKS:
        distance = np.median(rank - at)
        if (rank - at == distance).mean() >= _NEARLY_ALL:
            return usual + int(distance)
        if roles.session and _same_down_pages(rows, click, roles.session):
            return top
    is_flag = len(filled) == len(rows) and np.isin(rank, (0, 1)).all()
    return top if says_rank(click) and not is_flag else None


def _same_down_pages(rows: pl.DataFrame, click: str, session: Sequence[str]) -> bool:
    """Whether a column above 0 is the same in every row of a page, on nearly all pages of several rows."""
    pages = rows.group_by(session).agg(
        pl.len().alias("posbias_rows"),
        pl.col(click).n_unique().alias("posbias_values"),
        pl.col(click).max().alias("posbias_largest"),
    )
    clicked = pages.filter(pl.col("posbias_rows") > 2, pl.col("posbias_largest") > 0)  # noqa: PLR2004 - two may be equal
    return clicked.height >= _FEWEST_RANKS and (clicked["posbias_values"] == 1).sum() >= _NEARLY_ALL * clicked.height


def clicks_in_rows(log: Log, impressions: pl.LazyFrame) -> tuple[str, ...]:
    """The options for a log with a row of each impression and another one of its click; none for other logs.

    Args:
        log: it.
        impressions: some whole pages, canonical.
    """
    click = log.roles.click
    if log.nesting is not None or log.click_sources or click is None or click.startswith(OURS):
        return ()
    rows = impressions.filter(pl.col(REJECTED) == 0).group_by(SESSION, QUERY, DOC, POSITION)
    twice = rows.agg(pl.len().alias("rows"), pl.col(CLICK).n_unique()).filter(pl.col("rows") > 1)
    differ = twice.select((pl.col(CLICK) > 1).mean()).collect(engine="streaming").item()
    no, *yes = log.first_rows(_ROWS, (click,))[click].cast(pl.String).drop_nulls().unique().sort().to_list() or [""]
    if differ is None or differ < _NEARLY_ALL or len(yes) != 1 or no.lower() not in _NO_CLICK:
        return ()
    return "--impression-where", f"{click}={no}", "--click-where", f"{click}={yes[0]}"


def shown_at(impressions: pl.LazyFrame) -> dict[int, int]:
    """Impressions by position, those of faulty rows among them."""
    number = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = impressions.drop_nulls(POSITION).group_by(POSITION).agg(number).collect(engine="streaming")
    return dict(counts.iter_rows())


def is_top(position: int, shown: Mapping[int, int]) -> bool:
    """Whether lists begin with a position: a list has its first place about as often as its second."""
    return shown.get(position, 0) >= _OF_SECOND * shown.get(position + 1, 0) > 0


def check_no_ranks(log: Log) -> None:
    """Raise SchemaError if a click column holds ranks, of which the topmost, 0, would be no click.

    Raises:
        SchemaError: it does.
    """
    top, declared = clicked_rank(log), log.request.rules.click_ranks
    if top is None or top == declared:
        return
    if declared is not None:
        raise SchemaError(
            f"{log.request.where}: clicks would be misplaced: column {log.roles.click!r} (--click) counts ranks from "
            f"{top}, beside the positions. Use --click-ranks {top}, not {declared}."
        )
    counts = " instead of --click-counts" if log.request.rules.click_counts else ""
    raise SchemaError(
        f"{log.request.where}: clicks would be lost or misplaced: column {log.roles.click!r} (--click) looks like the "
        f"rank of the clicked result, counted from {top}, and a click is 0 or 1, or a number of clicks. Use "
        f"--click-ranks {top}{counts}: the row at that position is clicked, and an empty cell means no click."
    )


def doubts(log: Log) -> list[Reason]:
    """The faults that the columns of a log show, before a row is counted."""
    guessed = " ".join(f"{flag} {shlex.quote(column)}" for flag, column in log.guessed)
    count = unused_count(log)
    option = f"--impressions {shlex.quote(count or '')}"
    return faults_in({"guessed": guessed, "unused_count": count, "option_of_count": option})


CLICKED_TWICE = "a clicked result is one row as an impression and another one as a click"
_SHOWN = 3
_WITH_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_SAMPLED = 10_000  # rows of one fault


_FAULTS: dict[int, Fault] = {fault: fault for fault in (*RowFault, *PageFault)}
_BESIDE: dict[int, str] = {RowFault.CLICKS_ABOVE_IMPRESSIONS: "impressions", RowFault.SLOT_BELOW_PAGE: "page"}


def reason(code: int) -> str:
    """A fault in words, as it stands in messages and in the manifest."""
    return _FAULTS[code].words


_HARMLESS_REASONS = frozenset(map(reason, HARMLESS))


def describe_row_faults(log: Log, counts: Mapping[int, int], read: int) -> list[str]:
    """The lines of a message about faulty rows: each reason with its first rows, and what to do."""
    total = sum(counts.values())
    lines = [f"{total:,} of {read:,} rows are not valid:"]
    for code in sorted(counts):
        lines.append(f"  {counts[code]:,} x {reason(code)}: {'; '.join(_places(log, code))}")
        advice = _ADVICE[code](log) if code in _ADVICE else _FAULTS[code].advice
        lines += [f"    {advice}"] if advice else []
    lines += [_NULL_CLICKS] if _mostly_null_clicks({reason(code): rows for code, rows in counts.items()}) else []
    lines += cut_off(log)
    return [*lines, "Fix the log, or drop these rows with --on-bad-rows drop."]


def cut_off(log: Log) -> list[str]:
    """Sentences on text files whose last row has no line break, and fewer fields than there are columns."""
    sentences = list[str]()
    for source in log.sources:
        is_plain = source.format in TEXT_SEPARATORS and not source.compressed and source.copy is None
        last = read_end(source, _LAST_ROW).rpartition(b"\n")[2].decode(errors="replace") if is_plain else ""
        if last and len(next(csv.reader([last], delimiter=separator_of(source)))) < len(header_of(source)):
            sentences.append(f"{source.path} ends in the middle of a row: it seems to be cut off.")
    return sentences


def without_sessions(log: Log, faulty: pl.DataFrame) -> str:
    """Advice where only a few sessions are no page: their id may be unknown. Empty for others, or a named column.

    Args:
        log: where they stand.
        faulty: `session` of those that are no page.
    """
    apart = len(log.roles.session) != 1 or log.request.roles.session or log.click_sources or log.raw_sources
    if not 0 < faulty.height <= _SHOWN or apart or log.nesting is not None:
        return ""
    names = ", ".join(map(repr, faulty[SESSION].sort()))
    without = sql_without(log.roles.session[0])
    return f"only {names} cannot be one page: is the id unknown there? --model pbm needs no sessions: {without}"


def check_dropped(where: str, dropped: Mapping[str, int], total: int, most: float, what: str = "rows") -> None:
    """Check that what is left out because it breaks the contract is a small part of the log.

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
    excess = f"--on-bad-rows drop would leave out {lost:,} of {total:,} {what} ({_percent(lost / total)})"
    lines = [f"{where}: {excess}, and at most {_percent(most)} may be left out (--max-bad-rows {most:g}):"]
    lines += [f"  {rows:,} x {why}" for why, rows in bad.items()]
    lines += [_NULL_CLICKS] if _mostly_null_clicks(bad) else []
    lines.append("Fix the log, or raise --max-bad-rows if the rest is still a fair part of what was shown.")
    raise SchemaError(*lines)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _mostly_null_clicks(dropped: Mapping[str, int]) -> bool:
    return 2 * dropped.get(reason(RowFault.CLICK_MISSING), 0) > sum(dropped.values())


_NULL_CLICKS = "If an empty click cell means no click, use --null-click 0."


def describe_page_faults(log: Log, counts: Mapping[int, int], examples: pl.DataFrame, *, dropped: bool) -> list[str]:
    """The lines of a message about faulty sessions: each reason with the first of its examples, and what to do.

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
    instead = without_sessions(log, examples) if examples.height == sum(counts.values()) else ""
    if PageFault.REPEATED_DOC in counts:
        repeated = examples.filter(pl.col(REJECTED) == PageFault.REPEATED_DOC).head(_SAMPLED).select(SESSION)
        with reading([*log.sources, *log.click_sources]):
            options = clicks_in_rows(log, log.impressions.join(repeated.lazy(), on=SESSION, how="semi"))
        instead = f"{CLICKED_TWICE}: use {shlex.join(options)}" if options else instead
    lines += [f"{instead[0].upper()}{instead[1:]}."] if instead else dict.fromkeys(advice)
    if PageFault.REPEATED_DOC in counts and not instead and log.request.duplicate_docs == "error":
        lines.append(
            "If the log was exported twice, or a page may show a document twice, use --duplicate-docs first (or keep, "
            "with --model pbm)."
        )
    lines.append(
        "More than half of the rows are on such pages, too many to drop."
        if dropped
        else "If only some pages are damaged, drop them with --on-bad-rows drop."
    )
    return lines


def _places(log: Log, code: int) -> list[str]:
    played = [getattr(log.roles, role) for role in (_FAULTS[code].role, _BESIDE.get(code)) if role is not None]
    names = [name for names in played for name in ([names] if isinstance(names, str) else names or ())]
    ids = (*log.roles.session, *log.roles.ids()) if _FAULTS[code] is RowFault.TIMESTAMP_INVALID else ()
    places: list[str] = []
    for source in log.sources:
        with reading([source]):
            impressions = log.impressions_with_place(source)
            schema = impressions.collect_schema()
            names += [name for name in ids if name not in names and is_dated(schema.get(f"raw_{name}"))]
            raw = [f"raw_{name}" for name in names if not name.startswith("posbias_")]
            rows = (
                impressions.filter(pl.col(REJECTED) == code)
                .select(FILE, ROW, *(pl.col(name).cast(pl.String) if is_dated(schema[name]) else name for name in raw))
                .head(_SHOWN - len(places))
                .collect(engine="streaming")
            )
        for row in rows.iter_rows(named=True):
            values = ", ".join(f"{name} = {row[f'raw_{name}']!r}" for name in names if f"raw_{name}" in row)
            places.append(f"{row[FILE]} row {row[ROW]}" + (f" ({values})" if values else ""))
        if len(places) >= _SHOWN:
            break
    return places


def _base_advice(log: Log) -> str:
    base = log.request.rules.position_base
    with reading([*log.sources, *log.click_sources]):
        shown = shown_at(log.impressions)
    lowest = min(shown)
    smallest = lowest + base - 1
    if is_top(lowest, shown):
        return f"Positions count from {base} here. If this log counts from {smallest}, use --position-base {smallest}."
    return f"{smallest} seems to mean that the position is unknown: few rows have it, beside those of {smallest + 1}."


def _page_advice(log: Log) -> str:
    base = 1 if log.rules.paging is None else log.rules.paging.base
    return f"Pages count from {base} here. If this log counts them from {1 - base}, use --page-base {1 - base}."


def _time_advice(log: Log) -> str:
    how = _how_times_are_read(log)
    if log.request.roles.timestamp is not None or log.roles.timestamp is None:
        return how
    return f"{how} --timestamp none leaves {log.roles.timestamp!r} out, which no option names.".strip()


def _how_times_are_read(log: Log) -> str:
    unit = log.rules.time_unit
    declared = log.rules.values.timestamp_format
    if declared is not None:
        return f"They are read as {shlex.quote(declared)} here (--timestamp-format)."
    if is_dated(schema_of(log.sources[0]).get(log.roles.timestamp or "")):
        return (
            "Times beyond the years 1 to 9999 are shown as the nearest in them: are they infinite, or in other units?"
        )
    finding = find_timestamp_format(_faulty_values(log, log.roles.timestamp, RowFault.TIMESTAMP_INVALID))
    if finding is not None:
        return _with_options(finding)
    return "" if unit is None else f"Numbers are read as {unit.words} here, as most of the first rows say."


def _with_options(finding: Finding) -> str:
    """A finding as advice."""
    sentence = f"{finding.text[0].upper()}{finding.text[1:]}"
    return f"{sentence}: use {'' if finding.certain else 'the right one of them, e.g. '}{shlex.join(finding.options)}."


def _faulty_values(log: Log, column: str | None, code: int) -> list[str]:
    """The values of a text column in rows of one fault, each once, of a sample."""
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
    """The option for clicks that are counts: what it is depends on whether impressions are counts too."""
    finding = find_click_words(_faulty_values(log, log.roles.click, RowFault.CLICK_INVALID))
    if finding is not None:
        return _with_options(finding)
    count = log.roles.weight if log.roles.weight and plain(log.roles.weight) in NAMES_OF_COUNTS else unused_count(log)
    if count is None or log.request.rules.click_counts:
        return RowFault.CLICK_INVALID.advice
    instead = ", instead of --weight-column" if count == log.roles.weight else ""
    return f"If a row adds up impressions and clicks, use --impressions {count} --click {log.roles.click}{instead}."


def _comma_advice(code: int, log: Log) -> str:
    """The option for numbers with a comma or a point, where it is these marks that are wrong with them."""
    values = _faulty_values(log, getattr(log.roles, _FAULTS[code].role), code)
    has_option = log.rules.values.decimal_comma
    if values and all(re.match(grouped("," if has_option else "."), value) for value in values):
        mark, what = ("commas", "leave out") if has_option else ("points", "use")
        return f"If {mark} stand between thousands here, {what} --decimal ,."
    if values and not has_option and all(_WITH_COMMA.fullmatch(value) for value in values):
        return "If numbers have a comma before their fraction here, use --decimal ,."
    return _FAULTS[code].advice


_ADVICE: dict[int, Callable[[Log], str]] = {
    RowFault.CLICK_INVALID: _click_advice,
    RowFault.POSITION_BELOW_BASE: _base_advice,
    RowFault.PAGE_INVALID: _page_advice,
    RowFault.POSITION_NOT_WHOLE: partial(_comma_advice, RowFault.POSITION_NOT_WHOLE),
    RowFault.WEIGHT_INVALID: partial(_comma_advice, RowFault.WEIGHT_INVALID),
    RowFault.IMPRESSIONS_INVALID: partial(_comma_advice, RowFault.IMPRESSIONS_INVALID),
    RowFault.CLICKS_INVALID: partial(_comma_advice, RowFault.CLICKS_INVALID),
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
