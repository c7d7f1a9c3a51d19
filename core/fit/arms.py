"""Test the estimate from all movement against experiment arms, and bend its curve as far as the arms show.

All movement misleads if a document moves because of who is looking, or because it was clicked. Arms are assigned at
random: their movements affect all users alike, whatever was clicked before. Stratum j has n_jak impressions and c_jak
clicks in arm a and cell k, C_j clicks in all; theta_k = exp(beta_k), and alpha_a is the click level of an arm:

    m_ja = sum_k n_jak theta_k                         exposure of the stratum in the arm
    s_ja = alpha_a m_ja / sum_b alpha_b m_jb           expected share of the arm in C_j, free of gamma_j
    z_ja = sum_k n_jak theta_k B_k / m_ja              mean of the basis B: -log k, and (log k)^2 orthogonal to log k
    U = sum_j sum_a (c_ja - C_j s_ja) (z_ja, e_a),     I = sum_j C_j Var_{a ~ s_j}(z_ja, e_a)

An impression contributes to both c_ja and z_ja, so that chance looks like an effect of the arm. Each impression's own
contribution is left out, as by a jackknife, with g_jak = C_j alpha_a n_jak theta_k / sum_b alpha_b m_jb, the clicks
expected in the cell:

    U* = U - sum_jak (1 - s_ja) / m_ja theta_k (c_jak - g_jak) (B_k - z_ja)
    V = sum_jak (1 - s_ja) / m_ja theta_k g_jak (B_k - z_ja) (B_k - z_ja)'

From here on U* and I are those of the bends alone: the levels log alpha solve their own part of U, and are projected
out. F, the smallest eigenvalue of V^-1 I, is 1 if arms move documents no more than chance does. With the own
contributions, the share 1 / F of the bias of all movement would return.

Test of agreement: U* along log k is evaluated at the curve of all movement, which has errors of its own. With its
adjusted scores x_g and information H (`leave_one_out`), X = -dU* / dbeta, and h_g the share of query g in I - V,

    e_g = U*_g - X' H^-1 x_g,    sd^2 = (G - 1) / G sum_g (e_g / (1 - h_g))^2

and U* / sd has Student's t with min(1 / sum h^2, G - 1) degrees of freedom. No curve is fitted, and the test is valid
however little arms move documents.

The bent curve beta + B delta solves U*(beta + B delta) = 0, by Newton's method from delta = 0. Leaving out a query
moves delta by D_g = (I - V - (I - V)_g)^-1 e_g and the curve by (H - H_g)^-1 s_g + B D_g, which give the errors. The
curve has two bends if their F is at least `LEAST_STRENGTH`, else one.

Remaining bias: documents that enter and leave at the end of the page change exposure by another factor in each arm.
The bent curve therefore overshoots the truth by a fifth to a third of its distance (tests/benchmarks/README.md), and
its interval extends back by a third of it.

Sources: Rao 1948 (score test); Angrist, Imbens & Krueger 1999 (jackknife against many weak instruments).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays import linalg
from posbias.core.arrays.count_table import CountTable, Floats, Integers, first_of_runs, sum_by_number
from posbias.core.arrays.threads import thread_map
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD, POSITION, QUERY
from posbias.core.standard_errors.cluster import Intervals, adjusted_scores, finite_exp, t_quantile
from posbias.core.standard_errors.contrasts import StrataEstimate, detectable
from posbias.core.theta.conditional import laplacian

LEVEL_OF_ARMS = 0.01
"""Level of the test, low since arms that lift documents which they also make more clickable are rejected too often."""

LEAST_STRENGTH, STRENGTH_OF_FAR_MOVE, FAR_MOVE = 10.0, 50.0, 0.5
"""F needed to bend a curve, F needed to change log theta at the median position by more than `FAR_MOVE`, and that."""

MOST_ARMS = 50
"""Largest number of arms: a column with more values names users or pages."""

LARGEST_MISSED_SLOPE = 0.25
"""Error of eta, theta = position ** -eta, that one test in five may miss if arms are to be conclusive."""

_BACK = 1 / 3  # part of the way to the curve of all movement that the interval includes
_MOST = 0.9  # largest share of the information in one query
_STEPS, _PRECISION, _LONGEST, _FARTHEST = 50, 1e-10, 0.5, 20.0  # of Newton's method: longest step, largest delta
_MOST_BENDS = 2
_WEAKEST = 2.0  # F below which the power of the test is unknown
_NOTHING = 1e-12  # share of the information that is rounding
_SURELY, _SMALL_PART = 3.3, 0.25  # standard errors of the effect in the own arm; largest part of it in other arms
_BLOCK = 1 << 20  # members of strata per block


@dataclass(frozen=True)
class BentCurve:
    """The curve of all movement, bent by the arms; arrays by cell, shape (K,), NaN if not identified."""

    bends: int  # 1: along log position; 2: along its square too
    strength: float  # F of these bends
    propensity: Floats
    intervals: Intervals  # extended towards the curve of all movement


@dataclass(frozen=True)
class ArmsTest:
    """Test of agreement of A arms with all movement."""

    p_value: float  # of agreement
    degrees: float  # degrees of freedom of the errors
    levels: Floats  # click level of each arm relative to the first with clicks, shape (A,); NaN without clicks
    strength: float  # F of the bend along log position
    difference: float  # eta by arms minus eta by all movement, by one Newton step
    missed_slope: float  # difference that four of five such logs would show; infinite if arms hardly move documents
    bent: BentCurve | None = None  # None if arms agree, or move documents too little to estimate the bend
    apart: bool = False  # whether each arm learns from its own clicks alone, so that arms are no instrument

    @property
    def rejected(self) -> bool:
        """Whether agreement is rejected."""
        return self.p_value < LEVEL_OF_ARMS

    @property
    def enough(self) -> bool:
        """Whether the test would have detected a difference that matters."""
        return self.missed_slope <= LARGEST_MISSED_SLOPE


def arms_test(fitted: StrataEstimate, by_arm: Strata, position: Integers) -> ArmsTest | None:
    """Test that arms agree with all movement, and bend the curve if they do not.

    Args:
        fitted: the estimate from all movement, with strata by query.
        by_arm: the same strata, with A K cells: those of one arm after those of another.
        position: of each cell, shape (K,).

    Returns:
        The test; None if arms do not move documents, or no error can be estimated.
    """
    arms = _Arms(fitted, by_arm, position)
    unbent = arms.evaluate(np.zeros(1))
    if unbent is None:
        return None
    scores, own = arms.query_scores(unbent)
    share = np.abs(own[:, 0, 0])
    degrees = _degrees(share)
    left_out = scores[:, 0] / (1 - np.minimum(share / share.sum(), _MOST))
    error = float(np.sqrt(_few_clusters_factor(scores) * (left_out**2).sum()))
    if not error > 0:  # one query, or queries that agree to the last click
        return None
    bread, clicked = float(unbent.bread[0, 0]), sum_by_number(arms.arm, arms.clicks, arms.n_arms) > 0
    test = ArmsTest(
        p_value=min(2 * float(scipy.special.stdtr(degrees, -abs(float(unbent.score[0])) / error)), 1.0),
        degrees=degrees,
        levels=np.where(clicked, np.exp(unbent.levels - unbent.levels[clicked][0]), np.nan),
        strength=unbent.strength_of_slope,
        difference=float(unbent.score[0]) / bread if bread > 0 else np.nan,
        missed_slope=detectable(error / bread, degrees, LEVEL_OF_ARMS)
        if unbent.strength_of_slope > _WEAKEST
        else np.inf,
    )
    return replace(test, bent=arms.bend()) if test.rejected else test


def _degrees(share: Floats) -> float:
    """Return the degrees of freedom of an error, at least 1, from the information of each query, shape (G,)."""
    number = (share > _NOTHING * share.sum()).sum()
    return float(max(min(share.sum() ** 2 / (share**2).sum(), number - 1), 1.0))


def _few_clusters_factor(scores: Floats) -> float:
    """Return (G - 1) / G, with G the number of queries with a score other than 0; scores have shape (queries, d)."""
    number = max(int((scores != 0).any(axis=1).sum()), 1)
    return (number - 1) / number


@dataclass(frozen=True)
class _BentScores:
    """Scores and information of the arms at a curve with d bends."""

    log_theta: Floats  # of the curve, shape (K,)
    levels: Floats  # log alpha, shape (A,), 0 for the first arm
    score: Floats  # U*, shape (d,)
    information: Floats  # I, shape (d, d)
    chance: Floats  # V, shape (d, d)
    cross: Floats  # X, shape (K, d)
    unit_scores: Floats  # U* of one copy of each stratum, shape (J, d)
    unit_breads: Floats  # I - V of one copy of each stratum, shape (J, d, d)

    @property
    def bread(self) -> Floats:
        """I - V."""
        return self.information - self.chance

    @property
    def strength(self) -> float:
        """F; infinite if documents do not move within arms."""
        by_chance = float(np.linalg.eigvals(linalg.pseudo_inverse(self.information) @ self.chance).real.max())
        return 1 / by_chance if by_chance > 0 else np.inf

    @property
    def strength_of_slope(self) -> float:
        """F of the bend along log position alone; infinite if documents do not move within arms."""
        return float(self.information[0, 0] / self.chance[0, 0]) if self.chance[0, 0] > 0 else np.inf


_Entries = tuple[CountTable, Integers, Integers, Integers]
"""A block of strata: the table, the cell of each entry without its arm, the first entry of each exposure (a stratum in
an arm), and the exposure of each entry, numbered over all blocks."""


def _run_sums(values: Floats, first: Integers) -> Floats:
    """Sum the rows of each run, which begins at a row of `first` and ends before the next."""
    return np.add.reduceat(values, first) if len(first) else values[:0]


def _sum_rows_by_number(number: Integers, values: Floats, length: int) -> Floats:
    """Sum rows, shape (n, d), by number, shape (length, d)."""
    return np.stack([sum_by_number(number, column, length) for column in values.T], axis=1)


class _Arms:
    """Clicked strata that were shown in several arms: J strata, M exposures (a stratum in an arm).

    Attributes:
        fitted: the estimate from all movement.
        basis: B, shape (K, 2), 0 at the references.
        members: the strata with their queries.
        table: counts of the strata in A K cells.
        first: first entry of each exposure, shape (M,).
        unit: stratum of each exposure, shape (M,).
        arm: arm of each exposure, shape (M,).
        clicks: clicks of each exposure, shape (M,).
        unit_clicks: C_j of one copy of each stratum, shape (J,).
    """

    def __init__(self, fitted: StrataEstimate, by_arm: Strata, position: Integers) -> None:
        self.fitted, linkage = fitted, fitted.fit.linkage
        self.n_cells = len(position)
        self.n_arms = by_arm.signatures.n_cells // self.n_cells
        log_position = np.log(position / position[linkage.reference_of]) * linkage.identified
        product, square = log_position @ log_position**2, float(log_position @ log_position)
        self.basis = np.stack([-log_position, log_position**2 - log_position * product / max(square, _NOTHING)], axis=1)
        table = by_arm.signatures.only_cells(np.tile(linkage.identified, self.n_arms))
        clicked = sum_by_number(table.cell // self.n_cells, table.clicks, self.n_arms) > 0
        table = table.filter_entries(clicked[table.cell // self.n_cells])
        several = np.bincount(table.unit_of_entry[self._first_entries(table)], minlength=table.n_units) > 1
        units = np.flatnonzero(several & (table.sum_by_unit(table.clicks) > 0))
        self.members, self.table = by_arm.members.among(units), table.take(units)
        self.first = self._first_entries(self.table)
        self.unit, self.arm = self.table.unit_of_entry[self.first], self.table.cell[self.first] // self.n_cells
        self.clicks = _run_sums(self.table.clicks, self.first)
        self.unit_clicks = self.table.sum_by_unit(self.table.clicks)
        self._first_of_unit = first_of_runs(self.unit)

    def _first_entries(self, table: CountTable) -> Integers:
        """Return the first entry of each exposure."""
        return first_of_runs(table.unit_of_entry * self.n_arms + table.cell // self.n_cells)

    def evaluate(self, delta: Floats) -> _BentScores | None:
        """Compute scores and information at the curve bent by delta, shape (d,); None without movement along log k."""
        basis, unit, arm = self.basis[:, : len(delta)], self.unit, self.arm
        log_theta = np.nan_to_num(self.fitted.fit.log_theta) + basis @ delta
        theta = np.exp(log_theta)

        def block_exposures(block: _Entries) -> Floats:
            table, cell, first, _ = block
            return _run_sums(table.impressions * theta[cell], first)

        exposure = np.concatenate([np.zeros(0), *thread_map(block_exposures, self._blocks())])
        levels, share, level_information = self._fit_levels(exposure)
        expected = self.unit_clicks[unit] * share

        def own_parts(block: _Entries) -> tuple[Floats, Floats, Floats, Floats, Floats]:
            """Return z, the own contributions to U, to dU and to I by exposure, and to X by cell."""
            table, cell, first, number = block
            fraction = table.impressions * theta[cell] / exposure[number]
            mean = _run_sums(fraction[:, np.newaxis] * basis[cell], first)
            deviation = basis[cell] - mean[number - number[0]]
            own_weight = ((1 - share) / exposure)[number] * theta[cell]
            by_chance = own_weight * expected[number] * fraction
            own = _run_sums((own_weight * table.clicks - by_chance)[:, np.newaxis] * deviation, first)
            moved = by_chance[:, np.newaxis] * deviation
            chance = _run_sums(moved[:, :, np.newaxis] * deviation[:, np.newaxis], first)
            copies = table.spread(table.multiplicity)[:, np.newaxis]
            return mean, own, _run_sums(moved, first), chance, _sum_rows_by_number(cell, copies * moved, self.n_cells)

        parts = list(thread_map(own_parts, self._blocks()))
        if not parts:
            return None
        *by_block, own_cross = zip(*parts, strict=True)
        mean, own, moved, chance = map(np.concatenate, by_block)
        copies = self.table.multiplicity[unit]
        weight = (copies * expected)[:, np.newaxis]
        with_levels = _sum_rows_by_number(arm, weight * self._centred(mean, share), self.n_arms)
        mean -= (linalg.pseudo_inverse(level_information) @ with_levels)[arm]
        centred = self._centred(mean, share)
        information = (weight * centred).T @ centred
        if not information[0, 0] > _NOTHING * weight.sum():
            return None
        scores = (self.clicks - expected)[:, np.newaxis] * mean - own
        breads = expected[:, np.newaxis, np.newaxis] * centred[:, :, np.newaxis] * centred[:, np.newaxis] - chance
        by_exposure = (copies / exposure)[:, np.newaxis] * (expected[:, np.newaxis] * centred + moved)

        def block_cross(block: _Entries) -> Floats:
            table, cell, _, number = block
            examined = (table.impressions * theta[cell])[:, np.newaxis]
            return _sum_rows_by_number(cell, examined * by_exposure[number], self.n_cells)

        return _BentScores(
            log_theta=log_theta,
            levels=levels,
            score=copies @ scores,
            information=information,
            chance=np.tensordot(copies, chance, 1),
            cross=np.sum(list(thread_map(block_cross, self._blocks())), axis=0) - np.sum(own_cross, axis=0),
            unit_scores=_run_sums(scores, self._first_of_unit),
            unit_breads=_run_sums(breads, self._first_of_unit),
        )

    def _fit_levels(self, exposure: Floats) -> tuple[Floats, Floats, Floats]:
        """Estimate log alpha, shape (A,), by Newton's method; return it with s, shape (M,), and its information."""
        unit, arm, copies = self.unit, self.arm, self.table.multiplicity
        weight, levels = copies * self.unit_clicks, np.zeros(self.n_arms)
        start, share, information = np.append(self._first_of_unit, len(unit)), exposure, np.zeros((0, 0))
        for _ in range(_STEPS):
            clickable = exposure * np.exp(levels)[arm]
            share = clickable / _run_sums(clickable, self._first_of_unit)[unit]
            rows = linalg.in_rows(share * np.sqrt(weight[unit]), arm, start, self.n_arms)
            information = laplacian(linalg.gram(rows))
            score = sum_by_number(arm, copies[unit] * self.clicks - weight[unit] * share, self.n_arms)
            information[0] = information[:, 0] = 0.0
            step = np.clip(linalg.pseudo_inverse(information) @ score, -_LONGEST, _LONGEST)
            if np.abs(step).max() < _PRECISION:
                break
            levels = levels + step
        return levels, share, information

    def _centred(self, mean: Floats, share: Floats) -> Floats:
        """Subtract the mean over the arms of the stratum by share, shape (M, d)."""
        return mean - _run_sums(share[:, np.newaxis] * mean, self._first_of_unit)[self.unit]

    def _blocks(self) -> Iterator[_Entries]:
        """Yield the entries of the table in blocks of strata."""
        for units, block in self.table.blocks():
            low, high = (int(at) for at in np.searchsorted(self.unit, [units.start, units.stop]))
            first: Integers = self.first[low:high] - self.table.start[units.start]
            exposure = np.repeat(np.arange(low, high), np.diff(first, append=block.n_entries))
            yield block, block.cell % self.n_cells, first, exposure

    def query_scores(self, bent: _BentScores) -> tuple[Floats, Floats]:
        """Return e_g, shape (G, d), and (I - V)_g, shape (G, d, d), of all queries by their numbers."""
        fit, pooled, bends = self.fitted.fit, self.fitted.strata, len(bent.score)
        number = 1 + max(int(members.cluster.max(initial=-1)) for members in (self.members, pooled.members))
        by_unit = np.concatenate([bent.unit_scores, bent.unit_breads.reshape(-1, bends**2)], axis=1)
        sums = np.zeros((number, bends + bends**2))
        for start in range(0, len(self.members.unit), _BLOCK):
            query = self.members.cluster[start : start + _BLOCK].astype(np.int64)
            end, values = int(query[-1]) + 1, by_unit[self.members.unit[start : start + _BLOCK]]
            sums[query[0] : end] += _sum_rows_by_number(query - query[0], values, end - int(query[0]))
        scores, own = sums[:, :bends], sums[:, bends:].reshape(number, bends, bends)
        response = fit.inverse @ bent.cross[fit.free_cells]
        for clusters, adjusted in adjusted_scores(fit, pooled):
            scores[clusters] -= adjusted @ response
        return scores, own

    def bend(self) -> BentCurve | None:
        """Solve U* = 0 by Newton's method; None if the arms are too weak, or it does not converge."""
        known = np.flatnonzero(self.fitted.fit.linkage.identified)
        positions = np.unique(self.basis[known, 0])
        for bends in range(min(_MOST_BENDS, len(positions) - 1), 0, -1):
            bent, delta, largest, steps = self.evaluate(np.zeros(bends)), np.zeros(bends), np.inf, 0
            while bent is not None:
                step = linalg.pseudo_inverse(bent.bread) @ bent.score
                largest, steps = float(np.abs(step).max()), steps + 1
                if largest < _PRECISION:
                    break
                delta = delta + step * min(1.0, _LONGEST / largest)
                in_range = steps < _STEPS and np.abs(delta).max() < _FARTHEST
                bent = self.evaluate(delta) if in_range else None
            if bent is None or bent.strength < LEAST_STRENGTH:
                continue
            move = np.abs(bent.log_theta - self.fitted.fit.log_theta)[known]
            is_far = move[self.basis[known, 0] == positions[len(positions) // 2]].max() > FAR_MOVE
            return None if is_far and bent.strength_of_slope < STRENGTH_OF_FAR_MOVE else self._with_errors(bent)
        return None

    def _with_errors(self, bent: _BentScores) -> BentCurve | None:
        """Return the curve with its errors by query; None if one query has nearly all information."""
        fit, errors, free = self.fitted.fit, self.fitted.errors, self.fitted.fit.free_cells
        basis = self.basis[free, : len(bent.score)].T
        scores, own = self.query_scores(bent)
        shares = np.abs(np.diagonal(own, axis1=1, axis2=2))
        if (shares.max(axis=0) > _MOST * shares.sum(axis=0)).any():
            return None
        try:
            moves = np.linalg.solve(bent.bread - own, scores[:, :, np.newaxis])[:, :, 0]  # D_g
        except np.linalg.LinAlgError:
            return None
        squares, only_in_arms = np.zeros(self.n_cells), np.ones(len(scores), np.bool_)
        for clusters, adjusted in adjusted_scores(fit, self.fitted.strata):
            squares[free] += ((adjusted @ fit.inverse + moves[clusters] @ basis) ** 2).sum(axis=0)
            only_in_arms[clusters] = False
        squares[free] += ((moves[only_in_arms] @ basis) ** 2).sum(axis=0)
        std_error = np.where(np.isnan(errors.std_error), np.nan, np.sqrt(_few_clusters_factor(scores) * squares))
        degrees = np.fmin(errors.degrees, min(map(_degrees, shares.T)))
        log_theta = np.where(np.isnan(fit.log_theta), np.nan, bent.log_theta)
        back = log_theta + _BACK * (fit.log_theta - log_theta)
        reach = t_quantile(degrees) * std_error
        return BentCurve(
            bends=len(bent.score),
            strength=bent.strength,
            propensity=np.exp(log_theta),
            intervals=Intervals(
                std_error,
                np.exp(np.minimum(log_theta, back) - reach),
                finite_exp(np.maximum(log_theta, back) + reach),
                degrees,
                errors.reason,
            ),
        )


def learning_by_arm(statistics: pl.DataFrame, plan: StatisticsPlan) -> Floats:
    """Compute how far surplus clicks lift documents later on, in the same arm and in other arms, shape (Q, 2).

    Let x_t be the clicks of a pair in an arm at time t minus its share of them by exposure, and m_t the sum over its
    impressions of -log(position) minus its mean in the arm. The query's sum over pairs and times of
    x_t (sum_{s > t} m_s - sum_{s < t} m_s) / n, with n the impressions of the pair, is computed over m of the same arm
    and over m of all other arms. Both have mean 0 if clicks do not move documents.

    Args:
        statistics: of a part of whole queries, with periods.
        plan: of the statistics.
    """
    (arm,), pair, n = plan.arms, list(plan.pair_columns), pl.col(IMPRESSIONS)
    own = [*pair, arm]
    height = -pl.col(POSITION).cast(pl.Float64).log()
    exposure = n * height.exp()
    surplus = pl.col(CLICKS) - pl.col(CLICKS).sum().over(own) * exposure / exposure.sum().over(own)
    moved = n * (height - (n * height).sum().over(own) / n.sum().over(own))
    by_time = (
        statistics.drop_nulls(arm)
        .select(*own, PERIOD, IMPRESSIONS, x=surplus, m=moved)
        .group_by(*own, PERIOD)
        .agg(pl.col("x", "m", IMPRESSIONS).sum())
        .sort(*pair, PERIOD, arm)
    )
    at_time, before = pl.col("m").sum().over(*pair, PERIOD), pl.col("m").cum_sum()
    up_to = before.over(pair) + at_time - before.over(*pair, PERIOD)
    same, all_arms = pl.col("m") - 2 * before.over(own), at_time - 2 * up_to  # m of an arm adds up to 0
    scale = pl.col("x") / n.sum().over(pair)
    sums = by_time.select(QUERY, same=scale * same, other=scale * (all_arms - same))
    return sums.group_by(QUERY, maintain_order=True).sum().select("same", "other").to_numpy()


def arms_learn_separately(areas: Floats, impressions: Floats) -> bool:
    """Return whether clicks move documents in their own arm only, so that arms are no instrument.

    Args:
        areas: of `learning_by_arm`, of all queries, shape (Q, 2).
        impressions: by arm, shape (A,).
    """
    share = float(((impressions / impressions.sum()) ** 2).sum())
    own, others = areas[:, 0], areas[:, 1] * share / (1 - share)  # of equal mean if all arms learn from all clicks
    error, error_of_others = (float(np.sqrt((values**2).sum())) for values in (own, others))
    surely = own.sum() > _SURELY * error > 0
    return bool(surely and others.sum() + 2 * error_of_others < _SMALL_PART * own.sum())
