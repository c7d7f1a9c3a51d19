"""`explore`: what a fit says of what to show next, and its tables."""

import shlex
from collections.abc import Iterator, Sequence
from math import inf, isinf
from typing import Any

import numpy as np
import polars as pl

from posbias.core.choices import RandomizedRows
from posbias.core.errors import UsageError, plural
from posbias.core.exploration import MEAN_RANK, DesignInputs, Plan, documents_to_show, make_plan
from posbias.core.schema import QUERY
from posbias.io.fits.explored import (
    DOCUMENTS,
    number_of_documents,
    open_explored,
    pages_of,
    whole_queries,
    widths_table,
    write_plan,
)
from posbias.io.fits.saved_fit import StoredFit
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, more
from posbias.io.places.locations import Location
from posbias.io.progress import Stage
from posbias.io.results.conclusions import reason
from posbias.io.results.tables import write_in_one_file

MARK = "experiment"
"""The column that the examples mark pages in."""

_HEADINGS = {
    "width": "width now",
    "width_without_swaps": "without\nswaps",
    "width_with_best_swap": "best swap\nalone",
    "width_with_plan": "with the\nplan",
}


def _widths_report(cells: pl.DataFrame, plan: Plan) -> list[Printed]:
    """The widths of the intervals, by cell."""
    rows = widths_table(cells, plan).to_dicts()
    columns = (
        *(Column(name, first(str(row[name]) for row in rows), label=True) for name in cells.columns),
        *(Column(heading, first(_width(row[name]) for row in rows)) for name, heading in _HEADINGS.items()),
    )
    title = f"width of 95 % intervals of log propensity, now and after {plural(plan.pages, 'further pages')}"
    return [title, PrintedTable(columns, more(len(rows), "cells in widths.parquet"))]


def _headline(plan: Plan) -> str:
    """The swaps of the plan, and what they are worth."""
    swaps = [f"{one} and {other} on {plural(pages, 'pages')}" for (one, other), pages in pages_of(plan).items()]
    now, planned, unswapped = (_width(one.largest) for one in (plan.now, plan.planned, plan.unswapped))
    return (
        f"swap positions {', '.join(swaps)}, each half of the time: the widest interval goes from {now} to {planned}, "
        f"without swaps to {unswapped}"
    )


def _widest(plan: Plan) -> str:
    best = "-".join(map(str, plan.best))
    widest = {"now": plan.now, "without swaps": plan.unswapped, f"with {best} alone": plan.alone[plan.best]}
    widths = [f"{_width(one.largest)} {when}" for when, one in (widest | {"with the plan": plan.planned}).items()]
    return f"widest interval: {', '.join(widths)}"


def _marks(plan: Plan) -> list[RandomizedRows]:
    """How the swaps of the plan are named where the pages are read again."""
    return [RandomizedRows(MARK, f"swap {one}-{other}", (one, other)) for one, other in sorted(pages_of(plan))]


def _next_steps(plan: Plan, before: Sequence[RandomizedRows]) -> tuple[str, str]:
    """The command that reads the pages, and how to mark them.

    Args:
        plan: the plan.
        before: the randomised rows that the fit rests on, if it does.
    """
    wanted = _marks(plan)
    named = " or ".join(repr(rows.value) for rows in wanted)
    flags = " ".join(f"--randomized-where {shlex.quote(str(rows))}" for rows in (*before, *wanted))
    alone = f"posbias fit NEW_LOG --method randomized {flags} -o swapped"
    mark = f"mark every page that takes part, swapped or not, with {named} in a column such as `{MARK}`"
    if before:
        return f"posbias fit LOGS NEW_LOG --method randomized {flags} -o fit", mark
    return "posbias fit LOGS NEW_LOG -o fit", f"{mark}; the swapped pages alone: {alone}"


