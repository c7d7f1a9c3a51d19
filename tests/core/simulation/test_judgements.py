"""Worlds from graded labels: the labels' queries and documents, clicks by grade, rankers that know more or less."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.core.errors import SchemaError, UsageError
from posbias.core.simulation.simulate import Simulation, SimulationOptions, simulate
from posbias.core.simulation.worlds import JudgementOptions, World, judged_world, usable_judgements

N_QUERIES, HIGHEST = 40, 3
OPTIONS = SimulationOptions(n_sessions=20_000, n_positions=5, query_exponent=0.5, seed=4)
FIXED = replace(OPTIONS, ranker_strength=np.inf)
LABEL, WEAK = JudgementOptions(), JudgementOptions(ranker="weak", ranker_queries=10)


@pytest.fixture(scope="module")
def labels() -> pl.DataFrame:
    """Return labels of queries with 6 to 15 documents; one feature says something about them, one nothing."""
    rng = np.random.default_rng(0)
    n_docs = rng.integers(6, 16, N_QUERIES)
    query = np.repeat(np.arange(N_QUERIES), n_docs)
    label = rng.choice(HIGHEST + 1, len(query), p=[0.5, 0.25, 0.15, 0.1])
    label[0] = HIGHEST
    return pl.DataFrame(
        {
            "query": [f"query {number:02}" for number in query],
            "doc": [f"doc {number}" for number in range(len(query))],
            "label": label,
            "telling": label + rng.normal(0, 1.0, len(query)),
            "noise": rng.normal(0, 1.0, len(query)),
            "constant": 1.0,
            "split": "train",
        }
    )


def world_of(labels: pl.DataFrame, options: SimulationOptions, how: JudgementOptions = LABEL) -> World:
    return judged_world(usable_judgements(labels, options.n_positions), options, how)


def drawn_from(labels: pl.DataFrame, options: SimulationOptions, how: JudgementOptions = LABEL) -> Simulation:
    return simulate(options, world_of(labels, options, how))


def confounding(labels: pl.DataFrame, options: SimulationOptions, how: JudgementOptions = LABEL) -> float:
    """Return the correlation of label and position among the impressions."""
    shown = drawn_from(labels, options, how).log.join(labels, on=["query", "doc"])
    return float(shown.select(pl.corr("position", "label")).item())


def test_the_world_holds_the_documents_of_the_labels_with_the_attractiveness_of_their_grade(
    labels: pl.DataFrame,
) -> None:
    truth = drawn_from(
        labels, replace(OPTIONS, attractiveness_scale=0.5), JudgementOptions(click_noise=0.2)
    ).attractiveness
    expected = labels.select(
        "query", "doc", attractiveness=0.5 * (0.2 + 0.8 * (2.0 ** pl.col("label") - 1) / (2**HIGHEST - 1))
    )

    assert_frame_equal(truth, expected, check_row_order=False)


def test_no_page_shows_a_document_twice_or_of_another_query(labels: pl.DataFrame) -> None:
    log = drawn_from(labels, replace(OPTIONS, ranker_strength=0.0)).log
    per_page = log.group_by("session").agg(pl.n_unique("doc"), pl.n_unique("query"))

    assert per_page.select("doc", "query").unique().rows() == [(OPTIONS.n_positions, 1)]
    assert log.join(labels, on=["query", "doc"], how="anti").is_empty()
    assert log.select("query", "doc").n_unique() == labels.height  # in random order all of them are shown


@pytest.mark.parametrize("how", [LABEL, WEAK], ids=["label", "weak"])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_position_is_the_true_rank_of_the_score(labels: pl.DataFrame, how: JudgementOptions, weight: float) -> None:
    options = replace(FIXED, score_weight=weight)
    world = world_of(labels, options, how)
    number = {name: index for index, name in enumerate(world.query_ids)}
    ids = world.doc_ids.to_list()
    shown = simulate(options, world).log.filter(pl.col("session") < 300).rows(named=True)

    for row in shown:
        query = number[row["query"]]
        score = world.score[0, query]
        own = score[ids.index(row["doc"]) - world.start[query]]
        assert (score > own).sum() < row["position"] <= (score >= own).sum()


def test_a_ranker_that_knows_the_labels_sorts_by_them(labels: pl.DataFrame) -> None:
    shown = drawn_from(labels, FIXED).log.join(labels, on=["query", "doc"]).sort("session", "position")

    assert shown.select(pl.col("label").diff().over("session").max()).item() == 0
    assert confounding(labels, FIXED) < -0.5


def test_a_weak_ranker_knows_less_than_the_labels_and_more_than_nothing(labels: pl.DataFrame) -> None:
    ignorant = labels.with_columns(telling=0.0)

    assert confounding(labels, FIXED) < confounding(labels, FIXED, WEAK) - 0.05
    assert confounding(labels, FIXED, WEAK) < -0.3
    assert abs(confounding(ignorant, FIXED, WEAK)) < 0.2


def test_without_weight_the_score_is_noise(labels: pl.DataFrame) -> None:
    assert abs(confounding(labels, replace(FIXED, score_weight=0.0))) < 0.15


def test_segments_see_other_labels_of_the_same_query(labels: pl.DataFrame) -> None:
    truth = drawn_from(labels, replace(OPTIONS, segments=2, segment_difference=1.0)).attractiveness
    first, second = (truth.filter(segment=segment).drop("segment") for segment in (0, 1))
    both = first.join(second, on=["query", "doc"], suffix="_second")

    assert both.height == labels.height
    differ = both.filter(pl.col("attractiveness") != pl.col("attractiveness_second")).height / both.height
    assert 0.3 < differ < 0.9
    values = first.group_by("query").agg(pl.col("attractiveness").unique())
    foreign = second.join(values, on="query", suffix="s").filter(
        ~pl.col("attractiveness").is_in(pl.col("attractivenesss"))
    )
    assert foreign.is_empty()


def test_the_order_of_rows_in_the_labels_changes_nothing(labels: pl.DataFrame) -> None:
    shuffled = labels.sample(fraction=1.0, shuffle=True, seed=1)

    assert_frame_equal(drawn_from(shuffled, OPTIONS, WEAK).log, drawn_from(labels, OPTIONS, WEAK).log)


def test_which_query_is_frequent_depends_on_the_seed(labels: pl.DataFrame) -> None:
    def most_frequent(seed: int) -> str:
        log = drawn_from(labels, replace(OPTIONS, query_exponent=2.0, seed=seed)).log
        return str(log["query"].mode().item())

    assert len({most_frequent(seed) for seed in range(5)}) > 2


def test_queries_with_fewer_documents_than_positions_are_left_out_and_counted(labels: pl.DataFrame) -> None:
    short = labels.group_by("query").len().filter(pl.col("len") < 10)
    judgements = usable_judgements(labels, 10)

    assert judgements.queries_left_out == short.height > 0
    assert len(judgements.query_ids) == N_QUERIES - short.height
    assert not set(judgements.query_ids) & set(short["query"])
    assert len(judgements.doc_ids) == len(judgements.label) == judgements.n_docs.sum()


def test_features_are_the_numeric_columns_and_null_is_zero(labels: pl.DataFrame) -> None:
    holes = labels.with_columns(telling=None, noise=float("nan")).cast({"telling": pl.Float64})

    assert usable_judgements(labels, 5).features.shape == (labels.height, 3)
    assert usable_judgements(holes, 5).features.tolist() == [[0.0, 0.0, 1.0]] * labels.height


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (pl.col("doc").replace("doc 3", None), "'doc' is null in 1 row"),
        (pl.col("query").replace("query 00", None), "'query' is null"),
        (pl.when(pl.col("label") > 2).then(None).otherwise("label").alias("label"), "'label' is null"),
        (pl.col("label") - 2, "-2 is not a grade"),
        (pl.col("label") + 0.5, r"0\.5 is not a grade|3\.5 is not a grade"),
        (pl.col("label") * 20, "60 is not a grade"),
        (pl.lit("good").alias("label"), "'good' is not a grade"),
        (pl.lit(0).alias("label"), "no document has a grade above 0"),
        (pl.col("doc").replace("doc 1", "doc 0"), "1 rows repeat"),
    ],
)
def test_labels_that_are_none_are_refused_and_said_why(labels: pl.DataFrame, broken: pl.Expr, what: str) -> None:
    with pytest.raises(SchemaError, match=what):
        usable_judgements(labels.with_columns(broken), 5)


def test_labels_of_too_few_documents_are_refused_with_the_largest_query(labels: pl.DataFrame) -> None:
    with pytest.raises(SchemaError, match=r"none of the 40 queries has 30 labelled documents.*the largest has 15"):
        usable_judgements(labels, 30)
    with pytest.raises(SchemaError, match="none of the 0 queries"):
        usable_judgements(labels.clear(), 5)


def test_a_weak_ranker_needs_features_and_enough_queries(labels: pl.DataFrame) -> None:
    with pytest.raises(UsageError, match="needs features"):
        world_of(labels.select("query", "doc", "label"), OPTIONS, WEAK)
    with pytest.raises(UsageError, match="cannot be trained on 41 queries: the labels hold 40"):
        world_of(labels, OPTIONS, JudgementOptions(ranker="weak", ranker_queries=41))


def test_click_noise_that_is_no_probability_is_refused() -> None:
    with pytest.raises(UsageError, match="click_noise"):
        replace(LABEL, click_noise=1.5)


@pytest.mark.parametrize("name", ["lightgbm_example", "clueweb09"])
def test_on_real_labels_the_page_is_better_the_more_the_ranker_knows(shared_data: Path, name: str) -> None:
    table = pl.read_parquet(shared_data / f"graded_{name}.parquet").rename({"query_id": "query", "doc_id": "doc"})
    options = replace(FIXED, n_sessions=5_000, n_positions=10, query_exponent=0.0)

    def shown_label(score_weight: float, how: JudgementOptions) -> float:
        log = drawn_from(table, replace(options, score_weight=score_weight), how).log
        return float(log.join(table, on=["query", "doc"]).select(pl.mean("label")).item())

    nothing, few, all_labels = shown_label(0.0, LABEL), shown_label(1.0, WEAK), shown_label(1.0, LABEL)
    assert nothing + 0.08 < few < all_labels - 0.1
