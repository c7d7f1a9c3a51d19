"""Which periods a log is parted by, for rankers that learn from clicks."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import PBM, feed, simulated, statistics_of

from posbias.core.choices import Period
from posbias.core.counts import sufficient_statistics
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.periods import PeriodChoice, change_of_theta, choose_period
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.fits.verdicts import period_choice_in_words

WORLD = SimulationOptions(
    n_sessions=20_000,
    n_queries=200,
    docs_per_query=15,
    n_positions=5,
    query_exponent=0.7,
    days=14,
    attractiveness_scale=0.5,
)


def learning_log(updates_per_day: int, strength: float = 3.0, **changes: float) -> pl.DataFrame:
    """A log of a ranker that learns so often, with the quarters of an hour as periods."""
    learns = {"feedback_strength": strength, "updates_per_day": updates_per_day} if updates_per_day else {}
    options = replace(WORLD, **learns, **changes)  # pyright: ignore[reportArgumentType]
    return simulated(options).log.with_columns(period=pl.col("timestamp").dt.truncate("15m"))


def chosen_for(log: pl.DataFrame, period: Period = "auto") -> PeriodChoice:
    statistics = statistics_of(log, replace(PBM, period="quarter"))
    return choose_period(statistics, EstimationOptions(period=period), lambda _: None)


def test_a_log_of_a_ranker_that_does_not_learn_is_not_parted() -> None:
    choice = chosen_for(learning_log(0))

    assert choice.used == "none"
    assert choice.claims
    assert choice.survivor is not None
    assert [look.outcome for look in choice.looks] == ["survives"]


def test_some_queries_of_a_large_log_say_that_a_ranker_learns_and_all_how_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sufficient_statistics, "_ENOUGH_IMPRESSIONS", 20_000)
    monkeypatch.setattr(sufficient_statistics, "_ENOUGH_QUERIES", 50)
    plan = replace(PBM, period="quarter")
    fixed, learns = (statistics_of(learning_log(updates), plan, parts=5) for updates in (0, 1))
    choices = [choose_period(of, EstimationOptions(), lambda _: None) for of in (fixed, learns)]

    assert 1 < fixed.parts_for_tests < len(fixed.queries_of_part)
    assert sum(fixed.queries_of_part[: fixed.parts_for_tests]) >= 50
    assert [look.outcome for look in choices[0].looks] == ["survives"]
    assert [look.outcome for look in choices[1].looks] == ["feedback", "feedback", "survives"]
    by_day, of_all = choices[1].looks[2], chosen_for(learning_log(1)).looks[2]
    assert present(by_day.feedback).std_error == pytest.approx(present(of_all.feedback).std_error)


def test_of_a_ranker_that_learns_overnight_days_are_the_coarsest_that_survive() -> None:
    choice = chosen_for(learning_log(1))

    assert [look.outcome for look in choice.looks] == ["feedback", "feedback", "survives"]
    assert choice.used == "day"
    assert np.abs(present(choice.chosen).propensity * np.arange(1, 6) - 1).max() < 0.1


def test_days_are_kept_at_any_cost_where_pooling_them_is_wrong() -> None:
    few = {"n_queries": 2_000, "docs_per_query": 8, "n_positions": 4, "query_exponent": 0.5, "days": 10}
    choice = chosen_for(learning_log(1, strength=15.0, attractiveness_scale=1.0, **few))
    whole, daily = present(choice.looks[0].estimate), present(choice.chosen)

    assert choice.used == "day"
    errors = [np.abs(found.propensity * np.arange(1, 5) - 1)[1:].mean() for found in (whole, daily)]
    assert choice.error_ratio > 1.5
    assert present(choice.difference).rejected
    assert errors[0] > 3 * errors[1]


def test_no_claim_is_made_where_a_ranker_learns_within_the_day_and_hours_say_too_little() -> None:
    choice = chosen_for(learning_log(4))

    assert [look.outcome for look in choice.looks] == ["feedback", "feedback", "feedback", "says too little"]
    assert choice.used == "hour"
    assert not choice.claims


@pytest.mark.slow
def test_no_claim_is_made_for_days_where_a_weak_reaction_within_them_could_matter_and_not_show() -> None:
    choice = chosen_for(learning_log(4, strength=1.0, n_queries=2_000))
    by_day = next(look for look in choice.looks if look.length == "day")
    feedback = present(by_day.feedback)

    assert by_day.learns
    assert not feedback.rejected
    assert feedback.largest_bias > by_day.slope_width > 0
    assert not choice.claims
    assert choice.used == "day"
    assert "and the intervals allow for" in period_choice_in_words(choice)


def test_what_may_be_left_of_feedback_counts_only_where_the_ranker_is_known_to_learn() -> None:
    look = chosen_for(learning_log(0)).looks[0]
    narrow = replace(look, slope_width=0.0)

    assert not narrow.in_doubt
    assert narrow.outcome == "survives"
    assert replace(narrow, learns=True).outcome == "says too little"
    assert replace(look, learns=True, slope_width=1.0).outcome == "survives"


@pytest.mark.slow
def test_hours_survive_where_they_say_enough_of_a_ranker_that_learns_every_hour() -> None:
    choice = chosen_for(learning_log(24, n_sessions=60_000, n_queries=30, n_positions=4, days=2, seed=6))

    assert choice.used == "hour"
    assert choice.claims
    assert "day" in {look.length for look in choice.looks if look.outcome == "feedback"}


def test_the_version_of_the_ranker_removes_feedback_however_often_it_learns() -> None:
    log = learning_log(4).with_columns(version=pl.col("timestamp").dt.truncate("6h").cast(pl.String))
    statistics = statistics_of(log, replace(PBM, period="quarter", strata=("version",)))
    choice = choose_period(statistics, EstimationOptions(), lambda _: None)

    assert choice.used == "none"
    assert choice.claims
    assert np.abs(present(choice.chosen).propensity * np.arange(1, 6) - 1).max() < 0.15


def test_dates_alone_make_no_claim_for_days() -> None:
    log = learning_log(4).with_columns(period=pl.col("timestamp").dt.date())
    choice = choose_period(statistics_of(log, replace(PBM, period="day")), EstimationOptions(), lambda _: None)

    assert choice.looks[-1].outcome == "cannot be looked into"
    assert choice.used == "day"
    assert not choice.claims


@pytest.mark.parametrize(("p_value", "sure"), [(0.02, False), (0.005, True)])
def test_what_shows_at_one_in_forty_is_a_doubt_and_at_one_in_a_hundred_feedback(p_value: float, *, sure: bool) -> None:
    choice = chosen_for(learning_log(1).with_columns(pl.col("timestamp").dt.date()))
    whole, *others = choice.looks
    assert choice.feedback_is_sure

    seen = replace(whole, feedback=replace(present(whole.feedback), p_value=p_value), halves=None)
    looks = (seen, *(replace(look, feedback=None, halves=None) for look in others))
    choice = replace(choice, looks=looks)

    assert not choice.claims
    assert choice.feedback_is_sure is sure


@pytest.mark.slow
def test_a_length_that_is_given_is_taken_and_tested_within_as_far_as_times_go() -> None:
    log = learning_log(1)

    found = {length: chosen_for(log, length) for length in ("none", "week", "day")}
    assert {length: choice.used for length, choice in found.items()} == {length: length for length in found}
    assert [choice.claims for choice in found.values()] == [False, False, True]
    assert found["day"].survivor is not None

    dates = statistics_of(log.with_columns(pl.col("period").cast(pl.Date)), replace(PBM, period="day"))
    for length in ("day", "hour"):
        choice = choose_period(dates, EstimationOptions(period=length), lambda _: None)
        assert (choice.used, choice.looks[0].outcome) == ("day", "cannot be looked into")
        assert choice.survivor is None
        assert choice.claims


@pytest.mark.slow
def test_attention_that_changed_is_seen_and_a_better_ranker_is_not() -> None:
    log, uniform = learning_log(0), np.random.default_rng(1).random(20_000 * 5)
    late, position = pl.col("period") >= pl.datetime(2026, 1, 12), pl.col("position")
    log = log.with_columns(uniform=pl.Series(uniform[: log.height]))
    redesigned = log.with_columns(click=pl.when(~late & (pl.col("uniform") > 1 / position)).then(0).otherwise("click"))
    better = log.filter(~late | (pl.col("doc").hash(1) % 3 > 0) | (position < 3))  # other documents, further up
    changes = {
        name: change_of_theta(statistics_of(of, replace(PBM, period="quarter")), used, EstimationOptions(), print)
        for used in ("none", "day")
        for name, of in ((f"redesigned {used}", redesigned), (f"as ever {used}", log), (f"better {used}", better))
    }
    assert [name for name, change in changes.items() if change and change.matters] == [
        "redesigned none",
        "redesigned day",
    ]
    change, k = present(changes["redesigned none"]), np.arange(1, 6)
    assert change.first_day == "2026-01-12"
    assert np.abs(change.before * k**2 - 1).max() < 0.25
    assert np.abs(change.after * k - 1).max() < 0.15


def test_counts_before_and_after_a_day_are_those_of_two_logs() -> None:
    log, day = learning_log(0), pl.date(2026, 1, 9)
    plan = replace(PBM, period="quarter")
    both = statistics_of(log, plan).before_and_after("2026-01-09")
    for strata, of in zip(both, (log.filter(pl.col("period") < day), log.filter(pl.col("period") >= day)), strict=True):
        alone = statistics_of(of, plan).pair_signatures
        for name in ("impressions", "clicks"):
            ours, theirs = (
                table.sum_by_cell(table.spread(table.multiplicity) * getattr(table, name))
                for table in (strata.signatures, alone)
            )
            np.testing.assert_array_equal(ours, theirs)


def test_days_are_pooled_where_the_ranker_does_not_move_within_a_day() -> None:
    log = simulate(SimulationOptions(n_sessions=20_000, n_queries=30, docs_per_query=10, seed=5)).log
    fixed = log.filter(pl.col("session") < 50).with_columns(period=pl.date(2026, 1, 5) + pl.duration(days="session"))
    choice = choose_period(statistics_of(fixed, replace(PBM, period="day")), EstimationOptions(), lambda _: None)

    assert choice.looks[-1].outcome in {"nothing to compare", "survives"}
    assert choice.used != "day"


def log_of_trust(seed: int) -> pl.DataFrame:
    """A log without feedback whose users also click what is irrelevant, more so at the top (trust bias)."""
    rng, n_pages, n_positions = np.random.default_rng(seed), 30_000, 10
    query, place = rng.integers(0, 200, n_pages), np.arange(1, n_positions + 1)
    score = rng.normal(size=(200, 20))[query]
    doc = np.argsort(-score - rng.normal(size=score.shape), axis=1)[:, :n_positions]
    relevance = 1 / (1 + np.exp(2 - 2 * np.take_along_axis(score, doc, axis=1)))
    click = rng.random(doc.shape) < place**-0.75 * (0.95 * relevance + 0.35 / place * (1 - relevance))
    day = np.sort(rng.integers(0, 20, n_pages))
    columns = {
        "session": np.arange(n_pages).repeat(n_positions),
        "query": query.repeat(n_positions),
        "doc": doc.ravel(),
        "position": np.tile(place, n_pages),
        "click": click.ravel().astype(np.int8),
        "period": day.repeat(n_positions),
    }
    return pl.DataFrame(columns).with_columns(period=pl.date(2026, 1, 5) + pl.duration(days="period"))


@pytest.mark.parametrize("seed", range(2))
def test_a_curve_that_does_not_hold_for_all_documents_is_not_taken_for_feedback(seed: int) -> None:
    choice = choose_period(statistics_of(log_of_trust(seed), replace(PBM, period="day")), EstimationOptions(), print)

    assert not choice.feedback_seen
    assert choice.used == "none"


@pytest.mark.parametrize("newest_on_top", [True, False])
def test_where_documents_only_fall_or_rise_age_is_named_with_the_bias_that_it_has(newest_on_top: bool) -> None:  # noqa: FBT001
    plan, options = replace(PBM, period="day"), EstimationOptions(period="none")
    slopes: dict[bool, float] = {}
    for ages in (True, False):
        choice = choose_period(statistics_of(feed(newest_on_top=newest_on_top, ages=ages), plan), options, print)
        log_theta = np.log(present(choice.chosen).propensity)
        slopes[ages] = np.polyfit(np.log(np.arange(1, 6)), log_theta, 1)[0]
        test = present(choice.looks[0].feedback)

        assert test.drifts
        assert (test.drift > 0) == newest_on_top

    assert slopes[False] == pytest.approx(-0.75, abs=0.05)
    assert slopes[False] - slopes[True] == pytest.approx(test.drift, abs=0.05)


def test_documents_that_rise_and_fall_alike_do_not_drift() -> None:
    for log in (learning_log(0), log_of_trust(0)):
        plan = replace(PBM, period="day" if log["period"].dtype == pl.Date else "quarter")
        choice = choose_period(statistics_of(log, plan), EstimationOptions(period="none"), print)

        assert abs(present(choice.looks[0].feedback).drift) < 0.03
