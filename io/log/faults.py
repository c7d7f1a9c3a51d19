"""Faults of a log: the table (`faults.toml`, whose head says how to add one), and columns that betray one."""

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
"""A number, a truth, or a text; None where it is not known."""

Profile = Mapping[str, Quantity]
"""Quantities of a log by name."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class LogFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table; its head says what the fields are."""

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
"""Codes and entries, in the order in which they are stated."""


def faults_in(profile: Profile, stated: Iterable[str] = ()) -> list[Reason]:
    """The faults that a profile shows; each code once, and none that is `stated` already."""
    reasons = dict[str, Reason]()
    for code, fault in TABLE:
        if not {code, *fault.unless}.isdisjoint((*stated, *reasons)) or not _hold(fault.when, profile):
            continue
        severity: Severity = STOP if fault.stop and _hold(fault.stop, profile) else fault.severity
        figures = {name: profile[quantity] for name, quantity in fault.figures.items()}
        sentence = in_words([fault.sentence, fault.advice], profile)
        reasons[code] = Reason(code, severity, sentence, figures, in_words([fault.details], profile))
    return [*reasons.values()]


def _hold(conditions: Iterable[str], profile: Profile) -> bool:
    """Whether all conditions hold; one on a quantity that is not known does not."""
    for condition in conditions:
        name, sign, limit = (*condition.split(), "", "")[:3]
        value = profile.get(name)
        if not value and (not sign or value is None):
            return False
        if sign and not _COMPARE[sign](value, profile[limit] if limit in profile else float(Fraction(limit))):
            return False
    return True


def of_ids(rows: pl.DataFrame, log: Log) -> dict[str, Quantity]:
    """Ids that a spreadsheet rounded, among canonical impressions."""
    for role in (DOC, QUERY, SESSION):
        example = rounded_ids(rows[role]) if role in rows.columns else None
        if example is not None:
            return {"rounded_column": getattr(log.roles, role)[0], "rounded_id": example}
    return {}


_IMPRESSIONS, _CLICKS = pl.col("impressions"), pl.col("clicks")
_ROWS = 200_000  # the first ones, that are looked at
_FEWEST_LATER = 0.01  # share of the rows on later pages
_AS_OFTEN = 0.2  # a later page has a result at its top, beside the first page
_MOST_PAGES = 1000
_ROWS_OF_COUNTS = 1 << 16  # more would say the same
_OFTEN = 0.1  # share of rows with several impressions, and of documents whose rows differ in their number
_BY_CHANCE = 12.0  # rows below the clicks to expect, if there is none: chance of none below 1 in 100,000
_CERTAIN = 4.0  # standard errors: chance of a column that clicks do not depend on below 1 in 10,000
_SHOWN_AGAIN = 0.1  # share of the results of later pages that stand on the first page as well
_FEWEST_RANKS = 3  # different ones: fewer are as well numbers of clicks
_NEARLY_ALL = 0.99
_TWO = 2  # rows may be equal by chance
_SEVERAL_CLICKS, _FEWEST_SUMS = 0.1, 20  # of the clicked rows, and how many at least
_NO_CLICK = {"0", "0.0", "false", "f"}
_OF_SECOND = 0.5  # impressions at the top of lists, per impression one position below


def unused_count(log: Log) -> str | None:
    """A column that is called like a number of impressions, and is above 1, where rows have no sessions."""
    if log.raw is not None or log.nesting is not None or log.has_sessions or log.roles.impressions is not None:
        return None
    names = [*filter(is_count_name, free_columns(log))]
    rows = log.first_rows(_ROWS, names).cast(pl.Float64, strict=False) if names else pl.DataFrame()
    return next((name for name in names if (rows[name] > 1).any()), None)


def counts_of_clicks(log: Log) -> list[str]:
    """Columns that play no role, and hold numbers of impressions that the clicks belong to by their values.

    They are whole from 1, none below the clicks and many above 1. Either more of them would be below by chance,
    or they differ between rows of a document, and clicks are about proportional to them: to a feature of documents, a
    day or a price they are not.
    """
    roles, position, click = log.roles, log.roles.position, log.roles.click
    apart = log.raw is not None or log.nesting is not None or log.click_sources
    if apart or log.has_sessions or roles.impressions is not None or position is None or click is None:
        return []
    pair = [*dict.fromkeys((*roles.query, *roles.doc))]  # without queries, the query is the document
    names, found = free_columns(log), list[str]()
    rows = log.first_rows(_ROWS_OF_COUNTS, (*pair, position, click, *names))
    keys = {"pair": pl.struct(pair), POSITION: pl.col(position), CLICKS: rows[click].cast(pl.Float64, strict=False)}
    for name in names:
        counts = rows.select(**keys, impressions=pl.col(name).cast(pl.Float64, strict=False))
        whole = (_IMPRESSIONS.floor() == _IMPRESSIONS) & (pl.max_horizontal(_CLICKS, 1) <= _IMPRESSIONS)
        if not counts.select(whole.all() & ((_IMPRESSIONS > 1).mean() >= _OFTEN)).item():
            continue
        several = counts.filter(_CLICKS > 1)[CLICKS]  # of rows that would often have more of them, were it by chance
        below = int(counts[IMPRESSIONS].sort().search_sorted(several).sum()) / counts.height
        differ = (_IMPRESSIONS.n_unique() > 1).over("pair").mean() >= _OFTEN
        exponent, score = exponent_of_counts(counts) if counts.select(differ).item() else (0.0, 0.0)
        if below > _BY_CHANCE or (1 / _TWO < exponent < _TWO and score > _CERTAIN):
            found.append(name)
    return found


