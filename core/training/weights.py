"""Inverse propensity weights of clicks, their replicates, and the split of queries into training and validation.

Weights by cell, clipped at the minimum propensity tau:

    click in cell e:  w_e = 1 / max(theta_e, tau)        unclicked impression:  1

Replicate weights carry the errors of theta into whatever is computed from them:

    theta_r = theta exp(z_r),  z_r ~ N(0, V),  r = 1 .. N        w_r = 1 / max(theta_r, tau)

V is the covariance of log theta (0 for the reference cell). The spread of a result over the N replicates is its
standard error due to theta. All clicks of a cell share the error of its theta, so that it does not shrink with more
clicks. The sampling error of the clicks themselves is not included.

Under click models whose examination probability e differs by impression, an impression adds to its document's sum

    c / max(e, tau);        under trust bias, with alpha and beta of the impression:  (c - beta) / max(alpha, tau)

Both sums are unbiased for attractiveness times impressions if nothing is clipped; the second may be negative.

Split: an id belongs to validation if

    h(id) mod 10^6 < share * 10^6,        h = XXH64 of the id's text (UTF-8) with seed 42, as a signed 64-bit integer

Binary ids are hashed as they are. Spark SQL computes the same: pmod(xxhash64(CAST(query AS STRING)), 1000000). Several
columns are hashed one after the other, each with the previous hash as seed, as in Spark's xxhash64(a, b). The
validation set of a larger share contains that of a smaller one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import polars as pl
import xxhash

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.tails import tail_index, threshold
from posbias.core.choices import Negatives, Rate
from posbias.core.errors import UsageError
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.core.models import ExaminationModel
from posbias.core.models.page_matrices import Integers, PageBatch, Parameters, page_bounds
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, POSITION, SESSION, WEIGHT

_ROW, _REFERENCE = "posbias_row", "posbias_reference"
_SEED = 20_070_101
_NAME = re.compile(rf"replicate_{WEIGHT}_[0-9]+")


def replicate_names(number: int) -> list[str]:
    """Return the names of the columns of N replicate weights."""
    return [f"replicate_{WEIGHT}_{draw}" for draw in range(1, number + 1)]


def is_replicate(name: str) -> bool:
    """Return whether a name is that of a column of replicate weights."""
    return _NAME.fullmatch(name) is not None


def weight_columns(columns: Iterable[str]) -> list[str]:
    """Select the column of weights and those of replicate weights, in their order."""
    return [name for name in columns if name == WEIGHT or is_replicate(name)]


def draw_propensities(propensity: Floats, covariance: Floats, number: int) -> Floats:
    """Draw propensities from the sampling distribution of their estimates, log theta_r ~ N(log theta, V).

    Args:
        propensity: theta, shape (K,), nan where a cell has none.
        covariance: of log theta, shape (K, K).
        number: N.

    Returns:
        Shape (N, K), nan where `propensity` is.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = np.random.default_rng(_SEED).standard_normal((number, len(propensity))) @ root.T
    return propensity * np.exp(drawn)


