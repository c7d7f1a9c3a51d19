"""Faults of a log: their table (`faults.toml`, whose head explains its fields), and faults that columns show."""

import operator
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.log.first_rows import exponent_of_counts, rounded_ids
from posbias.core.log.impressions import REJECTED
from posbias.core.roles import is_count_name, is_offset_name, is_page_name, is_rank_name
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.click_log import Log
from posbias.io.log.lists import RESERVED_PREFIX, Finding
from posbias.io.log.scan import reading, scan_sources, schema_of
from posbias.io.log.times import free_columns
from posbias.io.results.conclusions import FAULTS, STOP, Reason, Severity, in_words

Quantity = float | str | None
"""A number, a truth value or a text; None if unknown."""

Profile = Mapping[str, Quantity]
"""Quantities of a log, by name."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class LogFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `faults.toml`, whose head explains the fields."""

    severity: Severity
    when: tuple[str, ...]
    sentence: str
    advice: str = ""
    meaning: str = ""
    stop: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    figures: Mapping[str, str] = {}
    details: str = ""


TABLE: Sequence[tuple[str, LogFault]] = [(code, msgspec.convert(entry, LogFault)) for code, entry in FAULTS]
"""Codes with entries, in the order of messages."""


def faults_in(profile: Profile, stated: Iterable[str] = ()) -> list[Reason]:
    """Return the faults whose conditions hold, each code once; without those whose code is in `stated`."""
    reasons = dict[str, Reason]()
    for code, fault in TABLE:
        if not {code, *fault.unless}.isdisjoint((*stated, *reasons)) or not _all_hold(fault.when, profile):
            continue
        severity: Severity = STOP if fault.stop and _all_hold(fault.stop, profile) else fault.severity
        figures = {name: profile[quantity] for name, quantity in fault.figures.items()}
        sentence = in_words([fault.sentence, fault.advice], profile)
        reasons[code] = Reason(code, severity, sentence, figures, in_words([fault.details], profile))
    return [*reasons.values()]


def _all_hold(conditions: Iterable[str], profile: Profile) -> bool:
    """Evaluate conditions, `NAME` or `NAME < LIMIT`; a condition on an unknown quantity is False."""
    for condition in conditions:
        name, sign, limit = (*condition.split(), "", "")[:3]
        value = profile.get(name)
        if not value and (not sign or value is None):
            return False
        if sign and not _COMPARE[sign](value, profile[limit] if limit in profile else float(Fraction(limit))):
            return False
    return True


def rounded_id(rows: pl.DataFrame, log: Log) -> dict[str, Quantity]:
    """Return the first id among canonical impressions that a spreadsheet rounded, with its column, as quantities."""
    for role in (DOC, QUERY, SESSION):
        example = rounded_ids(rows[role]) if role in rows.columns else None
        if example is not None:
            return {"rounded_column": getattr(log.roles, role)[0], "rounded_id": example}
    return {}


_IMPRESSIONS, _CLICKS = pl.col("impressions"), pl.col("clicks")
_ROWS = 200_000  # the first rows, that are examined
_FEWEST_LATER = 0.01  # least share of rows on later pages
_AS_OFTEN = 0.2  # least rate of results at the top of later pages, relative to the first page
_MOST_PAGES = 1000
_ROWS_OF_COUNTS = 1 << 16  # the first rows, that are examined for counts
_OFTEN = 0.1  # least share of rows with several impressions, and of documents whose rows differ in their number
_BY_CHANCE = 12.0  # expected rows with fewer impressions than clicks; none by chance: probability below 1 in 100,000
_CERTAIN = 4.0  # standard errors: for a column that clicks do not depend on, probability below 1 in 10,000
_SHOWN_AGAIN = 0.1  # largest share of the results of later pages that stand on the first page as well
_FEWEST_RANKS = 3  # distinct ranks; fewer may be numbers of clicks
_NEARLY_ALL = 0.99
_TWO = 2  # rows may be equal by chance
_SEVERAL_CLICKS, _FEWEST_SUMS = 0.1, 20  # least share of clicked rows with several clicks, and least number of them
_NO_CLICK = {"0", "0.0", "false", "f"}
_CONSTANT = f"{RESERVED_PREFIX}constant"
_RATE_AT_TOP = 0.5  # least number of impressions at the top of lists, per impression one position below


def unused_count(log: Log) -> str | None:
    """Return an unused column named like a number of impressions, with a value above 1; None in a log of sessions."""
    if log.raw is not None or log.nesting is not None or log.has_sessions or log.roles.impressions is not None:
        return None
    names = [*filter(is_count_name, free_columns(log))]
    rows = log.first_rows(_ROWS, names).cast(pl.Float64, strict=False) if names else pl.DataFrame()
    return next((name for name in names if (rows[name] > 1).any()), None)


