"""What experiment arms say of the curve of all movement: against dense mathematics, and on logs of known truth."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import scipy
from arm_logs import ETA, Ranker, log_of_arms
from dense import by_cluster, scores_and_information
from present import present
from small_logs import PBM, counted, dense_table, fitted_strata, statistics_of, strata_of

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.arms import ArmsTest, arms_learn_separately, arms_test, learning_by_arm
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import ConditionalFit

BY_ARM = replace(PBM, arms=("arm",))


def total(of_pairs: Floats) -> Floats:
    """The sum over pairs."""
    return of_pairs.sum(axis=0)


@dataclass(frozen=True)
class Dense:
    """Counts by pair, arm and position, and the equations as they stand in the module, all at once."""

    n: Floats  # shape (J, A, K)
    c: Floats  # shape (J, A, K)
    query: Integers  # shape (J,)

    @classmethod
    def drawn(cls, seed: int, arms: int = 3) -> "Dense":
        """Few pairs, some in one arm or without a click."""
        rng = np.random.default_rng(seed)
        n = rng.poisson(rng.gamma(0.5, 8, (90, arms, 5))).astype(float)
        gamma = rng.beta(2, 3, (90, 1, 1)) * np.array([1.0, 0.7, 0.9])[:arms, np.newaxis]
        c = rng.binomial(n.astype(int), gamma / np.arange(1, 6)).astype(float)
        return cls(n, c, np.sort(np.minimum(rng.geometric(0.15, 90), 15)).astype(np.int64) - 1)

    @classmethod
    def of(cls, log: pl.DataFrame) -> "Dense":
        """The counts of a log."""
        rows = counted(log, BY_ARM)
        pair = rows.select(pl.struct("query", "doc").rle_id()).to_series().to_numpy()
        arm = rows["arm"].rank("dense").to_numpy() - 1
        position = rows["position"].to_numpy() - 1
        shape = int(pair.max()) + 1, int(arm.max()) + 1, int(position.max()) + 1
        n, c = np.zeros(shape), np.zeros(shape)
        n[pair, arm, position], c[pair, arm, position] = rows["impressions"].to_numpy(), rows["clicks"].to_numpy()
        return cls(n, c, rows["query"].to_numpy()[np.unique(pair, return_index=True)[1]].astype(np.int64))

    @property
    def position(self) -> Integers:
        """Of the cells."""
        return np.arange(1, self.n.shape[2] + 1, dtype=np.int64)

    @property
    def fitted(self) -> StrataEstimate:
        """The estimate from all movement."""
        pairs = dense_table(self.n.sum(axis=1), self.c.sum(axis=1))
        return fitted_strata(strata_of(pairs, self.query))

    def tested(self) -> ArmsTest:
        """What the module says."""
        by_arm = dense_table(*(of.reshape(len(of), -1) for of in (self.n, self.c)))
        return present(arms_test(self.fitted, strata_of(by_arm, self.query), self.position))

    def equations(self, log_theta: Floats, levels: Floats, basis: Floats) -> tuple[Floats, ...]:
        """By pair: U* of bends and levels, I and V of them, and X, at a curve and levels."""
        seen = self.n * np.exp(log_theta)
        m = seen.sum(axis=2)
        share = m * np.exp(levels)
        share /= share.sum(axis=1, keepdims=True)
        inverse = 1 / np.where(m > 0, m, 1)
        r = seen * inverse[:, :, np.newaxis]
        z = np.concatenate([r @ basis, np.broadcast_to(np.eye(m.shape[1])[:, 1:], (*m.shape, m.shape[1] - 1))], axis=2)
        clicks = self.c.sum(axis=(1, 2))
        expected = clicks[:, np.newaxis] * share
        centred = z - np.einsum("ja,jap->jp", share, z)[:, np.newaxis]
        score = np.einsum("ja,jap->jp", self.c.sum(axis=2) - expected, z)
        information = np.einsum("ja,jap,jaq->jpq", expected, centred, centred)
        cross = np.einsum("ja,jak,jap->jkp", expected, r, centred)
        bends = basis.shape[1]
        g = expected[:, :, np.newaxis] * r
        own = ((1 - share) * inverse)[:, :, np.newaxis] * np.exp(log_theta)
        away = basis - (r @ basis)[:, :, np.newaxis]
        score[:, :bends] -= np.einsum("jak,jakp->jp", own * (self.c - g), away)
        chance = np.einsum("jak,jakp,jakq->jpq", own * g, away, away)
        moved = np.einsum("jak,jakp->jap", own * g, away)
        cross[:, :, :bends] -= np.einsum("jak,jakp->jkp", own * g, away) - np.einsum("jak,jap->jkp", r, moved)
        return score, information, chance, cross

    def bends_at(self, log_theta: Floats, basis: Floats) -> tuple[Floats, ...]:
        """Levels, and by pair U*, I, V and X of the bends, the levels solved and projected out."""
        levels, bends = np.zeros(self.n.shape[1]), basis.shape[1]
        for _ in range(6):
            score, information, _, _ = map(total, self.equations(log_theta, levels, basis))
            levels[1:] += np.linalg.solve(information[bends:, bends:], score[bends:])
        score, information, chance, cross = self.equations(log_theta, levels, basis)
        of_all = total(information)
        along = np.concatenate([np.eye(bends), -np.linalg.solve(of_all[bends:, bends:], of_all[bends:, :bends])])
        return levels, score @ along, along.T @ information @ along, chance, cross @ along

    def moved_by_queries(self, fit: ConditionalFit) -> Floats:
        """(H - H_g)^-1 s_g of each query; H^-1 s_g where its leverage is below .01."""
        scores, own = (
            by_cluster(of_pairs[:, 1:], self.query)
            for of_pairs in scores_and_information(self.n.sum(axis=1), self.c.sum(axis=1), fit.theta)
        )
        own = own[:, :, 1:]
        leverage = np.einsum("kl,glk->g", fit.inverse, own)[:, np.newaxis, np.newaxis]
        rest = np.where(leverage < 0.01, fit.information, fit.information - own)
        return np.linalg.solve(rest, scores[:, :, np.newaxis])[:, :, 0].astype(np.float64)

    @property
    def telling(self) -> "Dense":
        """Without the pairs that say nothing: they have no click, or were shown in one arm."""
        says = (self.c.sum(axis=(1, 2)) > 0) & ((self.n.sum(axis=2) > 0).sum(axis=1) > 1)
        return Dense(self.n[says], self.c[says], self.query[says])

    def bases(self, bends: int) -> Floats:
        """B, shape (K, d)."""
        down = np.log(self.position)
        return np.stack([-down, down**2 - down * (down @ down**2) / (down @ down)], axis=1)[:, :bends]


@pytest.mark.parametrize(("seed", "arms"), [(0, 2), (1, 3), (2, 3)])
def test_the_test_is_that_of_the_equations(seed: int, arms: int) -> None:
    drawn = Dense.drawn(seed, arms)
    fit, test, telling = drawn.fitted.fit, drawn.tested(), drawn.telling
    levels, score, information, chance, cross = telling.bends_at(fit.log_theta, drawn.bases(1))
    gradient, bread = score.sum(), (information - chance).sum()
    influence = (by_cluster(score, telling.query, drawn.query) - drawn.moved_by_queries(fit) @ total(cross)[1:])[:, 0]
    share = np.abs(by_cluster(information - chance, telling.query, drawn.query)[:, 0, 0])
    share /= share.sum()
    moving = (influence != 0).sum()
    error = np.sqrt((moving - 1) / moving * ((influence / (1 - share)) ** 2).sum())
    degrees = max(min(1 / (share**2).sum(), (share > 0).sum() - 1), 1)
    p_value = 2 * scipy.special.stdtr(degrees, -abs(gradient) / error)

    assert test.p_value == pytest.approx(p_value, rel=1e-9)
    assert test.degrees == pytest.approx(degrees, rel=1e-9)
    np.testing.assert_allclose(test.levels, np.exp(levels), rtol=1e-9)
    assert test.strength == pytest.approx(information.sum() / chance.sum(), rel=1e-9)
    assert test.difference == pytest.approx(gradient / bread, rel=1e-9)
    reach = scipy.special.stdtrit(degrees, [0.995, 0.8]).sum()
    assert test.missed_slope == pytest.approx(reach * error / bread, rel=1e-9)


def test_the_bent_curve_is_that_of_the_equations() -> None:
    drawn = Dense.of(log_of_arms("knows the user", 0, queries=40, pages=60))
    fitted, test, telling = drawn.fitted, drawn.tested(), drawn.telling
    fit, basis, log_theta = fitted.fit, drawn.bases(2), fitted.fit.log_theta
    for _ in range(12):
        _, score, information, chance, _ = telling.bends_at(log_theta, basis)
        log_theta = log_theta + basis @ np.linalg.solve(total(information - chance), total(score))
    _, score, information, chance, cross = telling.bends_at(log_theta, basis)
    bread = total(information - chance)
    own = by_cluster(information - chance, telling.query, drawn.query)
    influence = by_cluster(score, telling.query, drawn.query) - drawn.moved_by_queries(fit) @ total(cross)[1:]
    of_bends = np.linalg.solve(bread - own, influence[:, :, np.newaxis])[:, :, 0]
    moved = drawn.moved_by_queries(fit) + of_bends @ basis[1:].T
    std_error = np.sqrt((len(moved) - 1) / len(moved) * (moved**2).sum(axis=0))
    shares = np.abs(np.diagonal(own, axis1=1, axis2=2))
    degrees = np.minimum((shares.sum(axis=0) ** 2 / (shares**2).sum(axis=0)).min(), len(moved) - 1)
    reach = scipy.special.stdtrit(np.minimum(degrees, fitted.errors.degrees[1:]), 0.975) * std_error
    back = log_theta + (fit.log_theta - log_theta) / 3

    assert test.rejected
    bent = present(test.bent)
    assert bent.bends == 2
    np.testing.assert_allclose(bent.propensity, np.exp(log_theta), rtol=1e-9)
    strength = np.linalg.eigvals(np.linalg.solve(total(chance), total(information))).real.min()
    assert bent.strength == pytest.approx(strength, rel=1e-7)
    np.testing.assert_allclose(bent.intervals.std_error[1:], std_error, rtol=1e-8)
    np.testing.assert_allclose(bent.intervals.low[1:], np.exp(np.minimum(log_theta, back)[1:] - reach), rtol=1e-8)
    np.testing.assert_allclose(bent.intervals.high[1:], np.exp(np.maximum(log_theta, back)[1:] + reach), rtol=1e-8)
    assert (bent.intervals.low[0], bent.intervals.high[0], bent.intervals.std_error[0]) == (1, 1, 0)


# --- logs of known truth ---


@cache
def fitted(ranker: Ranker, seed: int = 0, *, period: bool = False, **world: float) -> Fit:
    """The fit of a log, by the hour where times are kept."""
    log = log_of_arms(ranker, seed, queries=100, **world).with_columns(period=pl.col("timestamp"))  # type: ignore[arg-type]
    plan = replace(BY_ARM, period="quarter" if period else None)
    return fit_statistics(statistics_of(log, plan), "conditional", EstimationOptions(period="none"), compare=False)


def judged(ranker: Ranker, *, period: bool = False, **world: float) -> ArmsTest:
    """What the arms of a log say."""
    return present(fitted(ranker, period=period, **world).arms)


def error(propensity: Floats) -> float:
    """The mean relative error."""
    return float(np.abs(propensity * np.arange(1, 9) ** ETA - 1).mean())


@pytest.mark.parametrize("ranker", ["knows the user", "learns"])
@pytest.mark.slow
def test_rankers_that_know_the_user_or_learn_are_contradicted_and_the_bent_curve_is_nearer(ranker: Ranker) -> None:
    fit = fitted(ranker)
    arms, table = present(fit.arms), fit.propensities
    bent = present(arms.bent)

    assert arms.rejected
    assert (arms.difference > 0) is (ranker == "learns")
    assert error(bent.propensity) < 0.6 * error(fit.free.propensity)
    np.testing.assert_array_equal(table["arms_propensity"], bent.propensity)
    np.testing.assert_array_equal(table["arms_ci_high"], bent.intervals.high)
    np.testing.assert_array_equal(table["weight_propensity"], table["propensity"])


def test_a_fixed_ranker_is_confirmed_and_nothing_is_bent() -> None:
    fit = fitted("fixed")
    arms = present(fit.arms)

    assert arms.p_value > 0.01
    assert arms.enough
    assert arms.bent is None
    assert fit.propensities["arms_propensity"].null_count() == 8


def test_arms_that_move_nothing_say_nothing() -> None:
    arms = judged("knows the user", spread=0.0)

    assert not arms.rejected
    assert not arms.enough
    assert arms.strength < 2


def test_arms_that_move_little_contradict_and_do_not_say_how_far() -> None:
    arms = judged("learns", spread=0.1)

    assert arms.rejected
    assert arms.bent is None


def test_an_arm_in_which_everything_is_clicked_more_says_no_less() -> None:
    arms = judged("fixed", level=1.3)

    assert arms.p_value > 0.01
    assert arms.levels[1] == pytest.approx(1.3, rel=0.1)


@pytest.mark.slow
def test_each_arm_that_learns_from_its_own_clicks_is_seen_by_times_and_its_curve_is_not_bent() -> None:
    apart, shared = judged("each arm learns", period=True), judged("learns", period=True)

    assert (apart.rejected, apart.apart, apart.bent) == (True, True, None)
    assert (shared.rejected, shared.apart) == (True, False)
    assert shared.bent is not None


def test_clicks_that_move_documents_in_their_own_arm_alone_are_counted_by_the_definition() -> None:
    log = log_of_arms("learns", 1, queries=3, pages=12, arms=3).with_columns(period=pl.col("timestamp"))
    plan = replace(BY_ARM, period="quarter")
    found = learning_by_arm(counted(log, plan), plan)

    expected = np.zeros((3, 2))
    for (query, _), pair in log.sort("session").group_by("query", "doc", maintain_order=True):
        place, click = -np.log(pair["position"].to_numpy()), pair["click"].to_numpy().astype(float)
        arm, time = pair["arm"].to_numpy(), pair["period"].to_numpy()
        x, m = np.zeros((2, len(arm)))
        for one in np.unique(arm):
            own = arm == one
            seen = np.exp(place[own])
            x[own] = click[own] - click[own].sum() * seen / seen.sum()
            m[own] = place[own] - place[own].mean()
        order = np.sign(time[np.newaxis] - time[:, np.newaxis] + np.timedelta64(0)).astype(float)
        same = arm[np.newaxis] == arm[:, np.newaxis]
        both = x[:, np.newaxis] * order * m / len(arm)
        expected[query] += both[same].sum(), both[~same].sum()  # type: ignore[index]

    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_half_of_what_is_moved_in_the_own_arm_is_not_learning_apart() -> None:
    rng = np.random.default_rng(0)
    own, noise = 1 + rng.standard_normal(200), 0.1 * rng.standard_normal(200)

    assert arms_learn_separately(np.stack([own, noise], axis=1), np.array([50.0, 50.0]))
    assert not arms_learn_separately(np.stack([own, own / 2], axis=1), np.array([50.0, 50.0]))
    assert not arms_learn_separately(np.stack([noise, noise], axis=1), np.array([50.0, 50.0]))


@pytest.mark.slow
def test_neither_the_order_of_rows_nor_parts_nor_names_of_arms_matter() -> None:
    log = log_of_arms("knows the user", 4, queries=40, pages=60, arms=3)
    renamed = log.with_columns(
        arm=pl.col("arm").replace_strict({"A": "last", "B": "control", "C": "x"}), query=-pl.col("query")
    )
    plain, *others = (
        fit_statistics(statistics_of(of, BY_ARM, parts), "conditional", EstimationOptions(), compare=False).arms
        for of, parts in ((log, 1), (log.sample(fraction=1.0, shuffle=True, seed=1), 1), (log, 4), (renamed, 1))
    )
    expected = present(plain)
    curve = present(expected.bent)
    for found in map(present, others):
        bent = present(found.bent)
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-6)
        assert found.strength == pytest.approx(expected.strength, rel=1e-8)
        np.testing.assert_allclose(bent.propensity, curve.propensity, rtol=1e-8)
        np.testing.assert_allclose(bent.intervals.std_error, curve.intervals.std_error, rtol=1e-6)


def test_rows_without_an_arm_count_for_all_movement_alone() -> None:
    log = log_of_arms("fixed", 5, queries=40, pages=60)
    absent = log.with_columns(session=pl.col("session") + 10**6, arm=pl.lit(None, pl.String))
    by_arm = statistics_of(pl.concat([log, absent]), BY_ARM).by_arm()
    alone = statistics_of(log, BY_ARM).by_arm()

    for name in ("start", "cell", "impressions", "clicks", "multiplicity"):
        np.testing.assert_array_equal(getattr(by_arm.signatures, name), getattr(alone.signatures, name))


def test_statistics_with_arms_are_those_without_where_they_are_added_up() -> None:
    log = log_of_arms("fixed", 6, queries=20, pages=30)
    kept, plain = statistics_of(log, BY_ARM, 3), statistics_of(log, PBM, 3)

    assert present(kept.arms)["impressions"].sum() == log.height
    for name in ("start", "cell", "impressions", "clicks", "multiplicity"):
        np.testing.assert_array_equal(getattr(kept.pair_signatures, name), getattr(plain.pair_signatures, name))
