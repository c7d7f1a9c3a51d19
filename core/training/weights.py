"""Inverse propensity weights of clicks and rows, their replicates, and the split into training and validation.

    weight of a click in cell e:  w_e = 1 / max(theta_e, tau)        weight of an unclicked impression: 1

    theta_r = theta exp(z_r),  z_r ~ N(0, V),  r = 1 .. N        w_r = 1 / max(theta_r, tau)

V is the covariance of log theta; the reference cell has none. A model that is trained, or a sum that is taken, with
each of the N weights in turn varies by what the errors of theta do to it. All clicks of a cell share its error, so that
no number of clicks makes it smaller. What the clicks themselves vary by is not in it.

    validation, where  h(id) mod 10^6 < share * 10^6,  h = XXH64 of the id's text (UTF-8), seed 42, as a signed number

Ids that are bytes are hashed as they are. Spark SQL computes the same:
pmod(xxhash64(CAST(query AS STRING)), 1000000). An id of several columns is hashed column by column, each with the hash
of the one before as its seed, as Spark's xxhash64(a, b). A larger share holds all of a smaller one.

    a click of examination e:                w = 1 / max(e, tau)               an unclicked impression: 0
    under trust bias (alpha, beta given):    (c - beta) / max(alpha, tau)

Added up over the impressions of a document, both are an unbiased estimate of attractiveness times impressions where
nothing is clipped; the second may be negative for some of them.
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
from posbias.core.models.page_matrices import Integers, PageBatch, Parameters, starts_and_lengths
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, POSITION, SESSION, WEIGHT

_ROW, _REFERENCE = "posbias_row", "posbias_reference"
_SEED = 20_070_101
_NAME = re.compile(rf"replicate_{WEIGHT}_[0-9]+")


def replicate_names(number: int) -> list[str]:
    """The columns of so many replicate weights."""
    return [f"replicate_{WEIGHT}_{draw}" for draw in range(1, number + 1)]


def is_replicate(name: str) -> bool:
    """Return whether a column is named like replicate weights."""
    return _NAME.fullmatch(name) is not None


def weight_columns(columns: Iterable[str]) -> list[str]:
    """The column of weights and those of replicate weights, in their order."""
    return [name for name in columns if name == WEIGHT or is_replicate(name)]


def draw_propensities(propensity: Floats, covariance: Floats, number: int) -> Floats:
    """Propensities that the log allows as well.

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
    """The covariance of the logarithms of propensities, which are relative to a reference cell.

    Args:
        table: the cell columns, `propensity` and `std_error` of a fit, K rows.
        examination: the covariance of log examination, which is relative to the largest cell, up to a constant on the
            diagonal, shape (K, K).
        std_error: of the log propensities to take, shape (K,): where it is not the fit's, they are not either; the
            correlations stay.
        context: the columns of contexts, each with a reference of its own.

    Returns:
        Shape (K, K), 0 where a cell has no propensity.
    """
    cells = np.arange(table.height)
    constant = np.min(np.diag(examination), initial=np.inf)
    # The row of each cell's reference, that of its context, whose propensity is 1 without an error; -1 for none
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
"""The column of pages that numbers cells of several columns: the row in the table of propensities, from 1; 0: none."""


@dataclass(frozen=True)
class WeightOptions:
    """Options of click weights, and of the layouts that add them up."""

    min_propensity: float = 0.01  # tau, in (0, 1], relative to the reference cell
    self_normalize: bool = False  # whether the weights of all clicks are scaled to a mean of 1
    # how the pointwise layout comes to W+ and W-: by click weights and the clamp at 0, or by the posterior
    # probability that the document attracted, for dense logs only. The posterior has no click weights, so that
    # neither of the options above touches it
    negatives: Negatives = "clamp"
    rate: Rate = "posterior"  # the label of the layout of judgments
    grades: int = 5  # number of grades there, at least 2
    replicates: int = 0  # number of replicate weights, which vary with the errors of theta