def impression_counts(log: Log) -> list[str]:
    """Return the unused columns that are numbers of impressions by their relation to the clicks.

    Their values are integers >= max(clicks, 1), many above 1. Either rows with fewer impressions than clicks would be
    expected by chance, or the values differ between rows of a document and clicks are about proportional to them, as
    they are not to a feature of documents, a day or a price.
    """
    roles, position, click = log.roles, log.roles.position, log.roles.click
    is_flat = log.raw is None and log.nesting is None and not log.click_sources
    if not is_flat or log.has_sessions or roles.impressions is not None or position is None or click is None:
        return []
    pair = [*dict.fromkeys((*roles.query, *roles.doc))]  # without queries, the query is the document
    names, found = free_columns(log), list[str]()
    rows = log.first_rows(_ROWS_OF_COUNTS, (*pair, position, click, *names))
    keys = {"pair": pl.struct(pair), POSITION: pl.col(position), CLICKS: rows[click].cast(pl.Float64, strict=False)}
    for name in names:
        counts = rows.select(**keys, impressions=pl.col(name).cast(pl.Float64, strict=False))
        possible = (_IMPRESSIONS.floor() == _IMPRESSIONS) & (pl.max_horizontal(_CLICKS, 1) <= _IMPRESSIONS)
        if not counts.select(possible.all() & ((_IMPRESSIONS > 1).mean() >= _OFTEN)).item():
            continue
        several = counts.filter(_CLICKS > 1)[CLICKS]
        expected = int(counts[IMPRESSIONS].sort().search_sorted(several).sum()) / counts.height  # below their clicks
        differ = (_IMPRESSIONS.n_unique() > 1).over("pair").mean() >= _OFTEN
        exponent, score = exponent_of_counts(counts) if counts.select(differ).item() else (0.0, 0.0)
        if expected > _BY_CHANCE or (1 / _TWO < exponent < _TWO and score > _CERTAIN):
            found.append(name)
    return found


def summed_impressions(log: Log) -> str | None:
    """Return the unused column of impressions of a table of sums, by its name or its values; None for other logs."""
    click, named = log.roles.click, unused_count(log)
    if log.click_sources or log.roles.position is None or click is None:
        return None
    if named is not None:
        return named if are_sums(log, named, click) or named in impression_counts(log) else None
    return next((name for name in impression_counts(log) if are_sums(log, name, click)), None)


def check_no_sums(log: Log) -> None:
    """Raise SchemaError if --click-counts, which makes one click of all clicks on a row, is given for a table of sums.

    A table of sums has a column of impressions that fits the clicks; or it shows no document at a position of a query
    twice, and many rows have several clicks.
    """
    weight, click = log.roles.weight, log.roles.click
    if not log.request.rules.click_counts or log.nesting is not None or log.click_sources or click is None:
        return
    is_candidate = weight is not None and (is_count_name(weight) or not log.has_sessions)
    count = weight if weight is not None and is_candidate and are_sums(log, weight, click) else summed_impressions(log)
    if count is None and log.has_sessions:
        return
    if count is None:
        position = () if log.roles.position is None else (log.roles.position,)
        key = [*dict.fromkeys((*log.roles.query, *log.roles.doc, *position))]
        rows = log.first_rows(_ROWS, (*key, click))
        clicks = rows[click].cast(pl.Float64, strict=False).fill_null(0)
        clicked, several = int((clicks > 0).sum()), int((clicks > 1).sum())
        if several < max(_SEVERAL_CLICKS * clicked, _FEWEST_SUMS) or rows.select(key).is_duplicated().any():
            return
        raise SchemaError(
            f"{log.sources[0].path}: each document stands once at each position of a query, and {several:,} of "
            f"{clicked:,} clicked rows have several clicks. These are sums that lack their impressions, and "
            "--click-counts would take each row for one impression. Add how often each was shown, and name that column "
            "(--impressions COLUMN)."
        )
    instead = f"instead of --click-counts{' and --weight-column' if count == weight else ''}"
    raise SchemaError(
        f"{log.sources[0].path}: {count!r} and {click!r} look like sums of impressions and of the clicks on them, and "
        f"--click-counts takes each row for one click at most. Use --impressions {shlex.quote(count)} --click "
        f"{shlex.quote(click)}, {instead}. If they are none, write the clicks as 0 and 1."
    )


