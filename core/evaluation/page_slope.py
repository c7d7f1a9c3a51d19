"""Whether pages of better documents get as many more clicks as the position-based model says: a slope of 1.

Pages p of a query differ in what they show. Under the model they get x_p = sum_d E_pd g_d clicks, where E_pd is the sum
over cells of n_pdk theta_k. A difference between rankings is such a difference between pages, so no prediction holds
where clicks do not follow x: under a cascade a good document takes clicks from those below it, and the slope of clicks
on x is about 1/4.

The slope is free of attenuation. z_p is predicted from the clicks of the other half of the pages, less its mean over
the query; x_p has the rates of d on all other pages of its own half, and d counts only where there are such pages:

    R_pd = (c_d - C_pd) / (e_d - E_pd)        M = sum_pd z_p (C_pd - E_pd R_pd)
    slope = 1 + M / sum_pd z_p E_pd R_pd

E M = 0 under the model whatever z is. M is linear in the clicks of independent pages: M = sum_pd a_pd C_pd with
a_pd = z_p - sum_{v != p} z_v E_vd / (e_d - E_vd), so that

    Var M = sum_p [sum_d a_pd (C_pd - E_pd g_d)]^2 + G' S G,    G_k = dM / d log theta_k

The two halves change places, and their M add up. Where pages are not known, a unit is what a query showed on one day.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.evaluation.prediction import CELL, PAIR, CellTheta, Placed, Prior, ShownPart, normal, sums_by
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY

UNIT = "posbias_unit"
"""The page, or the day, of rows of counts."""

_SEED = 3  # of the hash by which units are halved
_LEVEL, _REJECTED, _MUCH, _ROUNDING = 0.05, 0.02, 0.1, 1e-9


@dataclass(frozen=True)
class PageSlope:
    """The slope of clicks on predicted clicks within queries."""

    slope: float  # 1 under the position-based model
    std_error: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        half = normal(1 - _LEVEL / 2) * self.std_error
        return self.slope - half, self.slope + half

    @property
    def rejects(self) -> bool:
        """Whether clicks contradict the model: it is not 1 but by chance, nor nearly 1."""
        return abs(self.slope - 1) > max(normal(1 - _REJECTED / 2) * self.std_error, _MUCH)


def page_slope(rows: pl.DataFrame, by: CellTheta, covariance: Floats | None) -> PageSlope | None:
    """Compare the pages of queries with each other.

    Args:
        rows: of whole pages: `query`, `doc`, the cell columns, `UNIT`, `impressions`, `clicks`; at least one.
        by: theta of their cells.
        covariance: of log theta, shape (K, K); None takes theta as known.

    Returns:
        The slope; None where no two pages of a query differ in what they show.
    """
    keys, counts = (QUERY, DOC, *by.cells.columns), pl.col(IMPRESSIONS, CLICKS).sum()
    part = ShownPart.of(rows.group_by(keys).agg(counts), by)
    rows = part.numbered(rows).group_by(PAIR, CELL, UNIT).agg(counts).sort(PAIR, UNIT, CELL)
    pair, cell = rows[PAIR].to_numpy(), rows[CELL].to_numpy()
    n_pairs, theta = len(part.group), np.nan_to_num(by.theta)[cell]
    shown, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    values = shown * theta, shown * theta**2, clicks * by.known[cell]
    group = pl.Series(part.group[pair])
    is_tested = (rows.select(pl.struct(group.alias(QUERY), UNIT).hash(_SEED) % 2).to_series() == 1).to_numpy()
    unit = rows.select(pl.struct(group.alias(QUERY), UNIT).rank("dense") - 1).to_series().to_numpy().astype(np.int64)
    all_clicks = _attractiveness(part, *(sums_by(pair, of, n_pairs) for of in values))
    moment, variance, expected, gradient = 0.0, 0.0, 0.0, np.zeros(len(by.theta))
    for test in (is_tested, ~is_tested):
        others = [sums_by(pair[~test], of[~test], n_pairs) for of in values]
        if not others[0].any() or not test.any():
            return None
        half = pair[test], cell[test], unit[test], shown[test], values[0][test], values[2][test]
        moments = _moment(part, half, _attractiveness(part, *others), all_clicks)
        moment, variance, expected = moment + moments[0], variance + moments[1], expected + moments[2]
        gradient += moments[3]
    if covariance is not None:
        variance += max(float(gradient @ covariance @ gradient), 0.0)
    if not (expected > _ROUNDING * values[2].sum() and variance > 0):
        return None
    return PageSlope(1 + moment / expected, float(np.sqrt(variance)) / expected)


def _attractiveness(part: ShownPart, exposure: Floats, squared: Floats, clicks: Floats) -> Floats:
    """Shrunken attractiveness of each pair by some of its rows, shape (P,)."""
    nowhere = np.full(len(exposure), -1)
    everywhere = np.ones(len(part.pages), bool)
    doc = part.pairs[DOC]
    placed = Placed(part, doc, everywhere, part.group, nowhere, nowhere, 0 * exposure, exposure, squared, clicks)
    return Prior.fit(placed).posterior(placed).value


def _moment(
    part: ShownPart, half: tuple[Integers, Integers, Integers, Floats, Floats, Floats], learnt: Floats, expected: Floats
) -> tuple[float, float, float, Floats]:
    """M, its variance given theta, the sum of z E R, and G.

    Args:
        part: the queries.
        half: pair, cell, unit, impressions, exposure and clicks of the rows of half of the units, each of shape (R,).
        learnt: attractiveness by the other half.
        expected: attractiveness by all pages.
    """
    n_pairs, n_cells = len(part.group), len(part.by.theta)
    of_pair, cell, of_unit, shown, exposure, clicks = half
    key, at = np.unique(of_unit * n_pairs + of_pair, return_inverse=True)
    e, c = (sums_by(at, values, len(key)) for values in (exposure, clicks))  # by page and pair
    pair, (_, unit) = key % n_pairs, np.unique(key // n_pairs, return_inverse=True)
    others = sums_by(pair, e, n_pairs)[pair] - e
    there = others > _ROUNDING * e
    e, others = np.where(there, e, 0.0), np.where(there, others, 1.0)
    rate = np.where(there, sums_by(pair, c, n_pairs)[pair] - c, 0.0) / others
    n_units, group = int(unit[-1]) + 1, np.zeros(int(unit[-1]) + 1, np.int64)
    group[unit] = part.group[pair]
    slot, of_slot = np.unique(unit[at] * n_cells + cell, return_inverse=True)
    pages = np.zeros(n_units)
    np.maximum.at(pages, slot // n_cells, sums_by(of_slot, shown, len(slot)) / part.by.width[slot % n_cells])
    z = sums_by(unit, e * learnt[pair], n_units) / pages
    n_groups = len(part.pages)
    mean = sums_by(group, z * pages, n_groups) / np.maximum(sums_by(group, pages, n_groups), _ROUNDING)
    z = (z - mean[group])[unit]
    taken = z * e / others
    weight = np.where(there, z - sums_by(pair, taken, n_pairs)[pair] + taken, 0.0)
    noise = sums_by(unit, weight * (c - e * expected[pair]), n_units)
    moved = taken * rate
    gradient = sums_by(pair, moved, n_pairs)[pair] - moved - np.where(there, z * rate, 0.0)
    of_cells = sums_by(cell, exposure * gradient[at], n_cells)
    predicted = z * e * rate
    return (
        float(np.sum(z * np.where(there, c, 0.0) - predicted)),
        float(noise @ noise),
        float(predicted.sum()),
        of_cells,
    )
