"""What a careful reader would say of a log: what is odd about it, and what would help an estimate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.check.counts import LogFacts
from posbias.core.check.outlook import Movement, Outlook
from posbias.core.check.pages import FEWEST_ROWS_OF_A_ROBOT, PageFacts
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.core.theta.linkage import NO_CLICKS, NOT_LINKED, ONE_WAY

LARGE_SHARE = 0.2
"""Of the rows for one query: errors clustered by query then rest on little else."""

ROBOTS_SHARE = 0.01
"""Of the longer pages that are clicked in full, from which it is worth a sentence."""

TIMES_EXPECTED = 10
"""So many times what chance makes of the click rates of positions, that is."""

LARGE_CLIENT = 0.05
"""Share of the rows for one client."""

ODD_PAGES = 0.01
"""Share of pages with gaps, or that start late, from which they are worth a sentence."""

WIDE_ERROR = 0.1
"""A standard error of log propensity: the interval is then about 20 % to either side."""

HOPELESS_ERROR = 1.0
"""With it, an interval goes from a seventh to seven times the number."""

FEW_QUERIES = 20
THIN_CLICKS = 100
STAYS = 0.5
LONG_PAGE = 1000


@dataclass(frozen=True)
class Client:
    """The client with the most rows."""

    column: str  # that tells clients apart
    share: float  # of the rows that were looked at
    rows: int  # how many these are


def warnings_of(
    facts: LogFacts, pages: PageFacts | None, client: Client | None, *, binned: bool = False, paged: bool = False
) -> list[str]:
    """What is odd about a log, in sentences.

    Of `binned` positions only the first of each bin is there; where it is `paged`, later pages of a list start late.
    """
    said = _of_positions(facts, binned=binned)
    if facts.largest_share > LARGE_SHARE and facts.effective_queries < facts.queries / 2:
        said.append(
            f"one query has {facts.largest_share:.0%} of the impressions ({facts.largest_query!r}): the "
            f"{facts.queries:,} queries are worth {facts.effective_queries:,.0f} of equal size."
        )
    if pages is not None and pages.pages:
        said += _of_pages(pages, facts, paged=paged)
    if client is not None and client.share > LARGE_CLIENT:
        said.append(
            f"one value of {client.column!r} has {client.share:.0%} of the first {client.rows:,} rows. If it is a "
            "robot, leave its rows out."
        )
    return said


def _of_positions(facts: LogFacts, *, binned: bool) -> list[str]:
    positions: list[int] = facts.positions[POSITION].to_list()
    said: list[str] = []
    if positions[0] > 1:
        said.append(f"no result stands above position {positions[0]}. Propensities will be relative to that position.")
    missing = positions[-1] - positions[0] + 1 - len(positions)
    if missing and not binned:
        said.append(f"{missing:,} positions between {positions[0]} and {positions[-1]} hold no result at all.")
    silent = facts.positions.filter(pl.col(CLICKS) == 0).height
    if 0 < silent < len(positions):
        said.append(f"{silent:,} of {len(positions):,} positions have no click.")
    return said


def _of_pages(pages: PageFacts, facts: LogFacts, *, paged: bool) -> list[str]:
    said: list[str] = []
    if not paged and pages.starting_late > ODD_PAGES * pages.pages:
        said.append(
            f"{pages.starting_late / pages.pages:.1%} of the pages start below position 1. Were results above left "
            "out, or are these second pages?"
        )
    if pages.with_gaps > ODD_PAGES * pages.pages:
        said.append(f"{pages.with_gaps / pages.pages:.1%} of the pages lack positions between their first and last.")
    # If clicks were independent.
    expected = pages.long * math.prod(facts.positions["ctr"].head(FEWEST_ROWS_OF_A_ROBOT).to_list())
    if pages.clicked_in_full > max(ROBOTS_SHARE * pages.long, TIMES_EXPECTED * expected):
        said.append(
            f"{pages.clicked_in_full:,} of {pages.long:,} pages of {FEWEST_ROWS_OF_A_ROBOT} results or more are "
            "clicked in full. Robots do that: leave their sessions out."
        )
    if pages.longest > LONG_PAGE:
        said.append(f"the longest page has {pages.longest:,} results. Is it a robot, or a session that is no page?")
    return said


def advice(
    facts: LogFacts, moved: Movement, outlooks: Sequence[Outlook], *, time_column: str | None, has_time: bool
) -> list[str]:
    """What would help, in sentences; nothing where nothing is wanting.

    Args:
        facts: what the counts say.
        moved: how documents move.
        outlooks: what models can say, the position-based one first.
        time_column: a column that seems to hold times, and is not used.
        has_time: whether times are known already.
    """
    said = _about_linking(outlooks[0], moved)
    errors = outlooks[0].errors
    if len(errors) and errors.max() > WIDE_ERROR:
        said += _about_width(facts, outlooks[0])
    if time_column is not None and not has_time:
        said.append(
            f"--timestamp {time_column}: then it is tested whether the ranker learns from clicks, which would bias "
            "every estimate."
        )
    return said


def _about_linking(found: Outlook, moved: Movement) -> list[str]:
    said: list[str] = []
    reasons = set(found.cells["reason"].drop_nulls().to_list())
    if found.reason is not None or {NOT_LINKED, ONE_WAY} & reasons:
        said.append(
            "swaps: let the same document appear at different positions for the same query now and then, by more days, "
            "a changed ranker or a little randomisation."
        )
    elif moved.share < STAYS:
        said.append(
            f"more sessions of the same queries: {1 - moved.share:.0%} of the impressions are of documents that were "
            "seen at one position only, and say nothing."
        )
    if NO_CLICKS in reasons:
        said.append("more sessions: some positions were never clicked.")
    return said


def _about_width(facts: LogFacts, found: Outlook) -> list[str]:
    said = ["more queries: they narrow the intervals; more sessions of the same queries hardly do."]
    thin = facts.positions.filter(pl.col(CLICKS) < THIN_CLICKS)[POSITION].to_list()
    enough = [position for position in facts.positions[POSITION].to_list() if position not in thin]
    if thin and enough and min(thin) > max(enough) > 1:
        said.append(
            f"--shape smooth, or --position-bins: positions from {min(thin)} on have fewer than {THIN_CLICKS} clicks "
            f"each. Or leave them out: --max-position {max(enough)}."
        )
    elif found.cells.height > 2:  # noqa: PLR2004 - a curve has three points at least
        said.append("--shape smooth: neighbouring positions then lend each other what they know.")
    return said


def reasons_against(found: Outlook, facts: LogFacts) -> list[str]:
    """Why the log cannot carry an estimate by a model, in sentences; none where it can."""
    if found.reason is not None:
        return [found.reason]
    if not len(found.errors):
        held = f"{facts.queries:,} queries hold the clicks that say anything"
        return [f"no propensity has a standard error: {held}, and errors are told from differences between queries."]
    said: list[str] = []
    if not found.carries:
        unknown = found.cells.filter(~pl.col("identified"))
        said.append(
            f"{unknown.height:,} of {found.cells.height:,} cells cannot be compared with the others, and hold "
            f"{1 - found.click_share:.1%} of the clicks."
        )
    if float(np.median(found.errors)) > HOPELESS_ERROR:
        said.append(f"the log says next to nothing: half of the standard errors exceed {HOPELESS_ERROR:g}.")
    return said


def rows_of(facts: LogFacts) -> list[dict[str, object]]:
    """Positions as plain values: counts that are whole as whole numbers."""
    rows = facts.positions.to_dicts()
    return [{**row, **{name: _whole(row[name]) for name in (IMPRESSIONS, CLICKS)}} for row in rows]


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number