def are_sums(log: Log, impressions: str, clicks: str) -> bool:
    """Return True if impressions are integers >= clicks and not all equal, and a row has several clicks."""
    counts = pl.col(impressions).alias("impressions"), pl.col(clicks).alias("clicks")
    possible = ((_IMPRESSIONS.floor() == _IMPRESSIONS) & (_IMPRESSIONS >= _CLICKS)).all()
    sums = possible & (_CLICKS > 1).any() & (_IMPRESSIONS.min() != _IMPRESSIONS.max())
    with reading(log.sources):
        numbers = scan_sources(log.sources).select(count.cast(pl.Float64, strict=False) for count in counts)
        return bool(numbers.drop_nulls().select(sums).collect(engine="streaming").item())


def undeclared_page(log: Log) -> tuple[Finding, float] | None:
    """Recognise a column of page numbers, or of the results above a page, beside positions that begin anew on each.

    Returns:
        The finding with its options, and the share of rows on later pages; None where there is no such column, or an
        option names one.
    """
    position = log.roles.position
    reads_lines = log.raw is not None and log.raw.reads_lines
    if log.roles.page is not None or log.request.roles.no_page or reads_lines or position is None:
        return None
    used = set(log.roles.columns()).difference(log.roles.session)
    for name, dtype in schema_of(log.sources[0]).items():
        is_offset = is_offset_name(name)
        if name in used or dtype.is_nested() or not (is_offset or is_page_name(name)):
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
    """Cast columns to numbers by the reading rules of the log; null for other values."""
    texts = [name for name in names if rows.schema[name] == pl.String]
    others = pl.col(name for name in names if name not in texts).cast(pl.Float64, strict=False)
    return rows.with_columns(others, *(log.request.rules.values.number(pl.col(name)) for name in texts))


def _goes_on(rows: pl.DataFrame, page: str, keys: Sequence[str], roles: Roles) -> bool:
    """Return True if later pages of a session and query show other documents than the first page.

    Positions also begin anew where a column counts the searches of a visit, but a repeated query repeats its documents.
    """
    docs, is_later = [*keys, *roles.doc], pl.col(page) > pl.col(page).min()
    later, first = rows.filter(is_later), rows.filter(~is_later)
    is_grouped = bool(roles.session and keys)
    with_first = later.join(first.select(keys).unique(), on=keys, how="semi") if is_grouped else later.clear()
    if 2 * with_first.height < later.height:
        return page not in roles.session
    shown_again = with_first.join(first.select(docs).unique(), on=docs, how="semi")
    return shown_again.height <= _SHOWN_AGAIN * with_first.height


def _begins_anew(rows: pl.DataFrame, name: str, position: str, *, is_offset: bool) -> tuple[Finding, float] | None:
    """Return the finding and the share of rows on later pages, if the column numbers pages with slots from the top."""
    if not rows.height:
        return None
    page, slot = rows[name].to_numpy(), rows[position].to_numpy()
    first, top = page.min(), slot.min()
    later = page[page > first]
    if first not in {0, 1} or not len(later) or not np.isfinite(page).all() or (page % 1).any():
        return None
    size, step = int(slot.max() - top) + 1, int(later.min() - first)
    numbers_pages = step == 1 and later.max() <= min(_MOST_PAGES, len(page) / _TWO)  # rather than rows of a small log
    counts_results = step >= max(size, 2) and not ((later - first) % step).any()
    if not (counts_results if is_offset else numbers_pages):
        return None
    at_top, share = slot == top, len(later) / len(page)
    if share < _FEWEST_LATER or at_top[page > first].mean() < _AS_OFTEN * at_top[page == first].mean():
        return None
    slots = "the place in the list" if position.startswith(RESERVED_PREFIX) else repr(position)
    size, base = 1 if is_offset else size, int(first)
    is_grid = size > 1 and not is_page_name(name.replace("row", ""))
    what = "the row of a grid" if is_grid else "the number of the results page"
    what = "the number of results above the page" if size == 1 else what
    default = 0 if size == 1 else 1
    first_page = () if base == default else ("--page-base", str(base))
    options = ("--cell", name) if is_grid else ("--page", name, "--page-size", str(size), *first_page)
    return Finding(f"{name!r} looks like {what}, and {slots} begins anew on each", options, certain=False), share


def check_slots(log: Log) -> None:
    """Raise SchemaError if positions begin anew on each page, which a column numbers and no option declares."""
    undeclared = undeclared_page(log)
    if undeclared is None:
        return
    finding, later = undeclared
    _, column, *paging = finding.options
    per_page = "" if paging[1:2] in ([], ["1"]) else f", if a page holds {paging[1]} results"
    raise SchemaError(
        f"{log.request.where}: results of later pages ({later:.0%} of the rows) would count as top positions: "
        f"{finding.text}. Use {shlex.join(finding.options)}{per_page}. If {column!r} is something else, use --page "
        "none."
    )


