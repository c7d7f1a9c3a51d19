"""Inverse propensity weights of impressions whose examination, or trust, is known row by row.

    a click of examination e:                w = 1 / max(e, tau)               an unclicked impression: 0
    under trust bias (alpha, beta given):    (c - beta) / max(alpha, tau)

Added up over the impressions of a document, both are an unbiased estimate of attractiveness times impressions where
nothing is clipped; the second may be negative for some of them.

Sources: Vardasbi, de Rijke & Markov 2020 (SIGIR); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM).

Examination of each impression of a log, page by page, under a click model that was fitted before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats, Integers, PageBatch
from posbias.core.browsing.parameters import Parameters
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, POSITION, SESSION, WEIGHT
from posbias.core.training.weights import WeightOptions, WeightSummary, as_count, effective


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
    for rows, batch in _pages(impressions):
        examined[rows] = model.examination({**shared, **by_row}, batch)
    return examined


def _pages(impressions: pl.DataFrame) -> Iterator[tuple[Integers, PageBatch]]:
    """Pages of one length at a time: the rows that they stand in, shape (N, L), and the pages, each row a unit."""
    session = impressions[SESSION]
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    length = np.diff(np.append(starts, impressions.height))
    click, position = (impressions[CLICK] > 0).to_numpy(), impressions[POSITION].cast(pl.Int64).to_numpy()
    for n_ranks in np.unique(length).tolist():
        below: Integers = np.arange(n_ranks, dtype=np.int64)
        rows: Integers = starts[length == n_ranks, np.newaxis] + below
        weight = np.ones(len(rows))
        yield rows, PageBatch(rows, position[rows], click[rows], np.ones((len(rows), n_ranks), dtype=np.bool_), weight)


BASELINE = "posbias_baseline"
"""The column of beta, the probability of a click that says nothing of the document."""

BEYOND = "beyond_baseline"
"""The column of clicks beyond those that say nothing of the document."""

ATTRACTED = "attracted"
"""The column of what these are worth, once they are weighed."""

EXPECTED = "expected"
"""The column of what an attractive document would have been clicked."""

_SQUARES, _BEFORE, _AFTER, _SQUARES_BEFORE = "squares", "before", "after", "squares_before"
_CLIPPED, _LOST_CLICKS, _LOST = "clipped", "lost_clicks", "lost"


@dataclass(frozen=True)
class RowWeights:
    """What weighting does to a log of which each impression has a propensity of its own."""

    summary: WeightSummary  # counts and effective sample sizes, for the manifest
    by_position: pl.DataFrame  # `position`, `clicks`, `weight_share` (of the weight of all clicks), by position

    @property
    def factor(self) -> float:
        """By which all weights are multiplied."""
        return self.summary.self_normalization_factor


def sums_by_position(impressions: pl.DataFrame, options: WeightOptions) -> pl.DataFrame:
    """What a part adds to the summary, by position.

    Args:
        impressions: `position`, `click`, `propensity` (null where there is none), `weight` where rows carry some.
        options: clipping.
    """
    own = _own_weight(impressions)
    known, clicked, weight = pl.col(PROPENSITY).is_not_null(), own * (pl.col(CLICK) > 0), _click_weight(options)
    counted = clicked * known
    return impressions.group_by(POSITION, maintain_order=True).agg(
        counted.sum().alias(CLICKS),
        (clicked * ~known).sum().alias(_LOST_CLICKS),
        (own * ~known).sum().alias(_LOST),
        (counted * (pl.col(PROPENSITY) < options.min_propensity)).sum().alias(_CLIPPED),
        (clicked / pl.col(PROPENSITY)).sum().alias(_BEFORE),
        (clicked * weight).sum().alias(_AFTER),
        ((clicked / pl.col(PROPENSITY)) ** 2).sum().alias(_SQUARES_BEFORE),
        ((clicked * weight) ** 2).sum().alias(_SQUARES),
    )


def row_weights(sums: pl.DataFrame, options: WeightOptions) -> RowWeights:
    """From the sums of all parts.

    Args:
        sums: as from `sums_by_position`, of any number of parts.
        options: clipping and normalisation.
    """
    by_position = sums.group_by(POSITION, maintain_order=True).sum().sort(POSITION)
    total = {name: float(by_position[name].sum()) for name in by_position.columns if name != POSITION}
    after = total[_AFTER]
    factor = total[CLICKS] / after if options.self_normalize and after > 0 else 1.0
    summary = WeightSummary(
        clicks_weighted=as_count(total[CLICKS]),
        clicks_without_propensity=as_count(total[_LOST_CLICKS]),
        impressions_without_propensity=as_count(total[_LOST]),
        clicks_clipped=as_count(total[_CLIPPED]),
        weight_before_clipping=total[_BEFORE],
        weight_after_clipping=after,
        self_normalization_factor=factor,
        effective_sample_size_before_clipping=effective(total[_BEFORE], total[_SQUARES_BEFORE]),
        effective_sample_size=effective(after, total[_SQUARES]),
    )
    whole = bool((by_position[CLICKS] == by_position[CLICKS].floor()).all())
    share = pl.col(_AFTER) / after if after > 0 else pl.lit(None, pl.Float64)
    clicks = pl.col(CLICKS).cast(pl.Int64 if whole else pl.Float64)
    return RowWeights(summary, by_position.select(POSITION, clicks, share.alias("weight_share")))


def weighed_rows(impressions: pl.DataFrame, options: WeightOptions, factor: float) -> pl.DataFrame:
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
        SESSION, *PAIR, POSITION, CLICK, PROPENSITY, (_own_weight(impressions) * weight).alias(WEIGHT), *others
    )


def sums_of_documents(impressions: pl.DataFrame, options: WeightOptions, factor: float) -> pl.DataFrame:
    """What layouts that add up by document take.

    Args:
        impressions: `query`, `doc`, `click`, `propensity`, BASELINE, a `weight` where rows carry one.
        options: clipping.
        factor: of self-normalisation.

    Returns:
        By `query`, `doc`, sorted: `impressions` and `clicks` with a propensity, BEYOND, the sum of u (c - beta),
        ATTRACTED, that of u (c - beta) w, and EXPECTED, that of u max(e, tau).
    """
    own, known, clicked = _own_weight(impressions), pl.col(PROPENSITY).is_not_null(), pl.col(CLICK) > 0
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


def _own_weight(impressions: pl.DataFrame) -> pl.Expr:
    return pl.col(WEIGHT).cast(pl.Float64) if WEIGHT in impressions.columns else pl.lit(1.0)