def summed_impressions(log: Log) -> str | None:
    """The unused column whose counts of impressions the clicks of a table of sums belong to, by name or by values."""
    click, named = log.roles.click, unused_count(log)
    if log.click_sources or log.roles.position is None or click is None:
        return None
    if named is not None:
        return named if are_sums(log, named, click) or named in counts_of_clicks(log) else None
    return next((name for name in counts_of_clicks(log) if are_sums(log, name, click)), None)


def check_no_sums(log: Log) -> None:
    """Raise SchemaError if `--click-counts` is given for a table of sums: it makes one click of all clicks on a row.

    Raises:
        SchemaError: a column goes with the clicks as the impressions that were clicked, or no document stands at a
            position of a query twice, and many have several clicks there.
    """
    weight, click = log.roles.weight, log.roles.click
    if not log.request.rules.click_counts or log.nesting is not None or log.click_sources or click is None:
        return
    may_be = weight is not None and (is_count_name(weight) or not log.has_sessions)
    count = weight if weight is not None and may_be and are_sums(log, weight, click) else summed_impressions(log)
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
    """Whether two columns hold whole numbers, impressions >= clicks, that differ, and some rows several clicks."""
    counts = pl.col(impressions).alias("impressions"), pl.col(clicks).alias("clicks")
    is_one = ((_IMPRESSIONS.floor() == _IMPRESSIONS) & (_IMPRESSIONS >= _CLICKS)).all()
    sums = is_one & (_CLICKS > 1).any() & (_IMPRESSIONS.min() != _IMPRESSIONS.max())
    with reading(log.sources):
        numbers = scan_sources(log.sources).select(count.cast(pl.Float64, strict=False) for count in counts)
        return bool(numbers.drop_nulls().select(sums).collect(engine="streaming").item())


def undeclared_page(log: Log) -> tuple[Finding, float] | None:
    """A column that seems to number pages, or to count the results above them, beside positions that begin anew.

    Returns:
        What it looks like, with the options that say so, and the share of the rows that are on later pages; None where
        there is no such column, or where an option names one.
    """
    position = log.roles.position
    of_lines = log.raw is not None and log.raw.reads_lines
    if log.roles.page is not None or log.request.roles.no_page or of_lines or position is None:
        return None
    played = set(log.roles.columns()).difference(log.roles.session)
    for name, dtype in schema_of(log.sources[0]).items():
        is_offset = is_offset_name(name)
        if name in played or dtype.is_nested() or not (is_offset or is_page_name(name)):
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
    numbers_pages = step == 1 and later.max() <= min(_MOST_PAGES, len(page) / _TWO)  # and not the rows of a small log
    counts_results = step >= max(size, 2) and not ((later - first) % step).any()
    if not (counts_results if is_offset else numbers_pages):
        return None
    at_top, share = slot == top, len(later) / len(page)
    if share < _FEWEST_LATER or at_top[page > first].mean() < _AS_OFTEN * at_top[page == first].mean():
        return None
    in_words = "the place in the list" if position.startswith(RESERVED_PREFIX) else repr(position)
    size, base = 1 if is_offset else size, int(first)
    in_grid = size > 1 and not is_page_name(name.replace("row", ""))
    of_page = "the row of a grid" if in_grid else "the number of the results page"
    counts = "the number of results above the page" if size == 1 else of_page
    usual = 0 if size == 1 else 1
    first_page = () if base == usual else ("--page-base", str(base))
    options = ("--cell", name) if in_grid else ("--page", name, "--page-size", str(size), *first_page)
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
    _, column, *paging = finding.options
    per_page = "" if paging[1:2] in ([], ["1"]) else f", if a page holds {paging[1]} results"
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
    if apart or click is None or click.startswith(RESERVED_PREFIX):
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
        if roles.session:  # nearly all pages of several rows have one value in all of them
            of = pl.col(click)
            number, values, largest = (
                pl.len().alias(f"{RESERVED_PREFIX}rows"),
                of.n_unique(),
                of.max().alias(f"{RESERVED_PREFIX}largest"),
            )
            pages = rows.group_by(roles.session).agg(number, values.alias(f"{RESERVED_PREFIX}values"), largest)
            clicked = pages.filter(pl.col(f"{RESERVED_PREFIX}rows") > _TWO, pl.col(f"{RESERVED_PREFIX}largest") > 0)
            if (
                clicked.height >= _FEWEST_RANKS
                and (clicked[f"{RESERVED_PREFIX}values"] == 1).sum() >= _NEARLY_ALL * clicked.height
            ):
                return top
    is_flag = len(filled) == len(rows) and np.isin(rank, (0, 1)).all()
    return top if is_rank_name(click) and not is_flag else None


def clicks_in_rows(log: Log, impressions: pl.LazyFrame) -> tuple[str, ...]:
    """The options for a log with a row of each impression and another one of its click; none for other logs.

    Args:
        log: it.
        impressions: some whole pages, canonical.
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
    named, by_values = unused_count(log), counts_of_clicks(log)
    count = named or next(iter(by_values), None)
    quantities = {"named_count": named, "unused_count": count, "clicks_go_with_count": count in by_values}
    return faults_in({"guessed": guessed, "option_of_count": f"--impressions {shlex.quote(count or '')}"} | quantities)