def _plan_section(plan: Plan) -> dict[str, Any]:
    """The plan for the manifest; null for an interval that is infinite."""

    def finite(width: float) -> float | None:
        return None if isinf(width) else width

    return {
        "pages": plan.pages,
        "plan": [
            {"positions": list(swap), "pages": pages, "mark": str(rows)}
            for (swap, pages), rows in zip(sorted(pages_of(plan).items()), _marks(plan), strict=True)
        ],
        "best_swap": list(plan.best),
        "largest_width": {
            "now": finite(plan.now.largest),
            "without_swaps": finite(plan.unswapped.largest),
            "with_best_swap": finite(plan.alone[plan.best].largest),
            "with_plan": finite(plan.planned.largest),
        },
        "without_interval": {"now": int(np.isinf(plan.now.width).sum()), "with_plan": plan.planned.badness[0]},
    }


def _width(width: float) -> str:
    return "none" if isinf(width) else f"{width:.3f}"


def explore(fit: Location, result: Result, *, pages: int, top: int, ucb: float | None) -> None:
    """Plan which positions to swap on further pages, and which documents to show, to learn most.

    Args:
        fit: the directory that `fit` or `run` wrote.
        result: gets the plan, the widths of intervals and the documents.
        pages: how many further pages there are.
        top: how many documents count as the best of a query.
        ucb: orders documents by mean attractiveness and so many standard deviations; None by the 97.5 % quantile.

    Raises:
        PosbiasError: the fit cannot be read, or nothing can be planned from it.
    """
    if ucb is not None and not 0 <= ucb < inf:
        raise UsageError(f"--ucb {ucb:g}: must be at least 0, and finite, e.g. 2.")
    with open_explored(fit) as (explored, known):
        result.content["schema"] = "posbias.exploration"
        _plan_swaps(explored, known, pages, result)
        totals: dict[str, int] = {"queries": 0, "documents": 0, "shown": 0, "challengers": 0}
        with result.progress.stage("choosing documents", number_of_documents(explored), unit="documents") as stage:
            for _ in write_in_one_file(_chosen(explored, top, ucb, totals, stage), result.folder / DOCUMENTS):
                pass
    result.content["documents"] = {"top": top, "ucb": ucb, **totals}
    result.facts.append(
        f"documents: of {plural(totals['documents'], 'documents')} of {plural(totals['queries'], 'queries')}, "
        f"{totals['shown']:,} may be among the {top:,} best of their query; {totals['challengers']:,} of them are "
        "not by what is known so far"
    )


def _plan_swaps(explored: StoredFit, known: DesignInputs, pages: int, result: Result) -> None:
    """Plan swaps of positions, and say what they are worth."""
    with result.progress.stage("planning swaps"):
        plan = make_plan(known.curves(), pages)
    cells = explored.table.select(explored.plan.cell_columns)
    write_plan(cells, plan, result.folder)
    result.content["swaps"] = _plan_section(plan)
    result.printed += _widths_report(cells, plan)
    before = explored.plan.randomized if known.strata == "randomized" else ()
    result.headline = _headline(plan)
    result.next, mark = _next_steps(plan, before)
    result.facts += [_widest(plan), mark]
    missing = plan.planned.badness[0]
    if missing:
        figures = {"without_interval": missing, "of": len(plan.planned.width)}
        result.reasons.append(reason("no-interval-after", figures))
    if not explored.estimate.converged:
        result.reasons.append(reason("not-converged.explored"))


def _chosen(
    explored: StoredFit, top: int, ucb: float | None, totals: dict[str, int], stage: Stage
) -> Iterator[pl.DataFrame]:
    """The documents that may be among the best of their query, counted on the way."""
    for pairs in whole_queries(explored):
        worth = documents_to_show(pairs, explored.plan.context, top, ucb)
        totals["queries"] += pairs[QUERY].n_unique()
        totals["documents"] += pairs.height
        totals["shown"] += worth.height
        totals["challengers"] += int((worth[MEAN_RANK] > top).sum())
        stage.advance(pairs.height)
        yield worth
