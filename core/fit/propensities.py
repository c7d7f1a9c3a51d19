"""The propensity table of a fit, the choice of propensities for weights, and the covariance of log theta.

Weights: a click weighs 1 / theta, so that an error of theta affects all clicks of its cell. Where the relative standard
error of the fitted propensity exceeds `LARGEST_ERROR`, the smooth curve that a fit writes beside it is closer to the
truth. The column `weight_propensity` holds the chosen one of the two.

Covariance: the covariance of log examination is a table of its own, with the cell columns and a list `covariance` of
one entry per cell, in the order of the rows; a list `shared_clicks` of the same form may follow.

Shared clicks: stratum j (a pair, or a pair within a period) has C_j clicks, expected in its cells in the shares
p_je = n_je theta_e / sum_e' n_je' theta_e'. The clicks by which cells e and f are compared are

    M_ef = sum_j C_j p_je p_jf

Row sums of M are the expected clicks by cell, and diag(row sums) - M is the information of the conditional likelihood
(`theta.conditional`). Designs of further pages are computed from M (`exploration`).

Differences between queries: tau is the standard deviation of a query's (cluster's) own log theta. A further impression
is examined with the theta of its own query, however precise the mean over queries. Under independent deviations of
standard deviation tau in every cell, the scores s_g of queries with information H_g have

    E s_gk^2 = a_gk + tau^2 b_gk,    a_gk = (H_g)_kk,    b_gk = (H_g H_g)_kk

so that tau^2 solves  sum_gk b_gk (s_gk^2 - a_gk - tau^2 b_gk) / (a_gk + tau^2 b_gk)^2 = 0. This is the equation of the
normal likelihood, unbiased for other distributions too; a large query counts no more than a medium one.

Sources: Breslow 1984 (extra-Poisson variance); Wedderburn 1974 (quasi-likelihood).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers, Members, first_of_runs, sum_by_number
from posbias.core.arrays.linalg import MANY, NORMAL, by_unit_and_cell, gram, in_rows
from posbias.core.attractiveness import AttractivenessPrior
from posbias.core.choices import LARGEST_ERROR, Source
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics, key_numbers
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.estimators import get_method
from posbias.core.estimators.estimate import (
    CurveEstimate,
    Estimate,
    EstimationOptions,
    conditional_estimate,
    relative_to_largest,
)
from posbias.core.schema import POSITION, PREVIOUS_CLICK, QUERY, Length
from posbias.core.shapes import FREE, ShapedEstimate
from posbias.core.shapes.contexts import ShrunkContexts, shrink_contexts
from posbias.core.standard_errors import cluster
from posbias.core.standard_errors.column import LogFit, column_sums
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import linked_counts

PROPENSITY = "propensity"
EXAMINATION = "examination"

LARGEST_PROPENSITY = 1e30
"""Propensities above it, or below its inverse, are rejected: no log yields such a ratio of two cells."""

WEIGHT_PROPENSITY = "weight_propensity"
SMOOTH_PROPENSITY = "smooth_propensity"
SMOOTH_STD_ERROR = "smooth_std_error"
STD_ERROR = "std_error"

_NUMBERS = (PROPENSITY, EXAMINATION, STD_ERROR, SMOOTH_PROPENSITY, SMOOTH_STD_ERROR)
_SMALLEST_EXAMINATION = 5e-324  # the smallest positive float
_ADVICE = "Name a directory as `posbias fit` or `run` wrote it."


def known_numbers(name: str, values: Floats) -> pl.Series:
    """Return a column in which numbers that are not finite are null."""
    return pl.Series(name, np.where(np.isfinite(values), values, np.nan), nan_to_null=True)


def is_thin(propensity: Floats, std_error: Floats) -> Flags:
    """Flag cells whose propensity has a relative standard error above `LARGEST_ERROR`, or none."""
    return np.isfinite(propensity) & ~(std_error <= LARGEST_ERROR)


def propensity_for_weights(propensity: Floats, std_error: Floats, smooth: Floats) -> Floats:
    """Return the smooth curve in thin cells (`is_thin`) where it is known, and the fitted propensity elsewhere."""
    return np.where(is_thin(propensity, std_error) & np.isfinite(smooth), smooth, propensity)


def check_own_propensities(table: pl.DataFrame, cells: Sequence[str], *, where: str) -> pl.DataFrame:
    """Validate a user's own propensities and return them as a propensity table.

    Args:
        table: the cell columns and `propensity`, above 0.
        cells: the cell columns, with the position.
        where: the source of the table, for the message.

    Returns:
        The columns of `check_propensities`, with `examination` = propensity / its maximum, and without errors.

    Raises:
        LogFormatError: a value is out of range or missing, or a cell is repeated.
    """
    propensity = pl.col(PROPENSITY).cast(pl.Float64, strict=False)
    examination = (propensity / propensity.max()).alias(EXAMINATION)
    advice = "Write one row for each cell, with a propensity above 0."
    known = check_propensities(table.select(*cells, PROPENSITY, examination), cells, where=where, advice=advice)
    missing = known[PROPENSITY].is_null()
    if missing.any() or not known.height:
        row = f"row {missing.arg_true()[0] + 1} has" if known.height else "has"
        raise LogFormatError(f"{where}: {row} no propensity. {advice}")
    return known


@dataclass(frozen=True)
class ChosenPropensities:
    """A propensity table for weights."""

    table: pl.DataFrame  # with the chosen `propensity`, its `examination` and `std_error`
    smooth: tuple[int, ...]  # positions with the propensity of the smooth curve
    known: int  # number of cells with a propensity


def choose_propensities(table: pl.DataFrame, source: Source) -> ChosenPropensities:
    """Choose the propensities for weights.

    Args:
        table: of a fit, with the columns of `check_propensities`.
        source: `fitted` for `propensity`, `smooth` for `weight_propensity`.
    """
    known = table.height - table[PROPENSITY].null_count()
    differs = pl.col(WEIGHT_PROPENSITY).ne_missing(pl.col(PROPENSITY))
    positions: list[int] = table.filter(differs)[POSITION].to_list() if source == "smooth" else []
    if not positions:
        return ChosenPropensities(table, (), known)
    weight = pl.col(WEIGHT_PROPENSITY)
    changed = table.with_columns(
        pl.when(differs).then(SMOOTH_STD_ERROR).otherwise(STD_ERROR).alias(STD_ERROR),
        weight.alias(PROPENSITY),
        (weight / weight.max()).alias(EXAMINATION),
    )
    return ChosenPropensities(changed, tuple(positions), known)


def check_propensities(table: pl.DataFrame, cells: Sequence[str], *, where: str, advice: str = _ADVICE) -> pl.DataFrame:
    """Validate a propensity table from a file, which may have been edited.

    Args:
        table: with the cell columns, `propensity` and `examination` at least.
        cells: the cell columns, with the position.
        where: the source of the table, for the message.
        advice: the remedy, for the message.

    Returns:
        The cell columns, `propensity`, `examination`, `std_error`, `smooth_propensity`, `smooth_std_error` and
        `weight_propensity` (all Float64, null if unknown). A missing `weight_propensity` is computed from the errors
        (`propensity_for_weights`).

    Raises:
        LogFormatError: a column is missing or of another type, a value is out of range, or a cell is repeated.
    """
    missing = [name for name in (*cells, PROPENSITY, EXAMINATION) if name not in table.columns]
    if missing:
        raise LogFormatError(f"{where}: has no column {missing[0]!r}, so it is not the table of this fit. {advice}")
    table = table.with_columns(pl.lit(None, pl.Float64).alias(name) for name in _NUMBERS if name not in table.columns)
    numbers = [*_NUMBERS, *([WEIGHT_PROPENSITY] if WEIGHT_PROPENSITY in table.columns else [])]
    for name, dtype in table.schema.items():
        whole = name in cells and name in {POSITION, PREVIOUS_CLICK}
        if (whole and not dtype.is_integer()) or (name in numbers and not (dtype.is_numeric() or dtype == pl.Null)):
            kind = "whole numbers" if whole else "numbers"
            raise LogFormatError(f"{where}: column {name!r} holds {dtype} instead of {kind}. {advice}")
    known = table.select(*cells, pl.col(numbers).cast(pl.Float64))
    if WEIGHT_PROPENSITY not in table.columns:
        values = (known[name].fill_null(np.nan).to_numpy() for name in (PROPENSITY, STD_ERROR, SMOOTH_PROPENSITY))
        known = known.with_columns(known_numbers(WEIGHT_PROPENSITY, propensity_for_weights(*values)))
    propensity, examination, std_error, smooth, smooth_error = map(pl.col, _NUMBERS)
    weight, limits = pl.col(WEIGHT_PROPENSITY), (1 / LARGEST_PROPENSITY, LARGEST_PROPENSITY)
    between = f"propensity that is not between {limits[0]:g} and {limits[1]:g}"
    neither = weight.ne_missing(propensity) & (weight.ne_missing(smooth) | propensity.is_null())
    faults = {
        "has no position": pl.col(POSITION).is_null() | (pl.col(POSITION) < 1),
        **({"has no previous click": pl.col(PREVIOUS_CLICK).is_null()} if PREVIOUS_CLICK in cells else {}),
        f"has a {between}": _outside(propensity, *limits),
        f"has a smooth {between}": _outside(smooth, *limits),
        f"has a {WEIGHT_PROPENSITY} that is neither its propensity nor its smooth propensity": neither,
        "has a standard error below 0": _outside(std_error, 0.0, np.inf) | _outside(smooth_error, 0.0, np.inf),
        "has an examination that is not above 0 and at most 1": _outside(examination, _SMALLEST_EXAMINATION, 1.0),
        "repeats a cell": pl.struct(cells).is_duplicated() & ~pl.struct(cells).is_first_distinct(),
    }
    for fault, broken in faults.items():
        rows = known.with_row_index(_ROW, 1).filter(broken)
        if rows.height:
            number, *values = rows.row(0)
            pairs = zip(known.columns, values, strict=True)
            content = ", ".join(f"{name} {value}" for name, value in pairs if value is not None)
            raise LogFormatError(f"{where}: row {number} {fault}: {content}. {advice}")
    return known


def _outside(value: pl.Expr, lowest: float, highest: float) -> pl.Expr:
    """Return whether a value is outside of a range, or NaN or infinite; false for null."""
    return value.is_not_null() & ~(value.is_between(lowest, highest) & value.is_finite())


def with_requested_errors(
    estimate: Estimate,
    statistics: SufficientStatistics,
    options: EstimationOptions,
    period: Length,
    sum_sessions: Callable[[LogFit], cluster.ClusterSums] | None,
) -> Estimate:
    """Replace the errors by query of a conditional estimate by errors of the requested kind.

    Args:
        estimate: by any method; only a conditional fit supports other errors.
        statistics: the compressed log.
        options: of the estimate.
        period: the period within which strata lie.
        sum_sessions: reads the log once more, for errors by session; None without a log.

    Raises:
        UsageError: errors by session are requested without the log.
    """
    fitted, clusters, supported = estimate.fitted, statistics.plan.clusters, get_method(estimate.method).clusters
    both_ways = clusters and "two-way" in supported and options.shape == FREE and not options.bootstrap
    by = options.cluster or ("two-way" if both_ways else supported[0])
    if fitted is None or (by == "query" and not options.bootstrap):
        return estimate
    fit, strata = fitted.fit, fitted.strata
    if options.bootstrap:
        errors = cluster.bootstrap(fit, strata, options.bootstrap, options.seed)
    elif by == "pair":
        errors = cluster.pair_errors(fit, strata.signatures)
    else:
        if by == "column":
            sums = column_sums(statistics, fit, period, clusters)
        elif by == "two-way":
            sums = (
                cluster.sum_clusters(fit, strata),
                column_sums(statistics, fit, period, clusters),
                column_sums(statistics, fit, period, (QUERY, *clusters)),
            )
        elif sum_sessions is None:
            raise UsageError("--cluster session: it needs the log itself, not only statistics. Name the logs.")
        else:
            sums = sum_sessions(LogFit(statistics.plan, statistics.cells, fit, period))
        errors = cluster.errors_from_sums(fit.log_theta, fit.free_cells, sums)
    return conditional_estimate(estimate.method, replace(fitted, errors=errors), strata.signatures, by)


def with_shape(estimate: Estimate, fitted: StrataEstimate, shaped: ShapedEstimate) -> Estimate:
    """Return the estimate under a shape other than `free`."""
    high = np.where(np.isfinite(shaped.theta), shaped.intervals.high, estimate.intervals.high)
    return replace(
        estimate,
        propensity=shaped.theta,
        examination=relative_to_largest(shaped.theta, fitted.fit.linkage),
        intervals=replace(shaped.intervals, high=high),
        converged=estimate.converged and shaped.converged,
    )


_FROM_OTHER_CONTEXTS = "its number is that of the other contexts, without an interval for this one"


def with_shrinkage(
    estimate: Estimate, fitted: StrataEstimate | CurveEstimate, position_of_cell: Integers
) -> tuple[Estimate, ShrunkContexts]:
    """Return the estimate with each context shrunk towards the common curve, and the strength of shrinkage.

    A cell without an error in any context is not changed. A cell without an error in its own context has the propensity
    of the other contexts and no interval, since its distance from them is unknown.
    """
    shrunk = shrink_contexts(fitted.fit, fitted.errors, position_of_cell)
    known = np.isfinite(shrunk.log_theta)
    propensity = np.where(known, np.exp(shrunk.log_theta), estimate.propensity)
    intervals = shrunk.intervals.where(np.isfinite(shrunk.intervals.std_error), estimate.intervals)
    borrowed = known & np.isnan(intervals.std_error)
    reason = tuple(
        f"{why}; {_FROM_OTHER_CONTEXTS}" if is_borrowed and why else why
        for why, is_borrowed in zip(intervals.reason, borrowed, strict=True)
    )
    examination = relative_to_largest(propensity, fitted.fit.linkage)
    intervals = replace(intervals, reason=reason)
    return replace(estimate, propensity=propensity, examination=examination, intervals=intervals), shrunk


COVARIANCE = "covariance"
SHARED_CLICKS = "shared_clicks"

_ROUNDING = 1e-8  # relative difference of two entries that is no asymmetry
_ROW = "posbias_row"


@dataclass(frozen=True)
class ThetaEstimate:
    """A fitted theta, from which training files are computed."""

    propensities: pl.DataFrame  # the propensity table, a row per cell
    prior: AttractivenessPrior | None  # of attractiveness; None if it has to be estimated from the log
    covariance: pl.DataFrame | None = None  # `covariance_table`; None if the method has no errors, or in older fits
    context: tuple[str, ...] = ()  # context columns; each context has a reference cell of its own


def covariance_table(cells: pl.DataFrame, covariance: Floats, shared: Floats | None = None) -> pl.DataFrame:
    """Return the covariance of log examination as a table.

    Args:
        cells: the cell columns, K rows.
        covariance: shape (K, K).
        shared: shared clicks M, shape (K, K).
    """
    matrices = {COVARIANCE: covariance} if shared is None else {COVARIANCE: covariance, SHARED_CLICKS: shared}
    return cells.with_columns(pl.Series(name, matrix, pl.List(pl.Float64)) for name, matrix in matrices.items())


def square_matrix(column: pl.Series) -> Floats:
    """Convert a column of K lists of length K to a matrix, shape (K, K)."""
    return np.array(column.to_list(), np.float64).reshape(len(column), len(column))


def cell_covariance(cells: pl.DataFrame, table: pl.DataFrame) -> Floats:
    """Return the covariance of log examination of cells, shape (K, K), 0 in rows and columns of cells not in the table.

    Args:
        cells: the cell columns, K rows.
        table: of `covariance_table`, with any cells.
    """
    keys = table.select(pl.col(name).cast(dtype) for name, dtype in cells.schema.items())
    row = key_numbers(keys, cells, cells.columns)
    known, index = row.is_not_null().to_numpy(), row.fill_null(0).to_numpy()
    covariance = square_matrix(table[COVARIANCE])
    return np.where(np.outer(known, known), covariance[np.ix_(index, index)], 0.0)


def check_covariance(table: pl.DataFrame, cells: Sequence[str], *, where: str) -> pl.DataFrame:
    """Validate a covariance table from a file, and return it.

    Args:
        table: content of the file.
        cells: the cell columns.
        where: the file, for the message.

    Raises:
        LogFormatError: the columns are others, or a matrix is not square, finite and symmetric, or has a value below 0
            on the diagonal of the covariance or in the shared clicks.
    """
    lists = [name for name in table.columns if name not in cells]
    expected = table.columns == [*cells, *lists] and lists in ([COVARIANCE], [COVARIANCE, SHARED_CLICKS])
    if not expected or any(table.schema[name] != pl.List(pl.Float64) for name in lists):
        raise LogFormatError(f"{where}: the columns must be {', '.join(cells)} and a list {COVARIANCE!r}.")
    for name in lists:
        if not (table[name].list.len() == table.height).fill_null(value=False).all():
            raise LogFormatError(f"{where}: {name!r} must have an entry for each of the {table.height} rows.")
    covariance = square_matrix(table[COVARIANCE])
    variance = np.diag(covariance)
    size = np.sqrt(np.outer(variance.clip(0), variance.clip(0)))
    if not ((variance >= 0).all() and _is_symmetric(covariance, size + _ROUNDING)):
        raise LogFormatError(f"{where}: {COVARIANCE!r} is no covariance: it must be finite and symmetric.")
    if SHARED_CLICKS in lists:
        shared = square_matrix(table[SHARED_CLICKS])
        if not ((shared >= 0).all() and _is_symmetric(shared, np.abs(shared) + 1)):
            raise LogFormatError(f"{where}: {SHARED_CLICKS!r} must be finite, at least 0 and symmetric.")
    return table


def _is_symmetric(matrix: Floats, size: Floats) -> bool:
    """Return whether a matrix is finite, and symmetric up to rounding of entries of the given size, shape (K, K)."""
    return bool(np.isfinite(matrix).all() and (np.abs(matrix - matrix.T) <= _ROUNDING * size).all())


def shared_clicks(statistics: SufficientStatistics, estimate: Estimate) -> Floats | None:
    """Return the shared clicks M of a free estimate, shape (K, K).

    None if theta is not estimated from the clicks of strata, if cells depend on other clicks (UBM), or if impressions
    have weights, as the weights of further pages are unknown.
    """
    plan = statistics.plan
    if estimate.fitted is None or plan.model.beside_position or plan.weighted:
        return None
    counts, position, strata = statistics.cell_totals, statistics.position_of_cell, estimate.fitted.strata.signatures
    theta = working_theta(estimate.propensity, *counts, position, statistics.curve_of_cell)
    shared = np.zeros((strata.n_cells, strata.n_cells))
    for _, block in strata.blocks():
        expected = block.impressions * theta[block.cell]
        weight = np.sqrt(block.multiplicity * block.sum_by_unit(block.clicks)) / block.sum_by_unit(expected)
        shared += gram(by_unit_and_cell(block, expected * block.spread(weight)))
    return shared


def working_theta(
    propensity: Floats, impressions: Floats, clicks: Floats, position: Integers, context: Integers
) -> Floats:
    """Impute the propensities of cells that are not identified, shape (K,), above 0.

    The ratio to the nearest identified position of the same context is the ratio of click rates, as if the documents at
    both were equally attractive. In a context without identified cells, click rates relative to the largest are used.

    Args:
        propensity: shape (K,), NaN where not identified.
        impressions: by cell, shape (K,).
        clicks: by cell, shape (K,).
        position: of each cell, shape (K,).
        context: context number of each cell, shape (K,).
    """
    rate = (clicks + _HALF_A_CLICK) / (impressions + 2 * _HALF_A_CLICK)
    theta = propensity.copy()
    for cell in np.flatnonzero(~np.isfinite(propensity)):
        known = np.flatnonzero(np.isfinite(propensity) & (context == context[cell]))
        if not len(known):
            theta[cell] = rate[cell] / rate[context == context[cell]].max()
            continue
        nearest = known[np.argmin(np.abs(position[known] - position[cell]))]
        theta[cell] = propensity[nearest] * rate[cell] / rate[nearest]
    return theta


_HALF_A_CLICK = 0.5  # so that a cell without clicks has a rate above 0


LARGEST_SAMPLE = 500
"""Largest number of queries from which tau is estimated: its relative error is then about 5 %."""

LARGEST_SPREAD = 3.0
"""Largest tau: theta of queries then differs by factors of twenty, more than any log can show."""

_HALVINGS = 60


def query_spread(fitted: StrataEstimate) -> float:
    """Estimate tau, the standard deviation of log theta between queries (clusters); 0 without evidence of differences.

    Of more than `LARGEST_SAMPLE` clusters with information, every m-th is used.
    """
    signatures, members = fitted.strata.signatures, fitted.strata.members
    informative = np.zeros(signatures.n_units, bool)
    informative[linked_counts(signatures, fitted.fit.linkage).units] = True
    clusters = np.sort(members.cluster[informative[members.unit]])
    clusters = clusters[first_of_runs(clusters)]  # np.unique hashes them, which is slower
    sampled = clusters[:: max(-(-len(clusters) // LARGEST_SAMPLE), 1)]
    rows = np.flatnonzero(np.isin(members.cluster, sampled))
    units, unit = np.unique(members.unit[rows], return_inverse=True)
    sample = Strata(signatures.take(units), Members(unit, members.cluster[rows]))
    scores = cluster.cluster_scores(fitted.fit, sample)
    if len(scores.numbers) <= 1:
        return 0.0
    squares, by_chance, by_spread = _squared_scores(scores)
    squares = squares * len(scores.numbers) / (len(scores.numbers) - 1)  # the scores of all queries add up to 0

    def excess(variance: float) -> float:
        expected = by_chance + variance * by_spread
        return float((by_spread * (squares - expected) / expected**2).sum())

    low, high = 0.0, LARGEST_SPREAD**2
    if excess(low) <= 0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return float(np.sqrt(low))


def _squared_scores(scores: cluster.ClusterScores) -> tuple[Floats, Floats, Floats]:
    """Return s_gk^2, a_gk and b_gk for all clusters g and cells k with information, each of shape (n,)."""
    if len(scores.linked.cells) >= MANY:  # most of H_g is 0
        parts = [_sparse_information(scores, row) for row in range(len(scores.numbers))]
    else:
        parts = [
            (np.diagonal(information, axis1=1, axis2=2), (information**2).sum(axis=2))
            for _, information in scores.information(np.arange(len(scores.numbers)))
        ]
    by_chance, by_spread = (np.vstack(part) for part in zip(*parts, strict=True))
    informed = by_chance > 0
    return scores.scores.toarray()[informed] ** 2, by_chance[informed], by_spread[informed]


def _sparse_information(scores: cluster.ClusterScores, row: int) -> tuple[Floats, Floats]:
    """Return a_k and b_k of one cluster, shape (K,) each, by the pairs of cells that share a unit."""
    n_cells = len(scores.linked.cells)
    in_row = slice(*scores.weight.indptr[row : row + 2].tolist())
    entries, start = scores.linked.table.entry_indices(scores.weight.indices[in_row])
    cell, share = scores.linked.table.cell[entries], scores.shares[entries]
    clicks = np.repeat(scores.weight.data[in_row], np.diff(start))
    rows = in_rows(share * np.sqrt(clicks), cell, start, n_cells)
    coupling = rows.T @ rows
    number = np.repeat(np.arange(n_cells), np.diff(coupling.indptr))
    off_diagonal = np.where(number == coupling.indices, 0.0, coupling.data**2)
    by_chance = sum_by_number(cell, clicks * share, n_cells) - sum_by_number(cell, clicks * share**2, n_cells)
    return by_chance, by_chance**2 + sum_by_number(number, off_diagonal, n_cells)


MOST_CELLS = 2_000
"""Largest number of cells with a covariance (32 MB); beyond, attractiveness has the errors of counts alone."""


def errors_of_theta(estimate: Estimate) -> tuple[float, Floats | None]:
    """Return tau, and the covariance of the log examination of a further query, V + tau^2 I, shape (K, K).

    tau is 0 for methods that cannot estimate it. The covariance is None where `log_covariance` is.
    """
    spread = 0.0 if estimate.fitted is None else query_spread(estimate.fitted)
    covariance = log_covariance(estimate)
    return spread, None if covariance is None else covariance + spread**2 * np.eye(len(covariance))


def log_covariance(estimate: Estimate) -> Floats | None:
    """Return V, the covariance of log examination, shape (K, K); None without errors or with over `MOST_CELLS` cells.

    Standard deviations are the half widths of the intervals over z_.975, so that they include few degrees of freedom;
    in cells without an interval, those of the counts alone. Rows of cells that are not identified are 0. Correlations
    are those of the clustered covariance: of the free estimate under any shape other than the product form.
    """
    intervals, known = estimate.intervals, estimate.linkage.identified
    if estimate.of_form is not None:
        known = np.isfinite(estimate.propensity)
    if not np.isfinite(intervals.std_error).any() or len(known) > MOST_CELLS:
        return None
    with np.errstate(divide="ignore"):
        half_width = intervals.half_width(np.log(estimate.propensity))
    spread = np.where(np.isfinite(half_width), half_width / NORMAL, intervals.std_error)
    if estimate.conditional is not None:
        fit, by_counts = estimate.conditional.fit, np.zeros(len(spread))
        by_counts[fit.free_cells] = np.sqrt(np.diag(fit.inverse))
        spread = np.where(np.isfinite(spread), spread, by_counts)
    spread = np.where(known, np.nan_to_num(spread, posinf=0.0), 0.0)  # 0 at references and where not identified
    covariance = np.outer(spread, spread) * estimate.correlation
    reference = estimate.linkage.reference_of
    order = np.argsort(-np.nan_to_num(estimate.propensity, nan=-np.inf), kind="stable")
    references, first = np.unique(reference[order], return_index=True)  # the largest cell of each reference
    largest = order[first][np.searchsorted(references, reference)][known]
    covariance[known] -= covariance[largest]
    covariance[:, known] -= covariance[:, largest]
    return covariance
