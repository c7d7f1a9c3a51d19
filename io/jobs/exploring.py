"""`explore`: plan swaps of positions and documents to show on further pages, from a fit."""

import shlex
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import inf, isinf
from typing import Any, cast

import numpy as np
import polars as pl
from msgspec import UNSET

from posbias.core.choices import RandomizedRows
from posbias.core.errors import LogFormatError, UsageError, plural
from posbias.core.estimators.methods import ConditionalEstimator, RandomizedEstimator
from posbias.core.exploration import (
    ATTRACTIVENESS,
    MEAN_RANK,
    STD_DEV,
    DesignInputs,
    Plan,
    make_plan,
    most_promising_documents,
)
from posbias.core.fit.propensities import SHARED_CLICKS
from posbias.core.schema import POSITION, QUERY
from posbias.io.fits.saved_fit import StoredFit, fit_in
from posbias.io.jobs.tables import Column, PrintedTable, Result, first, more
from posbias.io.places.locations import Location
from posbias.io.progress import Stage
from posbias.io.results.conclusions import reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import ATTRACTIVENESS as ATTRACTIVENESS_FILE
from posbias.io.results.tables import FIT_FILES, PROPENSITIES, parquet_errors, write_in_one_file

FILES = (*FIT_FILES, f"{ATTRACTIVENESS_FILE}.parquet")
WIDTHS, SWAPS, DOCUMENTS = "widths.parquet", "swaps.parquet", "documents.parquet"
OTHER_POSITION, PAGES = "other_position", "pages"
MARK = "experiment"
"""Column that marks pages, in examples."""

_AGAIN = "Run `posbias fit` again."
_ROWS_AT_ONCE = 1 << 18
_WIDTHS = {
    "now": ("width", "width now"),
    "without_swaps": ("width_without_swaps", "without\nswaps"),
    "with_best_swap": ("width_with_best_swap", "best swap\nalone"),
    "with_plan": ("width_with_plan", "with the\nplan"),
}
"""Column of widths and its printed heading, by scenario."""


def explore(fit: Location, result: Result, *, pages: int, top: int, ucb: float | None) -> None:
    """Plan which positions to swap, and which documents to show, on further pages, for the most information.

    Args:
        fit: directory that `fit` or `run` wrote.
        result: receives the plan, widths of intervals, and documents.
        pages: number of further pages.
        top: number of best documents of a query.
        ucb: ranks documents by mean attractiveness plus `ucb` standard deviations; None by the 97.5 % quantile.

    Raises:
        PosbiasError: the fit cannot be read, or admits no plan.
    """
    if ucb is not None and not 0 <= ucb < inf:
        raise UsageError(f"--ucb {ucb:g}: must be at least 0, and finite, e.g. 2.")
    with open_explored(fit) as (explored, known):
        result.content["schema"] = "posbias.exploration"
        _plan_swaps(explored, known, pages, result)
        totals: dict[str, int] = {"queries": 0, "documents": 0, "shown": 0, "challengers": 0}
        parquet: Any = import_module("pyarrow.parquet")
        path = explored.documents
        if not path.is_file():
            raise LogFormatError(
                f"{explored.folder}: holds no {path.name}. Name the directory that `posbias fit` wrote."
            )
        with parquet_errors(path):
            number = int(parquet.read_metadata(path).num_rows)
        with result.progress.stage("choosing documents", number, unit="documents") as stage:
            for _ in write_in_one_file(_promising(explored, top, ucb, totals, stage), result.folder / DOCUMENTS):
                pass
    result.content["documents"] = {"top": top, "ucb": ucb, **totals}
    result.facts.append(
        f"documents: of {plural(totals['documents'], 'documents')} of {plural(totals['queries'], 'queries')}, "
        f"{totals['shown']:,} may be among the {top:,} best of their query; {totals['challengers']:,} of them are "
        "not by what is known so far"
    )


