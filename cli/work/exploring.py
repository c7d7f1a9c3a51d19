"""`explore`: what a fit says of what to show next, and its tables."""

import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import inf, isinf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from posbias.cli.options.estimating import ExplorationOptions
from posbias.cli.options.output import OutputOptions
from posbias.cli.report.result import open_result
from posbias.core.choices import RandomizedRows
from posbias.core.errors import MissingExtraError, UsageError, counted
from posbias.core.exploration import MEAN_RANK, KnownFit, Plan, documents_to_show, make_plan
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
from posbias.io.jobs.tables import WITH_DOUBTS, Column, Printed, PrintedTable, Result, first, more
from posbias.io.places.locations import Location
from posbias.io.progress import Progress, Stage
from posbias.io.reports.reported import open_reported
from posbias.io.reports.stamped import check_target, write_report
from posbias.io.results.tables import write_in_one_file

MARK = "experiment"
"""The column that the examples mark pages in."""

_HEADINGS = {
    "width": "width now",
    "width_without_swaps": "without\nswaps",
    "width_with_best_swap": "best swap\nalone",
    "width_with_plan": "with the\nplan",
}


def widths_report(cells: pl.DataFrame, plan: Plan) -> list[Printed]:
    """The widths of the intervals, by cell."""
    rows = widths_table(cells, plan).to_dicts()
    columns = (
        *(Column(name, first(str(row[name]) for row in rows), label=True) for name in cells.columns),
        *(Column(heading, first(_width(row[name]) for row in rows)) for name, heading in _HEADINGS.items()),
    )
    title = f"95 % intervals of log propensity, now and after {counted(plan.pages, 'further pages')}"
    return [title, PrintedTable(columns, more(len(rows), "cells in widths.parquet"))]


def plan_lines(plan: Plan) -> list[str]:
    """The swaps of the plan, and what each is worth."""
    swaps = [f"{one}-{other} on {counted(pages, 'pages')}" for (one, other), pages in pages_of(plan).items()]
    best = "-".join(map(str, plan.best))
    widest = {
        "now": plan.now,
        "without swaps": plan.unswapped,
        f"with {best} alone": plan.alone[plan.best],
        "with the plan": plan.planned,
    }
    return [
        f"plan: swap {', '.join(swaps)}, half of the time on each page",
        f"widest interval: {', '.join(f'{_width(found.largest)} {when}' for when, found in widest.items())}",
    ]


def marks(plan: Plan) -> list[RandomizedRows]:
    """How the swaps of the plan are named where the pages are read again."""
    return [RandomizedRows(MARK, f"swap {one}-{other}", (one, other)) for one, other in sorted(pages_of(plan))]


def next_steps(plan: Plan, before: Sequence[RandomizedRows]) -> list[str]:
    """How to mark the pages, and how to read them.

    Args:
        plan: the plan.
        before: the randomised rows that the fit rests on, if it does.
    """
    wanted = marks(plan)
    named = " or ".join(repr(rows.value) for rows in wanted)
    flags = " ".join(f"--randomized-where {shlex.quote(str(rows))}" for rows in (*before, *wanted))
    alone = f"posbias fit NEW_LOG --method randomized {flags} -o swapped"
    mark = f"mark every page that takes part, swapped or not, with {named} in a column such as `{MARK}`"
    if before:
        return [mark, f"then: posbias fit LOGS NEW_LOG --method randomized {flags} -o fit"]
    return [mark, "then, all pages together: posbias fit LOGS NEW_LOG -o fit", f"or the swapped pages alone: {alone}"]


def plan_section(plan: Plan) -> dict[str, Any]:
    """The plan for the manifest; null for an interval that is infinite."""

    def finite(width: float) -> float | None:
        return None if isinf(width) else width

    return {
        "pages": plan.pages,
        "plan": [
            {"positions": list(swap), "pages": pages, "mark": str(rows)}
            for (swap, pages), rows in zip(sorted(pages_of(plan).items()), marks(plan), strict=True)
        ],
        "best_swap": list(plan.best),
        "largest_width": {
            "now": finite(plan.now.largest),
            "without_swaps": finite(plan.unswapped.largest),
            "with_best_swap": finite(plan.alone[plan.best].largest),
            "with_plan": finite(plan.planned.largest),
        },
        "without_interval": {
            "now": int(np.isinf(plan.now.width).sum()),
            "with_plan": plan.planned.badness[0],
        },
    }


def _width(width: float) -> str:
    return "none" if isinf(width) else f"{width:.3f}"


