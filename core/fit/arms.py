"""Experiment arms: whether what they move agrees with all movement, and the curve bent as far as they tell.

A document moves because of who is looking, or because it was clicked, and then all movement misleads. An arm is drawn
at random: what it moves, it moves for everybody, whatever was clicked before. Stratum j has n_jak impressions and
c_jak clicks in arm a and cell k, C_j clicks in all; theta_k = exp(beta_k), and alpha_a is what an arm makes clickable:

    m_ja = sum_k n_jak theta_k                         its exposure in the arm
    s_ja = alpha_a m_ja / sum_b alpha_b m_jb           the share of its clicks that falls to the arm: gamma_j is gone
    z_ja = sum_k n_jak theta_k B_k / m_ja              its place there; B = -log k, and (log k)^2 apart from that
    U = sum_j sum_a (c_ja - C_j s_ja) (z_ja, e_a),     I = sum_j C_j Var_{a ~ s_j}(z_ja, e_a)

An impression moves c_ja and z_ja alike, so that chance counts as if the arm had made it. Its own part is left out, as
by a jackknife, with g_jak the clicks expected of the cell, C_j alpha_a n_jak theta_k / sum_b alpha_b m_jb:

    U* = U - sum_jak (1 - s_ja) / m_ja theta_k (c_jak - g_jak) (B_k - z_ja)
    V = sum_jak (1 - s_ja) / m_ja theta_k g_jak (B_k - z_ja) (B_k - z_ja)'

U* and I are those of the bends alone from here on: the levels log alpha solve their own part of U, and are projected
out. F, the smallest eigenvalue of V^-1 I, is 1 where arms move documents no more than chance does. Without the own part
the share 1 / F of what is wrong with all movement would come back.

Test of agreement. U* along log k is taken at the curve of all movement, which has errors of its own: x_g are the
adjusted scores and H the information behind it (`leave_one_out`), X = -dU* / dbeta. By query g, h_g its share of I - V,

    e_g = U*_g - X' H^-1 x_g,    sd^2 = (G - 1) / G sum_g (e_g / (1 - h_g))^2

and U* / sd is judged by Student's t with min(1 / sum h^2, G - 1) degrees of freedom. No curve is fitted for it, and it
is right however little arms move.

The bent curve, beta + B delta, solves U*(beta + B delta) = 0 by Newton's method from 0. Leaving out a query moves delta
by D_g = (I - V - (I - V)_g)^-1 e_g and the curve by (H - H_g)^-1 s_g + B D_g; the errors are made of that. It has two
bends where their F is 10 or more, else one.

What is left: documents that come and go at the end of the page gain or lose exposure by another factor in each arm. So
the bent curve goes past the truth, by a fifth to a third of its way (tests/benchmarks/README.md); its interval reaches
a third of the way back.

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
from posbias.core.standard_errors.cluster import Intervals, adjusted_scores, t_quantile, upper_end
from posbias.core.standard_errors.contrasts import StrataEstimate, detectable
from posbias.core.theta.conditional import laplacian

LEVEL_OF_ARMS = 0.01
"""Level of the test: arms that lift what they also make more clickable are rejected more often than by chance."""

LEAST_STRENGTH, STRENGTH_OF_FAR_MOVE, FAR_MOVE = 10.0, 50.0, 0.5
"""F from which on a curve is bent, and the one that it takes to move log theta in the middle by more than so much."""

MOST_ARMS = 50
"""More values name users or pages."""

LARGEST_MISSED_SLOPE = 0.25
"""Error of eta, theta = position ** -eta, that may be missed by one test in five, up to which arms say enough."""

_BACK = 1 / 3  # of the way to all movement, that the interval reaches back
_MOST = 0.9  # of the information, that one query can have without making the others count for nothing
_STEPS, _PRECISION, _LONGEST, _FARTHEST = 50, 1e-10, 0.5, 20.0  # of Newton's method: its longest step, and way
_MOST_BENDS = 2
_SOME = 2.0  # F above which information is more than chance makes of nothing
_NOTHING = 1e-12  # share of the information that is rounding
_SURELY, _SMALL_PART = 3.3, 0.25  # standard errors of what clicks move in their own arm; and part of it, in others
_BLOCK = 1 << 20  # members of strata that are added up at a time


@dataclass(frozen=True)
class BentCurve:
    """The curve of all movement, bent as far as arms tell, by cell, NaN where nothing is known."""

    bends: int  # 1: along log position; 2: by its square, too
    strength: float  # F of these bends
    propensity: Floats
    intervals: Intervals  # which reach back towards the curve of all movement


@dataclass(frozen=True)
class ArmsTest:
    """Whether arms agree with all movement."""

    p_value: float  # that they do
    degrees: float  # of freedom of the errors
    levels: Floats  # shape (A,), how often a document is clicked in each arm, relative to the first; NaN: never
    strength: float  # F of the bend along log position
    difference: float  # of eta by arms less that by all movement, in one step from it
    missed_slope: float  # the difference that four of five such logs would show; infinite where arms move nothing
    bent: BentCurve | None = None  # where arms disagree and move documents enough to say how far
    apart: bool = False  # whether each arm was seen to learn from its own clicks alone: then nothing is bent

    @property
    def rejected(self) -> bool:
        """Whether they disagree."""
        return self.p_value < LEVEL_OF_ARMS

    @property
    def enough(self) -> bool:
        """Whether a difference that matters would have shown."""
        return self.missed_slope <= LARGEST_MISSED_SLOPE


def arms_test(fitted: StrataEstimate, by_arm: Strata, position: Integers) -> ArmsTest | None:
    """Test that arms agree with all movement, and bend its curve where they do not.

    Args:
        fitted: the estimate from all movement, of strata by query.
        by_arm: the same strata, with the cells of one arm after those of the other.
        position: of each cell, shape (K,).

    Returns:
        The test; None where arms move nothing.
    """
    arms = _Arms(fitted, by_arm, position)
    at_rest = arms.at(np.zeros(1))
    if at_rest is None:
        return None
    scores, own = arms.by_query(at_rest)
    share = np.abs(own[:, 0, 0])
    degrees = _degrees(share)
    left_out = scores[:, 0] / (1 - np.minimum(share / share.sum(), _MOST))
    error = float(np.sqrt(_few(scores) * (left_out**2).sum()))
    if not error > 0:  # one query, or queries that agree to the last click
        return None
    bread, clicked = float(at_rest.bread[0, 0]), sum_by_number(arms.arm, arms.clicks, arms.n_arms) > 0
    test = ArmsTest(
        p_value=min(2 * float(scipy.special.stdtr(degrees, -abs(float(at_rest.score[0])) / error)), 1.0),
        degrees=degrees,
        levels=np.where(clicked, np.exp(at_rest.levels - at_rest.levels[clicked][0]), np.nan),
        strength=at_rest.strength_of_slope,
        difference=float(at_rest.score[0]) / bread if bread > 0 else np.nan,
        missed_slope=detectable(error / bread, degrees, LEVEL_OF_ARMS) if at_rest.strength_of_slope > _SOME else np.inf,
    )
    return replace(test, bent=arms.bent()) if test.rejected else test


def _degrees(share: Floats) -> float:
    """Degrees of freedom of an error to which queries add such shares of the information, shape (G,)."""
    number = (share > _NOTHING * share.sum()).sum()
    return float(max(min(share.sum() ** 2 / (share**2).sum(), number - 1), 1.0))


def _few(moved: Floats) -> float:
    """(G - 1) / G of the queries that move something, of shape (G, ...)."""
    number = max(int((moved != 0).any(axis=1).sum()), 1)
    return (number - 1) / number


@dataclass(frozen=True)
class _State:
    """What arms say at a curve of d bends."""

    log_theta: Floats  # shape (K,)
    levels: Floats  # log alpha, shape (A,), 0 of the first
    score: Floats  # U*, shape (d,)
    information: Floats  # I, shape (d, d)
    chance: Floats  # V, shape (d, d)
    cross: Floats  # X, shape (K, d)
    unit_scores: Floats  # of one copy of each stratum, shape (J, d)
    unit_breads: Floats  # its I - V, shape (J, d, d)

    @property
    def bread(self) -> Floats:
        """I - V."""
        return self.information - self.chance

    @property
    def strength(self) -> float:
        """F; infinite where nothing moves inside an arm."""
        by_chance = float(np.linalg.eigvals(linalg.pseudo_inverse(self.information) @ self.chance).real.max())
        return 1 / by_chance if by_chance > 0 else np.inf

    @property
    def strength_of_slope(self) -> float:
        """F of the bend along log position alone."""
        return float(self.information[0, 0] / self.chance[0, 0]) if self.chance[0, 0] > 0 else np.inf


_Entries = tuple[CountTable, Integers, Integers, Integers]
"""Some strata in all arms: the table, the cell of each entry, of whatever arm, the first entry of each exposure, and
the exposure of each entry, numbered over all strata."""


def _sums(values: Floats, first: Integers) -> Floats:
    """Sums of the rows from each first one to the next."""
    return np.add.reduceat(values, first) if len(first) else values[:0]


def _by_number(number: Integers, values: Floats, length: int) -> Floats:
    """Sums of rows by number, shape (length, d)."""
    return np.stack([sum_by_number(number, column, length) for column in values.T], axis=1)


class _Arms:
    """The strata that were clicked and shown in several arms: J strata, M exposures of a stratum in an arm.

    Attributes:
        fitted: the estimate from all movement.
        basis: B, shape (K, 2), 0 at the references.
        members: the strata with their queries.
        table: their counts, in the cells of all arms.
        first: the first entry of each exposure, shape (M,).
        unit: its stratum, shape (M,).
        arm: its arm, shape (M,).
        clicks: its clicks, shape (M,).
        unit_clicks: C_j of one copy of each stratum, shape (J,).
    """

    def __init__(self, fitted: StrataEstimate, by_arm: Strata, position: Integers) -> None:
        self.fitted, linkage = fitted, fitted.fit.linkage
        self.n_cells = len(position)
        self.n_arms = by_arm.signatures.n_cells // self.n_cells
        down = np.log(position / position[linkage.reference_of]) * linkage.identified
        squared = down**2 - down * (down @ down**2) / max(float(down @ down), _NOTHING)
        self.basis = np.stack([-down, squared], axis=1)
        inside = by_arm.signatures.only_cells(np.tile(linkage.identified, self.n_arms))
        clicked = sum_by_number(inside.cell // self.n_cells, inside.clicks, self.n_arms) > 0
        inside = inside.filter_entries(clicked[inside.cell // self.n_cells])
        first = self._exposures(inside)
        several = np.bincount(inside.unit_of_entry[first], minlength=inside.n_units) > 1
        units = np.flatnonzero(several & (inside.sum_by_unit(inside.clicks) > 0))
        self.members, self.table = by_arm.members.among(units), inside.take(units)
        self.first = self._exposures(self.table)
        self.unit, self.arm = self.table.unit_of_entry[self.first], self.table.cell[self.first] // self.n_cells
        self.clicks = _sums(self.table.clicks, self.first)
        self.unit_clicks = self.table.sum_by_unit(self.table.clicks)
        self._first_of_unit = first_of_runs(self.unit)

    def _exposures(self, table: CountTable) -> Integers:
        """The first entry of each exposure."""
        return first_of_runs(table.unit_of_entry * self.n_arms + table.cell // self.n_cells)

    def at(self, delta: Floats) -> _State | None:
        """What arms say of the curve bent by delta, shape (d,); None where they move nothing along it."""
        basis, unit, arm = self.basis[:, : len(delta)], self.unit, self.arm
        log_theta = np.nan_to_num(self.fitted.fit.log_theta) + basis @ delta
        theta = np.exp(log_theta)

        def exposures_of(part: _Entries) -> Floats:
            table, cell, first, _ = part
            return _sums(table.impressions * theta[cell], first)

        exposure = np.concatenate([np.zeros(0), *thread_map(exposures_of, self._entries())])
        levels, share, information_of_levels = self._levels(exposure)
        expected = self.unit_clicks[unit] * share

        def inside_arms(part: _Entries) -> tuple[Floats, Floats, Floats, Floats, Floats]:
            table, cell, first, of = part
            along, make_up = basis[cell], table.impressions * theta[cell] / exposure[of]
            place = _sums(make_up[:, np.newaxis] * along, first)
            away = along - place[of - of[0]]
            own_weight = ((1 - share) / exposure)[of] * theta[cell]
            by_chance = own_weight * expected[of] * make_up
            own = _sums((own_weight * table.clicks - by_chance)[:, np.newaxis] * away, first)
            moved = by_chance[:, np.newaxis] * away
            chance = _sums(moved[:, :, np.newaxis] * away[:, np.newaxis], first)
            of_cells = _by_number(cell, table.spread(table.multiplicity)[:, np.newaxis] * moved, self.n_cells)
            return place, own, _sums(moved, first), chance, of_cells

        parts = list(thread_map(inside_arms, self._entries()))
        if not parts:
            return None
        place, own, moved, chance = (np.concatenate(of) for of in list(zip(*parts, strict=True))[:4])
        copies = self.table.multiplicity[unit]
        weight = (copies * expected)[:, np.newaxis]
        mixed = _by_number(arm, weight * self._centred(place, share), self.n_arms)
        place -= (linalg.pseudo_inverse(information_of_levels) @ mixed)[arm]
        centred = self._centred(place, share)
        information = (weight * centred).T @ centred
        if not information[0, 0] > _NOTHING * weight.sum():
            return None
        scores = (self.clicks - expected)[:, np.newaxis] * place - own
        breads = expected[:, np.newaxis, np.newaxis] * centred[:, :, np.newaxis] * centred[:, np.newaxis] - chance
        by_exposure = (copies / exposure)[:, np.newaxis] * (expected[:, np.newaxis] * centred + moved)

        def cross_of(part: _Entries) -> Floats:
            table, cell, _, of = part
            seen = table.impressions * theta[cell]
            return _by_number(cell, seen[:, np.newaxis] * by_exposure[of], self.n_cells)

        return _State(
            log_theta=log_theta,
            levels=levels,
            score=copies @ scores,
            information=information,
            chance=np.tensordot(copies, chance, 1),
            cross=np.sum(list(thread_map(cross_of, self._entries())), axis=0) - np.sum([of[4] for of in parts], axis=0),
            unit_scores=_sums(scores, self._first_of_unit),
            unit_breads=_sums(breads, self._first_of_unit),
        )

    def _levels(self, exposure: Floats) -> tuple[Floats, Floats, Floats]:
        """Log alpha, shape (A,), by Newton's method; s, shape (M,); and the information about the levels, (A, A)."""
        unit, arm, copies = self.unit, self.arm, self.table.multiplicity
        weight, levels = copies * self.unit_clicks, np.zeros(self.n_arms)
        start, share, information = np.append(self._first_of_unit, len(unit)), exposure, np.zeros((0, 0))
        for _ in range(_STEPS):
            seen = exposure * np.exp(levels)[arm]
            share = seen / _sums(seen, self._first_of_unit)[unit]
            rows = linalg.in_rows(share * np.sqrt(weight[unit]), arm, start, self.n_arms)
            information = laplacian(linalg.gram(rows))
            score = sum_by_number(arm, copies[unit] * self.clicks - weight[unit] * share, self.n_arms)
            information[0] = information[:, 0] = 0.0
            step = np.clip(linalg.pseudo_inverse(information) @ score, -_LONGEST, _LONGEST)
            if np.abs(step).max() < _PRECISION:
                break
            levels = levels + step
        return levels, share, information

    def _centred(self, place: Floats, share: Floats) -> Floats:
        """Places less their mean over the arms of the stratum, shape (M, d)."""
        return place - _sums(share[:, np.newaxis] * place, self._first_of_unit)[self.unit]

    def _entries(self) -> Iterator[_Entries]:
        """The entries of the table, a block at a time."""
        for units, block in self.table.blocks():
            low, high = (int(at) for at in np.searchsorted(self.unit, [units.start, units.stop]))
            first: Integers = self.first[low:high] - self.table.start[units.start]
            exposure = np.repeat(np.arange(low, high), np.diff(first, append=block.n_entries))
            yield block, block.cell % self.n_cells, first, exposure

    def by_query(self, state: _State) -> tuple[Floats, Floats]:
        """e_g, shape (G, d), and the query's I - V, shape (G, d, d), of all queries by their numbers."""
        fit, pooled, bends = self.fitted.fit, self.fitted.strata, len(state.score)
        number = 1 + max(int(of.cluster.max(initial=-1)) for of in (self.members, pooled.members))
        of_unit = np.concatenate([state.unit_scores, state.unit_breads.reshape(-1, bends**2)], axis=1)
        sums = np.zeros((number, bends + bends**2))
        for start in range(0, len(self.members.unit), _BLOCK):
            query = self.members.cluster[start : start + _BLOCK].astype(np.int64)
            last = int(query[-1]) + 1
            of_members = of_unit[self.members.unit[start : start + _BLOCK]]
            sums[query[0] : last] += _by_number(query - query[0], of_members, last - int(query[0]))
        scores, own = sums[:, :bends], sums[:, bends:].reshape(number, bends, bends)
        along = fit.inverse @ state.cross[fit.free_cells]
        for clusters, adjusted in adjusted_scores(fit, pooled):
            scores[clusters] -= adjusted @ along
        return scores, own

    def bent(self) -> BentCurve | None:
        """The curve as arms bend it, where they are strong enough, at U* = 0 by Newton's method."""
        known = np.flatnonzero(self.fitted.fit.linkage.identified)
        places = np.unique(self.basis[known, 0])
        for bends in range(min(_MOST_BENDS, len(places) - 1), 0, -1):
            state, delta, largest, steps = self.at(np.zeros(bends)), np.zeros(bends), np.inf, 0
            while state is not None:
                step = linalg.pseudo_inverse(state.bread) @ state.score
                largest, steps = float(np.abs(step).max()), steps + 1
                if largest < _PRECISION:
                    break
                delta = delta + step * min(1.0, _LONGEST / largest)
                there = steps < _STEPS and np.abs(delta).max() < _FARTHEST
                state = self.at(delta) if there else None
            if state is None or state.strength < LEAST_STRENGTH:
                continue
            move = np.abs(state.log_theta - self.fitted.fit.log_theta)[known]
            far = move[self.basis[known, 0] == places[len(places) // 2]].max() > FAR_MOVE
            return None if far and state.strength_of_slope < STRENGTH_OF_FAR_MOVE else self._with_errors(state)
        return None

    def _with_errors(self, state: _State) -> BentCurve | None:
        """The curve with its errors by query; None where one query says nearly all."""
        fit, errors, free = self.fitted.fit, self.fitted.errors, self.fitted.fit.free_cells
        along = self.basis[free, : len(state.score)].T
        scores, own = self.by_query(state)
        shares = np.abs(np.diagonal(own, axis1=1, axis2=2))
        if (shares.max(axis=0) > _MOST * shares.sum(axis=0)).any():
            return None
        try:
            of_bends = np.linalg.solve(state.bread - own, scores[:, :, np.newaxis])[:, :, 0]
        except np.linalg.LinAlgError:
            return None
        squares, others = np.zeros(self.n_cells), np.ones(len(scores), np.bool_)
        for clusters, adjusted in adjusted_scores(fit, self.fitted.strata):
            squares[free] += ((adjusted @ fit.inverse + of_bends[clusters] @ along) ** 2).sum(axis=0)
            others[clusters] = False
        squares[free] += ((of_bends[others] @ along) ** 2).sum(axis=0)
        std_error = np.where(np.isnan(errors.std_error), np.nan, np.sqrt(_few(scores) * squares))
        degrees = np.fmin(errors.degrees, min(map(_degrees, shares.T)))
        log_theta = np.where(np.isnan(fit.log_theta), np.nan, state.log_theta)
        back = log_theta + _BACK * (fit.log_theta - log_theta)
        reach = t_quantile(degrees) * std_error
        return BentCurve(
            bends=len(state.score),
            strength=state.strength,
            propensity=np.exp(log_theta),
            intervals=Intervals(
                std_error,
                np.exp(np.minimum(log_theta, back) - reach),
                upper_end(np.maximum(log_theta, back) + reach),
                degrees,
                errors.reason,
            ),
        )


def learning_by_arm(statistics: pl.DataFrame, plan: StatisticsPlan) -> Floats:
    """By how much places improve after surplus clicks in their own arm, and in the others, by query, shape (Q, 2).

    With x_t the clicks of a pair in an arm at time t beyond its share of them, by exposure, and m_t the impressions'
    -log(position) beyond their mean in the arm, the sum of x_t (sum_{s > t} m_s - sum_{s < t} m_s) over the pair's
    impressions: over m of the same arm, and of the others. Both are 0 on average where clicks do not move documents.

    Args:
        statistics: of a part, with periods.
        plan: what was counted.
    """
    (arm,), pair, n = plan.arms, list(plan.pair_columns), pl.col(IMPRESSIONS)
    own = [*pair, arm]
    place = -pl.col(POSITION).cast(pl.Float64).log()
    seen = n * place.exp()
    surplus = pl.col(CLICKS) - pl.col(CLICKS).sum().over(own) * seen / seen.sum().over(own)
    moved = n * (place - (n * place).sum().over(own) / n.sum().over(own))
    by_time = (
        statistics.drop_nulls(arm)
        .select(*own, PERIOD, IMPRESSIONS, x=surplus, m=moved)
        .group_by(*own, PERIOD)
        .agg(pl.col("x", "m", IMPRESSIONS).sum())
        .sort(*pair, PERIOD, arm)
    )
    at_once, before = pl.col("m").sum().over(*pair, PERIOD), pl.col("m").cum_sum()
    up_to = before.over(pair) + at_once - before.over(*pair, PERIOD)
    of_own, of_all = pl.col("m") - 2 * before.over(own), at_once - 2 * up_to  # m of an arm adds up to 0
    areas = (pl.col("x") / n.sum().over(pair) * of for of in (of_own, of_all - of_own))
    sums = by_time.select(QUERY, *(area.alias(name) for name, area in zip("ab", areas, strict=True)))
    return sums.group_by(QUERY, maintain_order=True).sum().select("a", "b").to_numpy()


def arms_learn_separately(areas: Floats, impressions: Floats) -> bool:
    """Whether clicks move documents in their own arm, and not in the others, so that arms are no instrument.

    Args:
        areas: of `learning_by_arm`, of all queries, shape (Q, 2).
        impressions: of each arm, shape (A,).
    """
    share = float(((impressions / impressions.sum()) ** 2).sum())
    own, others = areas[:, 0], areas[:, 1] * share / (1 - share)  # alike where all arms learn from all clicks
    errors = [float(np.sqrt((of**2).sum())) for of in (own, others)]
    surely = own.sum() > _SURELY * errors[0] > 0
    return bool(surely and others.sum() + 2 * errors[1] < _SMALL_PART * own.sum())