def _plan_swaps(explored: StoredFit, known: DesignInputs, pages: int, result: Result) -> None:
    """Plan swaps of positions; write widths and swaps, and add headline, facts and next step to the result."""
    with result.progress.stage("planning swaps"):
        plan = make_plan(known.curves(), pages)
    cells, pages_of_swap = explored.table.select(explored.plan.cell_columns), pages_of(plan)
    outcomes = {
        "now": plan.now,
        "without_swaps": plan.unswapped,
        "with_best_swap": plan.alone[plan.best],
        "with_plan": plan.planned,
    }
    # widths of intervals of log propensity by cell, now and after the further pages; infinite without an interval
    columns = {"std_error": plan.now.std_error} | {
        _WIDTHS[name][0]: outcome.width for name, outcome in outcomes.items()
    }
    widths = cells.with_columns(pl.Series(name, np.asarray(values, np.float64)) for name, values in columns.items())
    widths.write_parquet(result.folder / WIDTHS)
    _swaps_table(plan).write_parquet(result.folder / SWAPS)
    planned = sorted(pages_of_swap.items())
    marks = [RandomizedRows(MARK, f"swap {one}-{other}", (one, other)) for (one, other), _ in planned]
    largest, missing = {name: outcome.largest for name, outcome in outcomes.items()}, plan.planned.badness[0]
    result.content["swaps"] = {
        "pages": plan.pages,
        "plan": [
            {"positions": list(swap), "pages": number, "mark": str(mark)}
            for (swap, number), mark in zip(planned, marks, strict=True)
        ],
        "best_swap": list(plan.best),
        "largest_width": {name: None if isinf(width) else width for name, width in largest.items()},
        "without_interval": {"now": int(np.isinf(plan.now.width).sum()), "with_plan": missing},
    }
    rows = widths.to_dicts()
    columns = (
        *(Column(name, first(str(row[name]) for row in rows), label=True) for name in cells.columns),
        *(Column(heading, first(_width(row[name]) for row in rows)) for name, heading in _WIDTHS.values()),
    )
    title = f"width of 95 % intervals of log propensity, now and after {plural(plan.pages, 'further pages')}"
    result.printed += [title, PrintedTable(columns, more(len(rows), "cells in widths.parquet"))]
    now, unswapped, alone, with_plan = map(_width, largest.values())
    swaps = [f"{one} and {other} on {plural(number, 'pages')}" for (one, other), number in pages_of_swap.items()]
    result.headline = (
        f"swap positions {', '.join(swaps)}, each half of the time: the widest interval goes from {now} to "
        f"{with_plan}, without swaps to {unswapped}"
    )
    result.facts.append(
        f"widest interval: {now} now, {unswapped} without swaps, {alone} with {'-'.join(map(str, plan.best))} alone, "
        f"{with_plan} with the plan"
    )
    before = explored.plan.randomized if known.strata == "randomized" else ()
    named = " or ".join(repr(mark.value) for mark in marks)
    flags = " ".join(f"--randomized-where {shlex.quote(str(rows))}" for rows in (*before, *marks))
    curve_flags = (("--context", explored.plan.context), ("--cell", explored.plan.cell))
    columns = "".join(f" {flag} {shlex.quote(name)}" for flag, names in curve_flags for name in names)
    mark = f"mark every page that takes part, swapped or not, with {named} in a column such as `{MARK}`"
    if before:
        result.next = f"posbias fit LOGS NEW_LOG{columns} --method randomized {flags} -o fit"
    else:
        result.next = f"posbias fit LOGS NEW_LOG{columns} -o fit"
        mark += f"; the swapped pages alone: posbias fit NEW_LOG{columns} --method randomized {flags} -o swapped"
    result.facts.append(mark)
    if missing:
        figures = {"without_interval": missing, "of": len(plan.planned.width)}
        result.reasons.append(reason("no-interval-after", figures))
    if not explored.estimate.converged:
        result.reasons.append(reason("not-converged.explored"))


def _width(width: float) -> str:
    return "none" if isinf(width) else f"{width:.3f}"


@contextmanager
def open_explored(place: Location) -> Generator[tuple[StoredFit, DesignInputs]]:
    """Open a fit in a directory that `fit` or `run` wrote, with the inputs of a design.

    Raises:
        LogFormatError: the fit is damaged, too old, or was replaced while it was read.
        UsageError: the directory holds no fit, or a fit that admits no plan.
    """
    with open_stored(place, FILES) as stored:
        fit = fit_in(stored, str(stored.folder))
        yield fit, _design_inputs(fit)


