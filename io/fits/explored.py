"""A fit as `explore` reads it, query by query, and the tables of its plan."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from msgspec import UNSET

from posbias.core.errors import LogFormatError, UsageError
from posbias.core.estimators.methods import ConditionalEstimator, RandomizedEstimator
from posbias.core.exploration import ATTRACTIVENESS, STD_DEV, DesignInputs, Plan
from posbias.core.fit.propensities import SHARED_CLICKS
from posbias.core.schema import POSITION, QUERY
from posbias.io.fits.saved_fit import StoredFit, fit_in
from posbias.io.places.locations import Location
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import ATTRACTIVENESS as ATTRACTIVENESS_FILE
from posbias.io.results.tables import FILES_OF_A_FIT, PROPENSITIES, reading_parquet

FILES = (*FILES_OF_A_FIT, f"{ATTRACTIVENESS_FILE}.parquet")

_AGAIN = "Run `posbias fit` again."
_ROWS_AT_ONCE = 1 << 18


@contextmanager
def open_explored(place: Location) -> Generator[tuple[StoredFit, DesignInputs]]:
    """The fit in a directory that `fit` or `run` wrote, and what its cells say of further pages.

    Raises:
        LogFormatError: it is damaged, older than what is needed, or was replaced while it was read.
        UsageError: what the directory holds is no fit, or one of a kind from which nothing can be planned.
    """
    with open_stored(place, FILES) as stored:
        fit = fit_in(stored, str(stored.folder))
        _check_kind(fit)
        yield fit, _known(fit)


def _check_kind(fit: StoredFit) -> None:
    """Refuse a fit whose cells a swap does not move documents between, or whose errors are not those of its clicks."""
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
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{fit.folder}: was fitted with {reason}. Fit the log again without it, and explore that.")


def _known(fit: StoredFit) -> DesignInputs:
    shared, estimate = fit.shared_clicks, fit.estimate
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
    )
    known.check(where=str(fit.folder / f"{PROPENSITIES}.parquet"))
    return known


def number_of_documents(fit: StoredFit) -> int:
    """How many rows the table of attractiveness has.

    Raises:
        LogFormatError: there is none.
    """
    parquet: Any = import_module("pyarrow.parquet")
    path = fit.documents
    if not path.is_file():
        raise LogFormatError(f"{fit.folder}: holds no {path.name}. Name the directory that `posbias fit` wrote.")
    with reading_parquet(path):
        return int(parquet.read_metadata(path).num_rows)


def whole_queries(fit: StoredFit) -> Iterator[pl.DataFrame]:
    """Attractiveness in pieces of whole queries; beside a query, some 2^18 rows are held at a time.

    Raises:
        LogFormatError: there is no such table, or it holds what no fit writes.
    """
    parquet: Any = import_module("pyarrow.parquet")
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    path, held = fit.documents, pl.DataFrame()
    with reading_parquet(path), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            rows = to_polars(batch)
            _check_rows(rows, fit)
            held = rows if not held.height else pl.concat([held, rows])
            number = held[QUERY].rle_id()
            whole = number < number[-1]
            if whole.any():
                yield held.filter(whole)
                held = held.filter(~whole)
    if held.height:
        yield held


def _check_rows(rows: pl.DataFrame, fit: StoredFit) -> None:
    missing = [name for name in (QUERY, *fit.plan.context, ATTRACTIVENESS, STD_DEV) if name not in rows.columns]
    if missing:
        raise LogFormatError(f"{fit.documents}: has no column {missing[0]!r}. {_AGAIN}")
    mean, deviation = pl.col(ATTRACTIVENESS), pl.col(STD_DEV)
    sound = mean.is_between(0, 1) & (deviation >= 0) & deviation.is_finite()
    broken = rows.filter(~sound.fill_null(value=False))
    if broken.height:
        raise LogFormatError(
            f"{fit.documents}: holds an attractiveness that is not between 0 and 1, or no standard deviation of one: "
            f"{broken.row(0, named=True)}. {_AGAIN}"
        )


WIDTHS, SWAPS, DOCUMENTS = "widths.parquet", "swaps.parquet", "documents.parquet"
OTHER_POSITION, PAGES = "other_position", "pages"


def widths_table(cells: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """One row per cell: the interval of log propensity now, and after the further pages. What has none is infinite."""
    best = plan.alone[plan.best]
    columns = {
        "std_error": plan.now.std_error,
        "width": plan.now.width,
        "width_without_swaps": plan.unswapped.width,
        "width_with_best_swap": best.width,
        "width_with_plan": plan.planned.width,
    }
    return cells.with_columns(pl.Series(name, np.asarray(values, np.float64)) for name, values in columns.items())


def swaps_table(plan: Plan) -> pl.DataFrame:
    """One row per swap, the best first: what becomes of the intervals if it has all pages, and its part in the plan."""
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
    whole = {POSITION: pl.Int32, OTHER_POSITION: pl.Int32}
    return pl.DataFrame(rows, schema_overrides=whole)


def pages_of(plan: Plan) -> dict[tuple[int, int], int]:
    """How many pages each swap of the plan has: whole ones, all together N."""
    ends = np.rint(np.cumsum(list(plan.shares.values())) * plan.pages).astype(np.int64)
    return dict(zip(plan.shares, np.diff(ends, prepend=0).tolist(), strict=True))


def write_plan(cells: pl.DataFrame, plan: Plan, folder: Path) -> None:
    """Write what is to be swapped."""
    widths_table(cells, plan).write_parquet(folder / WIDTHS)
    swaps_table(plan).write_parquet(folder / SWAPS)
