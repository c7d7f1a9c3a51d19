"""From a log with known truth: theta comes back, and what says nothing changes nothing.

Counted and fitted in memory; one test goes through files and the command line, and so says that those change nothing.
"""

import tempfile
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_logs import counted, over_frames
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import compress_part, merge_parts
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate

DONE = (0, 1)  # 1: done, with doubts
TOLERANCE = 1e-9
# Without shrinking: the logs are small already, and each fit takes a while.
PHASES = (Phase.explicit, Phase.generate)
SETTINGS = settings(max_examples=12, deadline=None, derandomize=True, phases=PHASES)
FROM_END_TO_END = settings(SETTINGS, max_examples=4)
MODELS = ["pbm", "ubm"]


@dataclass(frozen=True)
class Fitted:
    """The two tables of a fit."""

    propensities: pl.DataFrame
    attractiveness: pl.DataFrame

    def errors(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Standard errors of log propensity, nan where there is none and at the reference, where it is 0."""
        return self.propensities["std_error"].replace(0.0, None).to_numpy()


def fit(
    *logs: pl.DataFrame,
    model: str = "pbm",
    strata: tuple[str, ...] = (),
    by_day: bool = False,
    compare: bool = False,
    context: tuple[str, ...] = (),
) -> Fitted:
    """Fit logs as one, in memory: their columns have the names of their roles, `period` that of the day."""
    plan = StatisticsPlan(get_model(model), context=context, strata=strata, period="day" if by_day else None)
    rows = counted(pl.concat(logs), plan)
    part = compress_part(rows, plan)
    statistics = merge_parts([part], plan, over_frames(rows))
    options = EstimationOptions(period="day" if by_day else "auto")
    found = fit_statistics(statistics, "conditional", options, compare=compare)
    (signature,) = statistics.signature_of_part
    of_pair = found.pair_attractiveness(signature[part.pairs["signature"].to_numpy()])
    return Fitted(found.propensities, part.pairs.hstack(of_pair))


def fit_files(*logs: pl.DataFrame, model: str) -> Fitted:
    """Fit one log from end to end, each frame in a file of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{number}.parquet" for number in range(len(logs))]
        for frame, file in zip(logs, files, strict=True):
            frame.write_parquet(file)
        words = ["fit", *files, "-o", folder / "fit", "--model", model, "--no-compare"]
        result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
        assert result.exit_code in DONE, result.output
        tables = [pl.read_parquet(folder / "fit" / f"{table}.parquet") for table in ("propensities", "attractiveness")]
        return Fitted(*tables)


DENSE = SimulationOptions(n_sessions=30_000, n_queries=30, docs_per_query=10, n_positions=6, seed=1)
SPARSE = SimulationOptions(
    n_sessions=60_000, n_queries=30_000, docs_per_query=20, n_positions=10, query_exponent=0.7, seed=2
)
SPARSE_UBM = replace(SPARSE, model="ubm", n_positions=5, n_sessions=120_000)


def mean_errors(options: SimulationOptions) -> dict[str, float]:
    """Mean over the cells of |theta / truth - 1|, without the reference: conditional and joint."""
    simulation = simulate(options)
    found = fit(simulation.log, model=options.model, compare=True).propensities
    cells = [name for name in ("position", "previous_click") if name in simulation.propensities.columns]
    both = found.join(
        simulation.propensities.select(*cells, truth="propensity"), on=cells, how="full", coalesce=True
    ).filter(pl.col("position") > 1)
    assert both["propensity"].null_count() == 0
    return {
        name: float((both[column] / both["truth"] - 1).abs().to_numpy().mean())
        for name, column in (("conditional", "propensity"), ("joint", "joint_propensity"))
    }


@pytest.mark.parametrize("model", MODELS)
def test_theta_is_recovered_from_a_dense_log(model: str) -> None:
    options = replace(DENSE, model=model)

    assert mean_errors(options)["conditional"] < {"pbm": 0.05, "ubm": 0.08}[model]


@pytest.mark.parametrize(("options", "bound", "ratio"), [(SPARSE, 0.05, 4.0), (SPARSE_UBM, 0.04, 1.7)], ids=MODELS)
@pytest.mark.slow
def test_theta_is_recovered_from_a_sparse_log_where_joint_em_is_far_off(
    options: SimulationOptions, bound: float, ratio: float
) -> None:
    errors = mean_errors(options)

    assert errors["conditional"] < bound
    assert errors["joint"] > ratio * errors["conditional"]


@pytest.mark.slow
def test_intervals_cover_most_of_the_true_propensities() -> None:
    simulation = simulate(replace(DENSE, n_queries=200, query_exponent=0.0, n_positions=10))
    found = fit(simulation.log).propensities.join(
        simulation.propensities.select("position", truth="propensity"), on="position"
    )

    covered = found.filter(pl.col("position") > 1, pl.col("truth").is_between("ci_low", "ci_high"))
    assert covered.height >= 7  # of 9


@pytest.mark.parametrize(("eta", "lowest", "highest"), [(1.1, 0.9, 1.0), (0.7, 0.9, 0.99)])
@pytest.mark.slow
def test_intervals_hold_in_a_small_context_that_differs_and_in_one_that_does_not(
    eta: float, lowest: float, highest: float
) -> None:
    """The last of 5 contexts has 4 % of the pages, and its queries shocks; 40 logs with five positions to cover."""
    small = 4
    options = replace(
        DENSE,
        n_sessions=12_000,
        n_queries=60,
        docs_per_query=8,
        query_exponent=0.0,
        attractiveness_scale=0.5,
        theta_shock=0.3,
        contexts=(0.7,) * 24 + (eta,),
    )
    covered: list[bool] = []
    for seed in range(40):
        log = simulate(replace(options, seed=seed)).log
        device = pl.when(pl.col("device") == 24).then(small).otherwise(pl.col("device") % small)
        found = fit(log.with_columns(device=device), context=("device",)).propensities
        of_small = found.filter(pl.col("device") == small, pl.col("position") > 1)
        truth = pl.col("position").cast(pl.Float64) ** -eta
        covered += of_small.select(truth.is_between("ci_low", "ci_high")).to_series().drop_nulls().to_list()
    assert len(covered) > 190
    assert lowest <= np.mean(covered) <= highest


@pytest.mark.slow
def test_drafts_of_two_rankers_who_know_the_user_give_theta_back_by_the_ranks_of_both() -> None:
    world = SimulationOptions(n_sessions=20_000, n_queries=40, docs_per_query=12, n_positions=5, segments=2)
    options = replace(world, interleave=(0.6, 0.6), ranker_strength=np.inf, segment_difference=1.0, seed=1)
    drawn = simulate(options)
    log = drawn.log.drop("segment", "team")

    def deviations(*strata: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        fitted = fit(log, strata=strata)
        off = (fitted.propensities["propensity"] / drawn.propensities["propensity"]).log().to_numpy()
        return off[1:] / fitted.errors()[1:]

    assert np.abs(deviations("rank_a", "rank_b")).max() < 4
    assert deviations()[2:].max() < -4


def test_attractiveness_is_recovered_up_to_its_scale_where_it_was_seen_often() -> None:
    simulation = simulate(DENSE)
    found = fit(simulation.log).attractiveness.join(
        simulation.attractiveness.select("query", "doc", truth="attractiveness"), on=["query", "doc"]
    )

    often = found.filter(pl.col("impressions") > 1_000)
    assert often.height > 30
    assert float(np.abs(often["attractiveness"] - often["truth"]).mean()) < 0.03


@st.composite
def small_logs(draw: st.DrawFn) -> pl.DataFrame:
    """A few hundred pages of a few queries."""
    options = SimulationOptions(
        n_sessions=draw(st.integers(150, 400)),
        n_queries=draw(st.integers(4, 12)),
        docs_per_query=draw(st.integers(4, 7)),
        n_positions=draw(st.integers(2, 4)),
        query_exponent=draw(st.sampled_from([0.0, 1.0])),
        ranker_strength=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 10_000)),
    )
    return simulate(options).log.with_columns(pl.col("query", "doc").cast(pl.Int64))