def check_min_propensity(least: float) -> None:
    """Check that a minimum propensity is one.

    Raises:
        UsageError: it is no number in (0, 1].
    """
    if not isinstance(least, Real) or not 0 < least <= 1:
        raise UsageError(f"--min-propensity {least}: must be above 0 and at most 1.")


@dataclass(frozen=True)
class WeightSummary:
    """Effect of weighting on a log: counts of clicks and impressions (sums of weights where rows carry some)."""

    clicks_weighted: float  # clicks in cells with a propensity
    clicks_without_propensity: float  # clicks in the other cells
    impressions_without_propensity: float  # impressions in the other cells
    clicks_clipped: float  # clicks whose propensity is below the minimum
    weight_before_clipping: float  # sum of 1 / theta over the weighted clicks
    weight_after_clipping: float  # sum of w over them
    self_normalization_factor: float  # by which all weights are multiplied; 1 without self-normalisation
    # (sum u w)^2 / sum (u w)^2 over the clicks, u the weight that a row carries (1 where rows carry none); None
    # without a weighted click, and where only sums of u are known
    effective_sample_size_before_clipping: float | None
    effective_sample_size: float | None  # the same with clipped weights
    pareto_k: float | None  # of the weights before clipping; None where too few differ, or are known in sums alone
    pareto_k_at_most: float | None  # what is sound for so many clicks