def relative_covariance(
    table: pl.DataFrame, examination: Floats, std_error: Floats, context: Sequence[str] = ()
) -> Floats:
    """Return the covariance of log propensities relative to the reference cell.

    Args:
        table: the cell columns, `propensity` and `std_error` of a fit, K rows.
        examination: the covariance of log examination, which is relative to the largest cell, up to a constant on the
            diagonal, shape (K, K).
        std_error: of the log propensities in use, shape (K,): if they are not those of the fit (e.g. smoothed), the
            covariance is rescaled to these errors, and the correlations stay.
        context: context columns; each context has its own reference.

    Returns:
        Shape (K, K), 0 where a cell has no propensity.
    """
    cells = np.arange(table.height)
    constant = np.min(np.diag(examination), initial=np.inf)
    # The row of each cell's reference, which has propensity 1 and standard error 0; -1 if there is none
    first = pl.col(_ROW).filter((pl.col(PROPENSITY) == 1) & (pl.col(STD_ERROR) == 0)).min()
    rows = table.with_row_index(_ROW).select((first.over(context) if context else first).alias(_REFERENCE), _ROW)
    reference = rows[_REFERENCE].cast(pl.Int64).fill_null(-1).to_numpy()
    relative = np.eye(table.height)
    relative[cells[reference >= 0], reference[reference >= 0]] -= 1.0
    covariance = relative @ (examination - constant * np.eye(table.height)) @ relative.T
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    fitted = table[STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    requested = np.where(std_error == fitted, spread, np.nan_to_num(std_error))
    factor = np.divide(requested, spread, out=np.zeros_like(spread), where=spread > 0)
    scaled = covariance * np.outer(factor, factor)
    alone = np.where(spread > 0, 0.0, requested)
    return np.asarray(scaled + np.diag(alone**2))


CLICK_WEIGHT = "posbias_click_weight"
CELL_NUMBER = "cell_number"
"""With `--cell`, a column of pages: the row of the impression's cell in the table of propensities, from 1; 0: none."""


@dataclass(frozen=True)
class WeightOptions:
    """Options of click weights and of the layouts that sum them."""

    min_propensity: float = 0.01  # tau, in (0, 1], relative to the reference cell
    self_normalize: bool = False  # whether the weights of all clicks are scaled to a mean of 1
    # Definition of W+ and W- in the pointwise layout: `clamp` sums click weights and clamps W- at 0; `posterior` sums
    # posterior probabilities of attraction (for dense logs only), which the two options above do not affect
    negatives: Negatives = "clamp"
    rate: Rate = "posterior"  # label of the judgments layout
    grades: int = 5  # number of grades of the judgments layout, at least 2
    replicates: int = 0  # number N of replicate weights


def check_min_propensity(least: float) -> None:
    """Validate a minimum propensity.

    Raises:
        UsageError: it is no number in (0, 1].
    """
    if not isinstance(least, Real) or not 0 < least <= 1:
        raise UsageError(f"--min-propensity {least}: must be above 0 and at most 1.")


@dataclass(frozen=True)
class WeightSummary:
    """Effect of weighting on a log; clicks and impressions are sums of the log's own weights if it has any."""

    clicks_weighted: float  # clicks in cells with a propensity
    clicks_without_propensity: float  # clicks in the other cells
    impressions_without_propensity: float  # impressions in the other cells
    clicks_clipped: float  # clicks whose propensity is below the minimum
    weight_before_clipping: float  # sum of 1 / theta over the weighted clicks
    weight_after_clipping: float  # sum of w over them
    self_normalization_factor: float  # all weights are multiplied by it; 1 without self-normalisation
    # (sum u w)^2 / sum (u w)^2 over the clicks, u the log's own weight of a row (1 if it has none); None without a
    # weighted click, or if only sums of u are known
    effective_sample_size_before_clipping: float | None
    effective_sample_size: float | None  # the same with clipped weights
    pareto_k: float | None  # of the weights before clipping; None if too few differ, or if only sums are known
    pareto_k_at_most: float | None  # largest k with a usable mean of so many clicks


@dataclass(frozen=True)
class ClickWeights:
    """Click weight of each cell, and the effect of weighting on the whole log."""

    cells: pl.DataFrame  # the cell columns, one row per cell
    propensity: Floats  # theta, shape (K,), NaN if unknown
    weight: Floats  # w, shape (K,), NaN where theta is
    summary: WeightSummary  # for the manifest
    by_position: pl.DataFrame  # `position`, `clicks`, `weight_share` (of the weight of all clicks), by position
    replicates: Floats = field(default_factory=lambda: np.empty((0, 0)))  # shape (N, K), NaN where theta is
    # The row of each cell in the table of propensities, from 1, 0 for none, shape (K,); None without `--cell`
    number: pl.Series | None = None

    def frame(self) -> pl.DataFrame:
        """Return the cell columns with [`cell_number`], `propensity`, click weight and replicates, null if unknown."""
        return self.cells.with_columns(
            *([] if self.number is None else [self.number.alias(CELL_NUMBER)]),
            pl.Series(PROPENSITY, self.propensity, nan_to_null=True),
            pl.Series(CLICK_WEIGHT, self.weight, nan_to_null=True),
            *(
                pl.Series(f"{CLICK_WEIGHT}_{name}", weight, nan_to_null=True)
                for name, weight in zip(replicate_names(len(self.replicates)), self.replicates, strict=True)
            ),
        )


def click_weights(
    cells: pl.DataFrame,
    propensity: Floats,
    impressions: Floats,
    clicks: Floats,
    options: WeightOptions,
    *,
    squared_clicks: Floats | None = None,
    replicates: Floats | None = None,
) -> ClickWeights:
    """Compute click weights by cell, w = 1 / max(theta, tau), and their effect on the log.

    Args:
        cells: the cell columns, one row per cell.
        propensity: theta, shape (K,), NaN if unknown.
        impressions: number of impressions (or sum of their own weights u), shape (K,).
        clicks: number of clicks (or sum of u), shape (K,).
        options: clipping and normalisation.
        squared_clicks: sum of u^2 over the clicks, shape (K,), NaN if unknown; None if rows have no own weights.
        replicates: propensities of the replicates, as from `draw_propensities`, shape (N, K), NaN where theta is.
    """
    known = np.isfinite(propensity)
    counted = np.where(known, clicks, 0.0)
    squared = np.where(known, clicks if squared_clicks is None else squared_clicks, 0.0)
    unclipped = 1.0 / np.where(known, propensity, np.nan)
    clipped = known & (np.nan_to_num(propensity) < options.min_propensity)
    weight = np.where(clipped, 1.0 / options.min_propensity, unclipped)
    sums = {
        CLICKS: counted,
        _NUMBER: counted if squared_clicks is None else np.zeros(len(counted)),
        _LOST_CLICKS: np.where(known, 0.0, clicks),
        _LOST: np.where(known, 0.0, impressions),
        _CLIPPED: np.where(clipped, clicks, 0.0),
        _BEFORE: np.nan_to_num(counted * unclipped),
        _AFTER: np.nan_to_num(counted * weight),
        _SQUARES_BEFORE: np.where(squared == 0, 0.0, squared * unclipped**2),
        _SQUARES: np.where(squared == 0, 0.0, squared * weight**2),
    }
    by_cell = cells.select(POSITION).with_columns(pl.Series(*column) for column in sums.items())
    summary, by_position = row_weights(by_cell, options)
    factor = summary.self_normalization_factor
    other = np.empty((0, len(propensity))) if replicates is None else replicates
    of_replicates = 1.0 / np.maximum(other, options.min_propensity)
    if options.self_normalize:
        sums_of = np.nansum(counted * of_replicates, axis=1, keepdims=True)
        of_replicates *= np.divide(counted.sum(), sums_of, out=np.ones_like(sums_of), where=sums_of > 0)
    return ClickWeights(cells, propensity, weight * factor, summary, by_position, of_replicates)


def as_count(number: float) -> float | int:
    """Convert a sum to int if it is a whole number; other sums (of weights) stay float."""
    return int(number) if float(number).is_integer() else float(number)


_SPLIT_SEED, _SHARES, _SIGN = 42, 1_000_000, 1 << 63


def is_in_validation(ids: pl.Series, share: float) -> pl.Series:
    """Return whether each id belongs to the validation set, Boolean, in the order of the ids.

    Args:
        ids: of any type that can be cast to text; structs for ids of several columns.
        share: share of ids in validation, in [0, 1), in steps of a millionth.
    """
    below = round(share * _SHARES)
    distinct = ids.unique()
    chosen = [number % _SHARES < below for number in split_hashes(distinct)]
    table = pl.DataFrame({"id": distinct, "chosen": pl.Series(chosen, dtype=pl.Boolean)})
    return pl.DataFrame({"id": ids}).join(table, on="id", how="left", nulls_equal=True, maintain_order="left")["chosen"]


def split_hashes(ids: pl.Series) -> list[int]:
    """Return the hash h of each id (see the top of this module), as signed 64-bit integers."""
    columns = ids.struct.unnest().get_columns() if isinstance(ids.dtype, pl.Struct) else [ids]
    seeds = [_SPLIT_SEED] * len(ids)
    for column in columns:
        texts = column if column.dtype == pl.Binary else column.cast(pl.String).cast(pl.Binary)
        seeds = [
            seed if text is None else xxhash.xxh64_intdigest(text, seed)
            for text, seed in zip(texts.to_list(), seeds, strict=True)  # a list is read twice as fast as a column
        ]
    return [number - 2 * _SIGN if number >= _SIGN else number for number in seeds]


def examination_of_rows(
    model: ExaminationModel, impressions: pl.DataFrame, of_rows: Mapping[str, Floats], shared: Parameters
) -> Floats:
    """Compute the examination probability of each impression given the clicks above, P(E_r = 1 | c_1 .. c_(r-1)).

    Args:
        model: the click model.
        impressions: `session`, `position`, `click` of whole pages, in page order; M rows.
        of_rows: parameters by unit (e.g. attractiveness), looked up for each row, shape (M,).
        shared: all other parameters.

    Returns:
        Shape (M,), in [0, 1]; NaN if a parameter that it depends on is NaN.
    """
    examined = np.empty(impressions.height)
    by_row = {name: np.append(values, np.nan) for name, values in of_rows.items()}
    starts, length = page_bounds(impressions[SESSION])
    click, position = (impressions[CLICK] > 0).to_numpy(), impressions[POSITION].cast(pl.Int64).to_numpy()
    for n_ranks in np.unique(length).tolist():  # pages of one length at a time, each row a unit
        rows: Integers = starts[length == n_ranks, np.newaxis] + np.arange(n_ranks, dtype=np.int64)
        shown = np.ones(rows.shape, dtype=np.bool_)
        batch = PageBatch(rows, position[rows], click[rows], shown, np.ones(len(rows)))
        examined[rows] = model.examination({**shared, **by_row}, batch)
    return examined


BASELINE = "posbias_baseline"
"""Column of beta, the probability of a click out of trust in the position, whatever the document."""

BEYOND = "beyond_baseline"
"""Column of clicks minus beta."""

ATTRACTED = "attracted"
"""Column of (clicks minus beta) times weight: the number of impressions on which the document attracted."""

EXPECTED = "expected"
"""Column of the expected clicks of a document with attractiveness 1."""

_SQUARES, _BEFORE, _AFTER, _SQUARES_BEFORE = "squares", "before", "after", "squares_before"
_CLIPPED, _LOST_CLICKS, _LOST, _NUMBER, _ALIKE = "clipped", "lost_clicks", "lost", "number", "alike"
_ALIKE_IN_LOG = 1 / 64  # width in log weight of the bins in which weights are treated as equal for Pareto k


def sums_by_position(impressions: pl.DataFrame, options: WeightOptions) -> pl.DataFrame:
    """Sum a part's contribution to `WeightSummary`, by position and bin of the weight.

    Args:
        impressions: `position`, `click`, `propensity` (null if unknown) and, if the log has it, `weight`.
        options: clipping.
    """
    own = _row_weight(impressions)
    known, clicked, weight = pl.col(PROPENSITY).is_not_null(), own * (pl.col(CLICK) > 0), _click_weight(options)
    counted, before = clicked * known, clicked / pl.col(PROPENSITY)
    alike = pl.when(before > 0).then((before.log() / _ALIKE_IN_LOG).floor())
    sums = impressions.group_by(POSITION, alike.alias(_ALIKE), maintain_order=True).agg(
        counted.sum().alias(CLICKS),
        (clicked * ~known).sum().alias(_LOST_CLICKS),
        (own * ~known).sum().alias(_LOST),
        (counted * (pl.col(PROPENSITY) < options.min_propensity)).sum().alias(_CLIPPED),
        (counted > 0).sum().alias(_NUMBER),
        before.sum().alias(_BEFORE),
        (clicked * weight).sum().alias(_AFTER),
        (before**2).sum().alias(_SQUARES_BEFORE),
        ((clicked * weight) ** 2).sum().alias(_SQUARES),
    )
    return sums.drop(_ALIKE)


def row_weights(sums: pl.DataFrame, options: WeightOptions) -> tuple[WeightSummary, pl.DataFrame]:
    """Compute the effect of weighting from the sums of all parts or cells.

    Args:
        sums: columns as from `sums_by_position`, any number of rows per position.
        options: clipping and normalisation.

    Returns:
        The summary, and `position`, `clicks`, `weight_share` (of the weight of all clicks), by position.
    """
    alike, number = sums[_BEFORE].to_numpy(), sums[_NUMBER].to_numpy().astype(np.float64)
    weight = np.divide(alike, number, out=np.zeros(len(number)), where=number > 0)
    by_position = sums.group_by(POSITION, maintain_order=True).sum().sort(POSITION)
    total = {name: float(by_position[name].sum()) for name in by_position.columns if name != POSITION}
    before, after = total[_BEFORE], total[_AFTER]
    effective_before, effective = (  # (sum u w)^2 / sum (u w)^2 over the clicked impressions
        total_weight**2 / squares if squares > 0 else None
        for total_weight, squares in ((before, total[_SQUARES_BEFORE]), (after, total[_SQUARES]))
    )
    summary = WeightSummary(
        clicks_weighted=as_count(total[CLICKS]),
        clicks_without_propensity=as_count(total[_LOST_CLICKS]),
        impressions_without_propensity=as_count(total[_LOST]),
        clicks_clipped=as_count(total[_CLIPPED]),
        weight_before_clipping=before,
        weight_after_clipping=after,
        self_normalization_factor=total[CLICKS] / after if options.self_normalize and after > 0 else 1.0,
        effective_sample_size_before_clipping=effective_before,
        effective_sample_size=effective,
        pareto_k=tail_index(weight, number),
        pareto_k_at_most=threshold(total[_NUMBER]) if total[_NUMBER] else None,
    )
    whole = bool((by_position[CLICKS] == by_position[CLICKS].floor()).all())
    share = pl.col(_AFTER) / after if after > 0 else pl.lit(None, pl.Float64)
    clicks = pl.col(CLICKS).cast(pl.Int64 if whole else pl.Float64)
    return summary, by_position.select(POSITION, clicks, share.alias("weight_share"))


def weigh_rows(impressions: pl.DataFrame, options: WeightOptions, factor: float) -> pl.DataFrame:
    """Weigh impressions that have propensities of their own, for layouts of pages.

    Args:
        impressions: `session`, `query`, `doc`, `position`, `click`, `propensity` in page order, features, and, if the
            log has it, `weight`.
        options: clipping.
        factor: self-normalisation factor.

    Returns:
        The columns of `weighted_pages`, without replicate weights.
    """
    weight = pl.when(pl.col(CLICK) > 0).then(_click_weight(options) * factor).otherwise(1.0)
    others = [name for name in impressions.columns if name not in {SESSION, *PAIR, POSITION, CLICK, PROPENSITY, WEIGHT}]
    return impressions.select(
        SESSION, *PAIR, POSITION, CLICK, PROPENSITY, (_row_weight(impressions) * weight).alias(WEIGHT), *others
    )


def sum_by_document(impressions: pl.DataFrame, options: WeightOptions, factor: float) -> pl.DataFrame:
    """Sum clicks by document, for layouts of counts; u is the log's own weight of an impression.

    Args:
        impressions: `query`, `doc`, `click`, `propensity`, BASELINE and, if the log has it, `weight`.
        options: clipping.
        factor: self-normalisation factor.

    Returns:
        One row per `query`, `doc`, sorted: `impressions` and `clicks` with a propensity, BEYOND = sum u (c - beta),
        ATTRACTED = sum u (c - beta) w factor, and EXPECTED = sum u max(e, tau).
    """
    own, known, clicked = _row_weight(impressions), pl.col(PROPENSITY).is_not_null(), pl.col(CLICK) > 0
    beyond = own * (clicked.cast(pl.Float64) - pl.col(BASELINE)) * known
    return (
        impressions.group_by(PAIR, maintain_order=True)
        .agg(
            (own * known).sum().alias(IMPRESSIONS),
            (own * clicked * known).sum().alias(CLICKS),
            beyond.sum().alias(BEYOND),
            (beyond * _click_weight(options) * factor).sum().alias(ATTRACTED),
            (own / _click_weight(options)).sum().alias(EXPECTED),
        )
        .sort(PAIR)
    )


def _click_weight(options: WeightOptions) -> pl.Expr:
    """Return 1 / max(e, tau); null where there is no propensity."""
    propensity = pl.col(PROPENSITY)
    return 1 / pl.when(propensity.is_not_null()).then(pl.max_horizontal(propensity, pl.lit(options.min_propensity)))


def _row_weight(impressions: pl.DataFrame) -> pl.Expr:
    return pl.col(WEIGHT).cast(pl.Float64) if WEIGHT in impressions.columns else pl.lit(1.0)