def cells_of(table: pl.DataFrame) -> list[str]:
    return [name for name in ("position", "previous_click") if name in table.columns]


def assert_same_propensities(found: Fitted, expected: Fitted, *, counts: bool = True, errors: bool = True) -> None:
    """The same cells, identified alike, with the same numbers up to rounding.

    Without clicks a cell has an upper limit, which more impressions bring down: compared only where counts are.
    """
    ours, theirs = found.propensities, expected.propensities
    exact = [*cells_of(theirs), "identified"] + (["impressions", "clicks", "reason"] if counts else [])
    assert ours.select(exact).rows() == theirs.select(exact).rows()
    names = ["propensity", "examination"] + (["std_error", "ci_low", "ci_high"] if errors else [])
    for name in names:
        shown = pl.lit(value=True) if counts else pl.col("clicks") > 0
        ours_of, theirs_of = (table.filter(shown)[name].cast(pl.Float64).to_numpy() for table in (ours, theirs))
        np.testing.assert_allclose(ours_of, theirs_of, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def assert_same_attractiveness(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    ours, theirs = found.sort("query", "doc"), expected.sort("query", "doc")
    names = ["query", "doc", "impressions", "clicks"]
    assert ours.select(names).rows() == theirs.select(names).rows()
    for name in ("attractiveness", "std_dev"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=TOLERANCE)


def seen_under_new_ids(log: pl.DataFrame) -> pl.DataFrame:
    """The same pages shown in other sessions."""
    return log.with_columns(pl.col("session") + 1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@FROM_END_TO_END
@given(log=small_logs(), share=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_the_split_into_files_and_the_order_of_rows_change_nothing(
    model: str, log: pl.DataFrame, share: float, seed: int
) -> None:
    mixed = log.sample(fraction=1.0, shuffle=True, seed=seed)
    cut = max(int(share * log.height), 1)
    found, expected = fit_files(mixed.head(cut), mixed.tail(-cut), model=model), fit(log, model=model)

    assert_same_propensities(found, expected)
    assert_same_attractiveness(found.attractiveness, expected.attractiveness)


@pytest.mark.parametrize("model", MODELS)
@SETTINGS
@given(log=small_logs(), random=st.randoms(use_true_random=False))
@pytest.mark.slow
def test_the_names_of_queries_documents_and_sessions_change_nothing(
    model: str, log: pl.DataFrame, random: Random
) -> None:
    def names(column: str) -> dict[int, str]:
        values = sorted(set(log[column]))
        new = [f"{column} {number}" for number in range(len(values))]
        random.shuffle(new)
        return dict(zip(values, new, strict=True))

    new_names = {column: names(column) for column in ("query", "doc", "session")}
    renamed = log.with_columns(
        pl.col(column).replace_strict(table, return_dtype=pl.String) for column, table in new_names.items()
    )
    found, expected = fit(renamed, model=model), fit(log, model=model)

    assert_same_propensities(found, expected)
    back = {column: {new: old for old, new in new_names[column].items()} for column in ("query", "doc")}
    assert_same_attractiveness(
        found.attractiveness.with_columns(
            pl.col(column).replace_strict(table, return_dtype=pl.Int64) for column, table in back.items()
        ),
        expected.attractiveness,
    )


@pytest.mark.parametrize("model", MODELS)
@SETTINGS
@given(log=small_logs(), pages=st.integers(1, 60))
@pytest.mark.slow
def test_pages_that_carry_no_information_change_no_propensity_and_no_error(
    model: str, log: pl.DataFrame, pages: int
) -> None:
    """Pages of new queries without a click: their documents say nothing, and their queries are no clusters."""
    barren = log.filter(pl.col("session") < pages).with_columns(
        pl.col("session") + 1_000_000, pl.col("query") + 1_000, click=pl.lit(0, pl.Int8)
    )
    found, expected = fit(pl.concat([log, barren]), model=model), fit(log, model=model)

    assert_same_propensities(found, expected, counts=False)


@SETTINGS
@given(log=small_logs(), clicked=st.integers(1, 60))
@pytest.mark.slow
def test_documents_seen_at_one_position_only_change_no_propensity_and_no_error(log: pl.DataFrame, clicked: int) -> None:
    single = pl.DataFrame(
        {
            "session": range(1_000_000, 1_000_000 + clicked),
            "query": range(1_000, 1_000 + clicked),
            "doc": [0] * clicked,
            "position": [1 + number % 2 for number in range(clicked)],
            "click": [1] * clicked,
        },
        schema=log.schema,
    )

    assert_same_propensities(fit(pl.concat([log, single])), fit(log), counts=False)


DAYS = [pl.lit(date(2026, 1, day)).alias("period") for day in (5, 6)]
TWICE: dict[str, tuple[list[pl.Expr], list[pl.Expr], dict[str, Any]]] = {
    "under the same ids": ([], [], {}),
    "in two strata": ([pl.lit("a").alias("segment")], [pl.lit("b").alias("segment")], {"strata": ("segment",)}),
    "on two days": (DAYS[:1], DAYS[1:], {"by_day": True}),
    "with renamed queries": ([], [pl.col("query") + 1_000], {}),
}
"""What the pages have once and again, and options of the fit."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", TWICE)
@SETTINGS
@given(log=small_logs())
@pytest.mark.slow
def test_the_log_twice_keeps_estimates_and_errors_by_query(how: str, model: str, log: pl.DataFrame) -> None:
    once, again, options = TWICE[how]
    twice = log.with_columns(once), seen_under_new_ids(log).with_columns(again)
    found, expected = fit(*twice, model=model, **options), fit(log, model=model)

    assert_same_propensities(found, expected, counts=False, errors="queries" not in how)
    for name in ("impressions", "clicks"):
        assert found.propensities[name].to_list() == [2 * count for count in expected.propensities[name]]


@pytest.mark.slow
def test_with_many_queries_the_log_twice_with_renamed_queries_divides_errors_by_the_root_of_2() -> None:
    log = simulate(replace(DENSE, n_queries=400, query_exponent=0.0, n_sessions=8_000)).log
    again = seen_under_new_ids(log).with_columns(pl.col("query") + 1_000)
    ratio = (fit(log, again).errors() / fit(log).errors())[1:]

    assert ratio.tolist() == pytest.approx([np.sqrt(0.5)] * 5, rel=0.02)