def explore(fit: Location, exploration: ExplorationOptions, output: OutputOptions) -> int:
    """Say which positions to swap, and which documents to show, to learn most."""
    if exploration.ucb is not None and not 0 <= exploration.ucb < inf:
        raise UsageError(f"--ucb {exploration.ucb:g}: must be at least 0, and finite, e.g. 2.")
    with (
        open_result("explore", output, [fit], [exploration]) as result,
        open_explored(fit) as (explored, known),
    ):
        result.content["schema"] = "posbias.exploration"
        _plan_swaps(explored, known, exploration.pages, result)
        top = exploration.top
        totals: dict[str, int] = {"queries": 0, "documents": 0, "shown": 0, "challengers": 0}
        with result.progress.stage("choosing documents", number_of_documents(explored), unit="documents") as stage:
            for _ in write_in_one_file(_chosen(explored, exploration, totals, stage), result.folder / DOCUMENTS):
                pass
        result.content["documents"] = {"top": top, "ucb": exploration.ucb, **totals}
        result.printed.append(
            f"documents: of {counted(totals['documents'], 'documents')} of {counted(totals['queries'], 'queries')}, "
            f"{totals['shown']:,} may be among the {top:,} best of their query; {totals['challengers']:,} of them are "
            "not by what is known so far"
        )
    return result.exit_code


def _plan_swaps(explored: StoredFit, known: KnownFit, pages: int, result: Result) -> None:
    """Plan swaps of positions, and say what they are worth."""
    with result.progress.stage("planning swaps"):
        plan = make_plan(known.curves(), pages)
    cells = explored.table.select(explored.plan.cell_columns)
    write_plan(cells, plan, result.folder)
    result.content["swaps"] = plan_section(plan)
    result.printed += widths_report(cells, plan)
    before = explored.plan.randomized if known.strata == "randomized" else ()
    result.printed += (*plan_lines(plan), *next_steps(plan, before))
    missing = plan.planned.badness[0]
    if missing:
        result.warnings.append(
            f"{missing} of {len(plan.planned.width)} propensities will still have no interval: one swap of the plan "
            "does not reach them. Plan more pages (--pages)."
        )
    if not explored.estimate.converged:
        result.exit_code = WITH_DOUBTS
        result.warnings.append("the fit did not converge, so that what it says of further pages may be off.")


def _chosen(
    explored: StoredFit, asked: ExplorationOptions, totals: dict[str, int], stage: Stage
) -> Iterator[pl.DataFrame]:
    """The documents that may be among the best of their query, counted on the way."""
    for pairs in whole_queries(explored):
        worth = documents_to_show(pairs, explored.plan.context, asked.top, asked.ucb)
        totals["queries"] += pairs[QUERY].n_unique()
        totals["documents"] += pairs.height
        totals["shown"] += worth.height
        totals["challengers"] += int((worth[MEAN_RANK] > asked.top).sum())
        stage.advance(pairs.height)
        yield worth


Format = Literal["html", "svg", "png"]

_FORMATS: dict[str, Format] = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}
_LIBRARIES = ("altair", "vl_convert")


def format_of(target: Path) -> Format:
    """The form of a report, by the ending of its name.

    Raises:
        UsageError: the ending is none of a report.
    """
    form = _FORMATS.get(target.suffix.lower())
    if form is None:
        raise UsageError(
            f"--output {target}: a report is a page or a picture. Name a file that ends in .html, .svg or .png, e.g. "
            "report.html."
        )
    return form


def check_results(places: Sequence[Location], target: Path, *, force: bool) -> None:
    """See that a report can be made, before anything is read.

    Raises:
        MissingExtraError: the libraries that draw are not installed.
        OutputExistsError: the file is there, and is not to be replaced.
        OutputError: the file cannot be written, or is none of posbias.
        UsageError: a result is named twice.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "a report needs Altair and vl-convert, which are not installed. "
            "Run: python3 -m pip install 'posbias[report]'"
        )
    twice = [place for number, place in enumerate(places) if place in places[:number]]
    if twice:
        raise UsageError(f"{twice[0]}: is named twice. Name each result once.")
    check_target(target, force=force)


def make_report(
    places: Sequence[Location], target: Path, form: Format, chart: str, progress: Progress, *, force: bool
) -> int:
    """Write a report; return its size in bytes.

    Raises:
        LogFormatError: a result is damaged.
        UsageError: a result has nothing to show, or not the chart that is asked for.
        OutputError: the file cannot be written.
    """
    # Only here, once it is known that they are there: other commands do without the libraries that draw.
    from posbias.io.reports.page import figure_named, page_of, picture_of  # noqa: PLC0415
    from posbias.io.reports.sections import contents  # noqa: PLC0415

    with open_reported(places) as results:
        with progress.stage("reading results"):
            parts, names = contents(results), [result.name for result in results]
        with progress.stage("drawing"):
            if form == "html":
                content = page_of(parts, names).encode()
            else:
                content = picture_of(figure_named(parts, chart), ", ".join(names), form)
    write_report(target, content, force=force)
    return len(content)
