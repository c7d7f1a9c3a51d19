"""What `explore` reads of a fit: its cells with all that is known of them, and attractiveness, query by query."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.randomized import RandomizedEstimator
from posbias.core.exploration.curve import Strata
from posbias.core.exploration.documents import ATTRACTIVENESS, STD_DEV
from posbias.core.exploration.known import KnownFit
from posbias.core.fit.fitted_theta import SHARED_CLICKS, matrix_of
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import QUERY
from posbias.io.fits.read import require_propensities
from posbias.io.places.locations import Location
from posbias.io.results.stored import open_stored
from posbias.io.results.tables import (
    ATTRACTIVENESS as ATTRACTIVENESS_FILE,
)
from posbias.io.results.tables import FILES_OF_A_FIT, PROPENSITIES, read_covariance, read_propensities, read_table
from posbias.io.stores.manifest import Counted

FILES = (*FILES_OF_A_FIT, f"{ATTRACTIVENESS_FILE}.parquet")

_AGAIN = "Run `posbias fit` again."
_ROWS_AT_ONCE = 1 << 18


class _Period(msgspec.Struct, frozen=True):
    used: str


class _Estimate(msgspec.Struct, frozen=True):
    method: str
    converged: bool
    period: _Period
    query_spread: float
    shape: str | UnsetType = UNSET
    strata: float | UnsetType = UNSET
    effective_clusters: list[float | None] | UnsetType = UNSET


class _FitManifest(msgspec.Struct, frozen=True):
    """As much of the manifest of a fit as is read again."""

    counted: Counted
    estimate: _Estimate


@dataclass(frozen=True)
class ExploredFit:
    """A fit on disk that further pages can be planned from.

    Attributes:
        known: its cells.
        cells: the cell columns, in the order of the rows.
        randomized: the randomised rows that theta is from, where it is from such.
        converged: whether the fit converged.
        documents: the file of attractiveness.
        context: the columns that tell contexts apart there.
        n_documents: how many rows it has.
    """

    known: KnownFit
    cells: pl.DataFrame
    randomized: tuple[RandomizedRows, ...]
    converged: bool
    documents: Path
    context: tuple[str, ...]
    n_documents: int


@contextmanager
def open_explored(place: Location) -> Generator[ExploredFit]:
    """The fit in a directory that `fit` or `run` wrote.

    Raises:
        LogFormatError: it is damaged, older than what is needed, or was replaced while it was read.
        UsageError: what the directory holds is no fit, or one of a kind from which nothing can be planned.
    """
    with open_stored(place, FILES) as stored:
        folder = stored.folder
        require_propensities(stored, str(folder))
        said = stored.typed(_FitManifest)
        plan = said.counted.plan()
        _check_kind(plan, said.estimate, folder)
        known, documents = _known(folder, plan, said.estimate), folder / f"{ATTRACTIVENESS_FILE}.parquet"
        yield ExploredFit(
            known=known,
            cells=known.table.select(plan.cell_columns),
            randomized=plan.randomized if known.strata == "randomized" else (),
            converged=said.estimate.converged,
            documents=documents,
            context=plan.context,
            n_documents=_number_of_rows(documents),
        )


def _check_kind(plan: StatisticsPlan, estimate: _Estimate, folder: Path) -> None:
    """Refuse a fit whose cells a swap does not move documents between, or whose errors are not those of its clicks."""
    methods = (ConditionalEstimator.name, RandomizedEstimator.name)
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
            raise UsageError(f"{folder}: was fitted with {reason}. Fit the log again without it, and explore that.")


def _known(folder: Path, plan: StatisticsPlan, estimate: _Estimate) -> KnownFit:
    path = folder / f"{PROPENSITIES}.parquet"
    cells = read_propensities(folder, plan.cell_columns).select(plan.cell_columns)
    table, matrices = read_table(path), read_covariance(folder, plan.cell_columns)
    if matrices is None or SHARED_CLICKS not in matrices.columns or estimate.strata is UNSET:
        raise LogFormatError(
            f"{folder}: does not say which clicks compare which positions ({SHARED_CLICKS!r} in "
            "theta_covariance.parquet): it has no standard errors or too many positions, or is older than that. "
            f"{_AGAIN}"
        )
    if not matrices.select(plan.cell_columns).equals(cells):
        raise LogFormatError(f"{folder}: theta_covariance.parquet and {path.name} have other cells. {_AGAIN}")
    clusters = [] if estimate.effective_clusters is UNSET else estimate.effective_clusters
    effective = np.array([np.nan if number is None else number for number in clusters], np.float64)
    known = KnownFit(
        table=table,
        context=plan.context,
        shared=matrix_of(matrices[SHARED_CLICKS]),
        query_spread=estimate.query_spread,
        effective_clusters=effective if len(effective) == table.height else np.full(table.height, np.nan),
        strata=_strata(estimate),
        n_strata=estimate.strata,
    )
    known.check(where=str(path))
    return known


def _strata(estimate: _Estimate) -> Strata:
    if estimate.method == RandomizedEstimator.name:
        return "randomized"
    return "shared" if estimate.period.used == "none" else "apart"


def _number_of_rows(path: Path) -> int:
    parquet: Any = import_module("pyarrow.parquet")
    if not path.is_file():
        raise LogFormatError(f"{path.parent}: holds no {path.name}. Name the directory that `posbias fit` wrote.")
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, ValueError) as error:  # pyarrow's errors are among these
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error


def whole_queries(fit: ExploredFit) -> Iterator[pl.DataFrame]:
    """Attractiveness in pieces of whole queries; beside a query, some 2^18 rows are held at a time.

    Raises:
        LogFormatError: there is no such table, or it holds what no fit writes.
    """
    parquet: Any = import_module("pyarrow.parquet")
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    path, held = fit.documents, pl.DataFrame()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                rows = to_polars(batch)
                _check_rows(rows, fit)
                held = rows if not held.height else pl.concat([held, rows])
                number = held[QUERY].rle_id()
                whole = number < number[-1]
                if whole.any():
                    yield held.filter(whole)
                    held = held.filter(~whole)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:  # pyarrow's errors are among the last two
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error
    if held.height:
        yield held


def _check_rows(rows: pl.DataFrame, fit: ExploredFit) -> None:
    missing = [name for name in (QUERY, *fit.context, ATTRACTIVENESS, STD_DEV) if name not in rows.columns]
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