@dataclass(frozen=True)
class ClickWeights:
    """The weight of a click in each cell, and what the weighting does to the whole log."""

    cells: pl.DataFrame  # the cell columns, one row per cell
    propensity: Floats  # theta, shape (K,), nan where the cell has none
    weight: Floats  # w, shape (K,), nan where the cell has no propensity
    summary: WeightSummary  # counts and effective sample sizes, for the manifest
    by_position: pl.DataFrame  # `position`, `clicks`, `weight_share` (of the weight of all clicks), by position
    # replicate weights, shape (N, K), nan where the cell has no propensity
    replicates: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # The row of each cell in the table of propensities, from 1, 0 for none, shape (K,); None without `--cell`
    number: pl.Series | None = None

    def frame(self) -> pl.DataFrame:
        """The cell columns with `propensity`, the click weight, null where the cell has none, and `cell_number`."""
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
    """Weights per cell from propensities and the log's totals per cell, each of shape (K,).

    Args:
        cells: the cell columns, one row per cell.
        propensity: theta, nan where a cell has none.
        impressions: their number, or the sum of the weights u that rows carry.
        clicks: their number, or the sum of the weights u.
        options: clipping and normalisation.
        squared_clicks: the sum of u^2 over the clicks, where rows carry weights; nan where it is not known.
        replicates: other propensities to make replicate weights of, shape (N, K), nan where theta is.
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
    """A sum of counts as a whole number, where it is one; sums of weights stay as they are."""
    return int(number) if float(number).is_integer() else float(number)


_SPLIT_SEED, _SHARES, _SIGN = 42, 1_000_000, 1 << 63


def is_in_validation(ids: pl.Series, share: float) -> pl.Series:
    """Membership of the validation set, in the order of the ids, as booleans.

    Args:
        ids: of any type whose values can be written as text; structs for ids of several columns.
        share: of all ids, in [0, 1), in steps of a millionth.
    """
    below = round(share * _SHARES)
    distinct = ids.unique()
    chosen = [number % _SHARES < below for number in split_hashes(distinct)]
    table = pl.DataFrame({"id": distinct, "chosen": pl.Series(chosen, dtype=pl.Boolean)})
    return pl.DataFrame({"id": ids}).join(table, on="id", how="left", nulls_equal=True, maintain_order="left")["chosen"]


def split_hashes(ids: pl.Series) -> list[int]:
    """H of each id, as signed 64-bit numbers."""
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
    """P(E_r = 1 | c_1 .. c_(r-1)) of each impression.

    Args:
        model: the click model.
        impressions: `session`, `position`, `click` of whole pages, in page order; M rows.
        of_rows: the parameters by unit, each of the unit of the row, shape (M,).
        shared: the other parameters.

    Returns:
        Shape (M,), in [0, 1]; nan where a parameter is that decides it.
    """
    examined = np.empty(impressions.height)
    by_row = {name: np.append(values, np.nan) for name, values in of_rows.items()}
    starts, length = starts_and_lengths(impressions[SESSION])
    click, position = (impressions[CLICK] > 0).to_numpy(), impressions[POSITION].cast(pl.Int64).to_numpy()
    for n_ranks in np.unique(length).tolist():  # pages of one length at a time, each row a unit
        rows: Integers = starts[length == n_ranks, np.newaxis] + np.arange(n_ranks, dtype=np.int64)
        shown = np.ones(rows.shape, dtype=np.bool_)
        batch = PageBatch(rows, position[rows], click[rows], shown, np.ones(len(rows)))
        examined[rows] = model.examination({**shared, **by_row}, batch)
    return examined


BASELINE = "posbias_baseline"
"""The column of beta, the probability of a click that says nothing of the document."""

BEYOND = "beyond_baseline"
"""The column of clicks beyond those that say nothing of the document."""

ATTRACTED = "attracted"
"""The column of what these are worth, once they are weighed."""

EXPECTED = "expected"
"""The column of what an attractive document would have been clicked."""

_SQUARES, _BEFORE, _AFTER, _SQUARES_BEFORE = "squares", "before", "after", "squares_before"
_CLIPPED, _LOST_CLICKS, _LOST, _NUMBER, _ALIKE = "clipped", "lost_clicks", "lost", "number", "alike"
_ALIKE_IN_LOG = 1 / 64  # weights that are taken as equal to know their tail


def sums_by_position(impressions: pl.DataFrame, options: WeightOptions) -> pl.DataFrame:
    """The contribution of a part to the summary, by position and size of the weight.

    Args:
        impressions: `position`, `click`, `propensity` (null where there is none), `weight` where rows carry some.
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
    """The effect of weighting, from the sums of all parts or of all cells.

    Args:
        sums: columns as from `sums_by_position`, any number of rows of a position.
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
    """Impressions as layouts of pages take them: as from `weighted_pages`, but for replicates.

    Args:
        impressions: `session`, `query`, `doc`, `position`, `click`, `propensity` in page order, a `weight` where rows
            carry one, and features.
        options: clipping.
        factor: of self-normalisation.
    """
    weight = pl.when(pl.col(CLICK) > 0).then(_click_weight(options) * factor).otherwise(1.0)
    others = [name for name in impressions.columns if name not in {SESSION, *PAIR, POSITION, CLICK, PROPENSITY, WEIGHT}]
    return impressions.select(
        SESSION, *PAIR, POSITION, CLICK, PROPENSITY, (_row_weight(impressions) * weight).alias(WEIGHT), *others
    )


def sum_by_document(impressions: pl.DataFrame, options: WeightOptions, factor: float) -> pl.DataFrame:
    """The sums by document that layouts add up.

    Args:
        impressions: `query`, `doc`, `click`, `propensity`, BASELINE, a `weight` where rows carry one.
        options: clipping.
        factor: of self-normalisation.

    Returns:
        By `query`, `doc`, sorted: `impressions` and `clicks` with a propensity, BEYOND, the sum of u (c - beta),
        ATTRACTED, that of u (c - beta) w, and EXPECTED, that of u max(e, tau).
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
    """1 / max(e, tau); null where there is no propensity."""
    propensity = pl.col(PROPENSITY)
    return 1 / pl.when(propensity.is_not_null()).then(pl.max_horizontal(propensity, pl.lit(options.min_propensity)))


def _row_weight(impressions: pl.DataFrame) -> pl.Expr:
    return pl.col(WEIGHT).cast(pl.Float64) if WEIGHT in impressions.columns else pl.lit(1.0)