def _design_inputs(fit: StoredFit) -> DesignInputs:
    """Inputs of a design.

    Raises:
        LogFormatError: the fit lacks shared clicks or strata.
        UsageError: swaps do not move documents between its cells, or its errors do not follow from counts of clicks.
    """
    methods = (ConditionalEstimator.name, RandomizedEstimator.name)
    plan, estimate = fit.plan, fit.estimate
    reasons = {
        f"--model {plan.model.name}: swaps also change which clicks are above, so that widths cannot be predicted": (
            bool(plan.model.beside_position)
        ),
        "--position-bins: the positions of a bin share one propensity, and swaps are of single positions": bool(
            plan.position_bins
        ),
        "--weight-column: it is not known how much a further page weighs": plan.weighted,
        f"--method {estimate.method}: it has no information to add to. Swaps need --method {' or '.join(methods)}": (
            estimate.method not in methods
        ),
        f"--shape {estimate.shape}: its intervals rest on the shape. Swaps need --shape free": (
            estimate.shape is not UNSET
        ),
        "cells in the product form: its intervals rest on the form. Swaps need --cell-form free": (
            estimate.cell_form == "product"
        ),
    }
    for why, holds in reasons.items():
        if holds:
            raise UsageError(f"{fit.folder}: was fitted with {why}. Fit the log again without it, and explore that.")
    if any(fit.table[name].cast(pl.String).equals(fit.table[POSITION].cast(pl.String)) for name in plan.cell):
        raise UsageError(
            f"{fit.folder}: positions begin anew in each {' and '.join(plan.cell[:-1])}, and a swap is of two places "
            "of a page. Fit with the place in the order of the whole page as --position, beside these as --cell."
        )
    shared = fit.shared_clicks
    if shared is None or estimate.strata is UNSET:
        raise LogFormatError(
            f"{fit.folder}: does not say which clicks compare which positions ({SHARED_CLICKS!r} in "
            "theta_covariance.parquet): it has no standard errors or too many positions, or is older than that. "
            f"{_AGAIN}"
        )
    unknown = [None] * fit.table.height if estimate.effective_clusters is UNSET else estimate.effective_clusters
    randomized = estimate.method == RandomizedEstimator.name
    known = DesignInputs(
        table=fit.table,
        context=fit.plan.context,
        shared=shared,
        query_spread=estimate.query_spread,
        effective_clusters=np.array(unknown, np.float64),
        strata="randomized" if randomized else "shared" if estimate.period.used == "none" else "apart",
        n_strata=estimate.strata,
        cell=fit.plan.cell,
    )
    known.check(where=str(fit.folder / f"{PROPENSITIES}.parquet"))
    return known


def _swaps_table(plan: Plan) -> pl.DataFrame:
    """One row per swap, best first: intervals if it has all pages, and its pages in the plan."""
    pages = pages_of(plan)
    rows = [
        {
            POSITION: swap[0],
            OTHER_POSITION: swap[1],
            PAGES: plan.pages,
            "largest_width": plan.now.largest,
            "largest_width_after": outcome.largest,
            "without_interval": int(np.isinf(plan.now.width).sum()),
            "without_interval_after": outcome.badness[0],
            "std_error_after": outcome.std_error.tolist(),
            "planned_pages": pages.get(swap, 0),
        }
        for swap, outcome in plan.alone.items()
    ]
    return pl.DataFrame(rows, schema_overrides={POSITION: pl.Int32, OTHER_POSITION: pl.Int32})


def pages_of(plan: Plan) -> dict[tuple[int, int], int]:
    """Round the shares of swaps to whole pages that sum to N."""
    ends = np.rint(np.cumsum(list(plan.shares.values())) * plan.pages).astype(np.int64)
    return dict(zip(plan.shares, np.diff(ends, prepend=0).tolist(), strict=True))


def whole_queries(fit: StoredFit) -> Iterator[pl.DataFrame]:
    """Read attractiveness in batches of whole queries, of about 2^18 rows or one query.

    Raises:
        LogFormatError: the table is missing or damaged.
    """
    parquet: Any = import_module("pyarrow.parquet")
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    path, held, needed = fit.documents, pl.DataFrame(), (QUERY, *fit.plan.context, ATTRACTIVENESS, STD_DEV)
    mean, deviation = pl.col(ATTRACTIVENESS), pl.col(STD_DEV)
    sound = mean.is_between(0, 1) & (deviation >= 0) & deviation.is_finite()
    with parquet_errors(path), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            rows = to_polars(batch)
            missing = [name for name in needed if name not in rows.columns]
            if missing:
                raise LogFormatError(f"{path}: has no column {missing[0]!r}. {_AGAIN}")
            broken = rows.filter(~sound.fill_null(value=False))
            if broken.height:
                raise LogFormatError(
                    f"{path}: holds an attractiveness that is not between 0 and 1, or no standard deviation of one: "
                    f"{broken.row(0, named=True)}. {_AGAIN}"
                )
            held = rows if not held.height else pl.concat([held, rows])
            number = held[QUERY].rle_id()
            whole = number < number[-1]
            if whole.any():
                yield held.filter(whole)
                held = held.filter(~whole)
    if held.height:
        yield held


def _promising(
    explored: StoredFit, top: int, ucb: float | None, totals: dict[str, int], stage: Stage
) -> Iterator[pl.DataFrame]:
    """Documents that may be among the `top` of their query; add counts to `totals`."""
    for pairs in whole_queries(explored):
        worth = most_promising_documents(pairs, explored.plan.context, top, ucb)
        totals["queries"] += pairs[QUERY].n_unique()
        totals["documents"] += pairs.height
        totals["shown"] += worth.height
        totals["challengers"] += int((worth[MEAN_RANK] > top).sum())
        stage.advance(pairs.height)
        yield worth
