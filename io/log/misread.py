"""Columns that would be read as what they are not: sums or ranks as clicks, slots of a page as positions."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.column_names import plain, says_offset, says_page, says_rank
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import Paging
from posbias.core.schema import NAMES_OF_COUNTS, Roles
from posbias.io.log.headers import OURS
from posbias.io.log.log import Log
from posbias.io.log.scan import reading, scan_sources, schema_of

_IMPRESSIONS, _CLICKS = pl.col("impressions"), pl.col("clicks")
_ROWS = 200_000  # the first ones, that are looked at
_FEWEST_LATER = 0.01  # share of the rows on later pages
_AS_OFTEN = 0.2  # a later page has a result at its top, beside the first page
_MOST_PAGES = 1000
_SHOWN_AGAIN = 0.1  # share of the results of later pages that stand on the first page as well
_FEWEST_RANKS = 3  # different ones: fewer are as well numbers of clicks
_NEARLY_ALL = 0.99


def unused_count(log: Log) -> str | None:
    """A column that is called like a number of impressions and plays no role, where rows have no sessions."""
    if log.raw is not None or log.nesting is not None or log.has_sessions or log.roles.impressions is not None:
        return None
    names = [name for name in schema_of(log.sources[0]) if plain(name) in NAMES_OF_COUNTS]
    return next((name for name in names if name not in log.roles.columns()), None)


def check_no_sums(log: Log) -> None:
    """See that `--click-counts` is not said of a table of sums: it would make one click of all clicks on a row.

    Raises:
        SchemaError: a column goes with the clicks as the impressions that were clicked.
    """
    if not log.request.rules.click_counts or log.nesting is not None or log.click_sources:
        return
    weight = log.roles.weight
    named = weight is not None and plain(weight) in NAMES_OF_COUNTS
    count = weight if named or not log.has_sessions else None
    count = count or unused_count(log)
    if count is None or log.roles.click is None or not are_sums(log, count, log.roles.click):
        return
    instead = f"instead of --click-counts{' and --weight-column' if count == weight else ''}"
    raise SchemaError(
        f"{log.sources[0].path}: {count!r} and {log.roles.click!r} look like sums of impressions and of the clicks on "
        f"them, and --click-counts takes each row for one click at most. Say --impressions {count} --click "
        f"{log.roles.click}, {instead}. If they are none, write the clicks as 0 and 1."
    )


def are_sums(log: Log, impressions: str, clicks: str) -> bool:
    """Whether two columns hold whole numbers, impressions >= clicks, that differ, and some rows several clicks."""
    counts = pl.col(impressions).alias("impressions"), pl.col(clicks).alias("clicks")
    with reading(log.sources):
        found = (
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
    return bool(found.item())


@dataclass(frozen=True)
class UnsaidPage:
    """A column that seems to number pages, or to count the results above them, beside positions that begin anew."""

    column: str
    slot: str  # the column of positions, in words
    paging: Paging  # how positions would go on
    later: float  # the share of the rows that are on later pages

    @property
    def options(self) -> tuple[str, ...]:
        """The options that say so."""
        size, base = self.paging.size, self.paging.base
        usual = 0 if size == 1 else 1
        first = () if base == usual else ("--page-base", str(base))
        return ("--page", self.column, "--page-size", str(size), *first)

    @property
    def found(self) -> str:
        """What it looks like: it counts results, or pages."""
        what = "the number of results above the page" if self.paging.size == 1 else "the number of the results page"
        return f"{self.column!r} looks like {what}, and {self.slot} begins anew on each"


def unsaid_page(log: Log) -> UnsaidPage | None:
    """The column by which positions go on from page to page, where nothing was said of it and they begin anew."""
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
        found = _begins_anew(rows, name, position, is_offset=is_offset)
        if found is not None and _goes_on(rows, name, keys, log.roles):
            return found
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


def _begins_anew(rows: pl.DataFrame, name: str, position: str, *, is_offset: bool) -> UnsaidPage | None:
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
    return UnsaidPage(name, in_words, Paging(1 if is_offset else size, int(first)), share)


def check_slots(log: Log) -> None:
    """See that positions do not begin anew on each of several pages of one list of results.

    Raises:
        SchemaError: they do, by a column that numbers pages and that nothing was said of.
    """
    found = unsaid_page(log)
    if found is None:
        return
    per_page = "" if found.paging.size == 1 else f", if a page holds {found.paging.size} results"
    raise SchemaError(
        f"{log.request.where}: results of later pages ({found.later:.0%} of the rows) would count as top positions: "
        f"{found.found}. Say {shlex.join(found.options)}{per_page}. If {found.column!r} is something else, say --page "
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
    usual, said = log.request.rules.position_base, log.request.rules.click_ranks
    top = int(rank.min()) if rank.min() in {0, 1} else usual
    if said is not None:  # a page may have no click at the top
        top = top if rank.max() - said > rows[position].to_numpy().max() - usual else said
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


def check_no_ranks(log: Log) -> None:
    """See that a click column holds no ranks, of which the topmost, 0, would be no click.

    Raises:
        SchemaError: it does.
    """
    top, said = clicked_rank(log), log.request.rules.click_ranks
    if top is None or top == said:
        return
    if said is not None:
        raise SchemaError(
            f"{log.request.where}: clicks would be misplaced: column {log.roles.click!r} (--click) counts ranks from "
            f"{top}, beside the positions. Say --click-ranks {top}, not {said}."
        )
    counts = " instead of --click-counts" if log.request.rules.click_counts else ""
    raise SchemaError(
        f"{log.request.where}: clicks would be lost or misplaced: column {log.roles.click!r} (--click) looks like the "
        f"rank of the clicked result, counted from {top}, and a click is 0 or 1, or a number of clicks. Say "
        f"--click-ranks {top}{counts}: the row at that position is clicked, and an empty cell means no click."
    )