def clicked_rank(log: Log) -> int | None:
    """Return the number of the topmost rank, if the click column seems to hold the rank of the clicked result.

    The rank is in the row of that result alone, or in every row of its page. A number of clicks neither equals the
    position nor is constant on a page.
    """
    roles, click = log.roles, log.roles.click
    has_no_ranks = log.raw is not None or log.click_sources or roles.impressions is not None
    if has_no_ranks or click is None or click.startswith(RESERVED_PREFIX):
        return None
    position = roles.position or ""
    rows = log.first_rows(_ROWS, (click, position, *roles.session))
    if rows.schema[click].is_nested() or rows.schema[click] == pl.Boolean:
        return None
    rows = _with_numbers(log, rows, click, position).drop_nulls(position)
    filled = rows.drop_nulls(click)
    if not filled.height:
        return None
    rank, positions = filled[click].to_numpy(), filled[position].to_numpy()
    usual, declared = log.request.rules.position_base, log.request.rules.click_ranks
    top = int(rank.min()) if rank.min() in {0, 1} else usual
    if declared is not None:  # a page may have no click at the top
        top = top if rank.max() - declared > rows[position].to_numpy().max() - usual else declared
    if len(np.unique(rank)) >= _FEWEST_RANKS:
        distance = np.median(rank - positions)
        if (rank - positions == distance).mean() >= _NEARLY_ALL:
            return usual + int(distance)
        if roles.session:  # whether the value is constant on nearly all clicked pages of three or more rows
            value = pl.col(click)
            is_clicked_page = (pl.len() > _TWO) & (value.max() > 0)
            constant = rows.group_by(roles.session).agg(
                pl.when(is_clicked_page).then(value.n_unique() == 1).alias(_CONSTANT)
            )
            is_constant = constant[_CONSTANT].drop_nulls()
            if len(is_constant) >= _FEWEST_RANKS and is_constant.sum() >= _NEARLY_ALL * len(is_constant):
                return top
    is_flag = len(filled) == len(rows) and np.isin(rank, (0, 1)).all()
    return top if is_rank_name(click) and not is_flag else None


def click_row_options(log: Log, impressions: pl.LazyFrame) -> tuple[str, ...]:
    """Return the options for a log with a row for each impression and another row for its click; none for other logs.

    Args:
        log: the log.
        impressions: canonical impressions of whole pages.
    """
    click = log.roles.click
    if log.nesting is not None or log.click_sources or click is None or click.startswith(RESERVED_PREFIX):
        return ()
    rows = impressions.filter(pl.col(REJECTED) == 0).group_by(SESSION, QUERY, DOC, POSITION)
    twice = rows.agg(pl.len().alias("rows"), pl.col(CLICK).n_unique()).filter(pl.col("rows") > 1)
    differ = twice.select((pl.col(CLICK) > 1).mean()).collect(engine="streaming").item()
    no, *yes = log.first_rows(_ROWS, (click,))[click].cast(pl.String).drop_nulls().unique().sort().to_list() or [""]
    if differ is None or differ < _NEARLY_ALL or len(yes) != 1 or no.lower() not in _NO_CLICK:
        return ()
    return "--impression-where", f"{click}={no}", "--click-where", f"{click}={yes[0]}"


def impressions_by_position(impressions: pl.LazyFrame) -> dict[int, int]:
    """Count impressions by position, invalid rows included."""
    number = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = impressions.drop_nulls(POSITION).group_by(POSITION).agg(number).collect(engine="streaming")
    return dict(counts.iter_rows())


def is_top(position: int, shown: Mapping[int, int]) -> bool:
    """Return True if lists begin at a position: it has at least half as many impressions as the next one."""
    return shown.get(position, 0) >= _RATE_AT_TOP * shown.get(position + 1, 0) > 0


def check_no_ranks(log: Log) -> None:
    """Raise SchemaError if a click column seems to hold ranks, and --click-ranks does not declare the topmost one."""
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


def column_faults(log: Log) -> list[Reason]:
    """Return the faults that columns show before rows are counted: guessed columns, unused counts of impressions."""
    guessed = " ".join(f"{flag} {shlex.quote(column)}" for flag, column in log.guessed)
    named, by_values = unused_count(log), impression_counts(log)
    count = named or next(iter(by_values), None)
    quantities = {"named_count": named, "unused_count": count, "clicks_go_with_count": count in by_values}
    return faults_in({"guessed": guessed, "option_of_count": f"--impressions {shlex.quote(count or '')}"} | quantities)
