"""What an engine scores, by the text that it loads and its own arithmetic, is what LightGBM scores."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import CategoriesAs, ServingEngine
from posbias.core.errors import UsageError
from posbias.core.learners.boosting import ModelText
from posbias.core.serving.formats import VERSIONS, EngineModel, Target, agreement, before_slack, model_for, single_above
from posbias.core.serving.splits import CategorySplit, Ensemble, Leaf, Node, NumberSplit, parse, rows_at_limits

TARGETS = [(engine, version) for engine, known in VERSIONS.items() for version, _ in known]
MODELS = (
    *("text, missing is NaN", "missing is NaN", "nothing missing", "missing is zero", "text, nothing missing"),
    *("text, missing is zero", "deep", "logits", "values that are doubles", "two leaves"),
)
NAMES = ("price", "color", "in stock", "dwell-time", "x.y")


class Model(NamedTuple):
    """A model of LightGBM, and its trees."""

    booster: Any
    ensemble: Ensemble

    def scores(self, rows: Floats) -> Floats:
        """LightGBM's own."""
        return np.asarray(self.booster.predict(rows, raw_score=True), np.float64)


def trained(rows: Floats, label: Floats, *, text: bool = False, **options: object) -> Model:
    lightgbm: Any = import_module("lightgbm")  # its types are incomplete
    settings: dict[str, Any] = {"num_leaves": 7, "verbose": -1, "seed": 0, "num_threads": 1, "min_data_in_leaf": 5}
    settings |= options
    trees = settings.pop("trees", 30)
    data = lightgbm.Dataset(rows, label, categorical_feature=[1] if text else [], params=settings)
    booster = lightgbm.train(settings, data, trees)
    model = ModelText.parse(booster.model_to_string())
    model.check()
    categories = {1: tuple(f"value {code}" for code in range(9))} if text else {}
    return Model(booster, parse(model, NAMES, categories))


@cache
def models() -> Mapping[str, Model]:
    """Models in which missing is nothing, NaN or zero, with text and without, flat and deep."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 5)).astype(np.float32).astype(np.float64)
    x[:, 1] = rng.integers(0, 9, len(x))
    x[:, 2] *= rng.random(len(x)) < 0.7
    x[:, 4] = np.exp(3 * x[:, 4]).astype(np.float32)
    label = np.sin(2 * x[:, 0]) + np.isin(x[:, 1], [1, 2, 5]) - 0.3 * np.log(x[:, 4]) * x[:, 3] + (x[:, 2] == 0)
    lacking = np.where(rng.random(x.shape) < 0.15, np.nan, x)
    told = label + 0.8 * np.isnan(lacking[:, 0]) - 0.6 * np.isnan(lacking[:, 3])
    made = {
        "nothing missing": trained(x, label),
        "missing is NaN": trained(lacking, told),
        "missing is zero": trained(lacking, told, zero_as_missing=True),
        "text, nothing missing": trained(x, label, text=True),
        "text, missing is NaN": trained(lacking, told, text=True),
        "text, missing is zero": trained(lacking, told, text=True, zero_as_missing=True),
        "deep": trained(lacking, told, num_leaves=60, trees=10, min_data_in_leaf=2),
        "logits": trained(lacking, (told > 0).astype(np.float64), objective="binary"),
        "values that are doubles": trained(np.where(np.isnan(lacking), np.nan, lacking / 3), told),
        "two leaves": trained(x, label, num_leaves=2, trees=3),
    }
    assert made.keys() == set(MODELS)
    return made


def for_engine(
    target: Target, ensemble: Ensemble, categories: CategoriesAs = "sets", missing_default: float | None = None
) -> EngineModel:
    """The model, with a default for missing values where the engine cannot do without."""
    try:
        return model_for(target, ensemble, categories=categories, missing_default=missing_default, name="posbias")
    except UsageError:
        if missing_default is not None or target.missing != "zero":
            raise
        return for_engine(target, ensemble, categories, 1e30)


@pytest.mark.slow_after(9)  # all engines, on the first model
@pytest.mark.parametrize(("engine", "version"), TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_engine_scores_every_model_as_lightgbm_does(engine: ServingEngine, version: str, name: str) -> None:
    model = models()[name]
    for categories in ("sets", "codes") if model.ensemble.categories else ("sets",):
        written = for_engine(Target.of(engine, version), model.ensemble, categories)
        rows = rows_at_limits(model.ensemble, 400, 1, single=engine != "vespa", tiny=engine != "solr")
        scores, expected = written.scores(written.rows(rows)), model.scores(rows)
        agreed = agreement(expected, scores, written.lift, is_double=written.arithmetic.is_double)
        assert agreed.holds
        assert agreed.largest_difference <= agreed.explained
        json.loads(written.text, parse_constant=pytest.fail)  # no infinity, which no other reader of JSON takes
        if engine in {"vespa", "elasticsearch"}:
            assert agreed.largest_difference == 0
        if written.lift:
            assert scores.min() + written.lift >= 1 - 1e-5


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(width=32, allow_infinity=False, min_value=-(2.0**90), max_value=2.0**60)] * 5), min_size=1
    ),
    st.sampled_from(TARGETS),
)
def test_any_row_of_singles_has_the_score_of_lightgbm(
    drawn: list[tuple[float, ...]], target: tuple[ServingEngine, str]
) -> None:
    model, rows = models()["missing is NaN"], np.array(drawn)
    if target[0] == "solr":
        rows = np.where(np.abs(rows) < 1e-5, 0, rows)
    written = for_engine(Target.of(*target), model.ensemble)
    agreed = agreement(
        model.scores(rows), written.scores(written.rows(rows)), written.lift, is_double=written.arithmetic.is_double
    )
    assert agreed.holds


def test_a_text_that_sends_missing_values_the_other_way_is_found() -> None:
    model = models()["missing is NaN"]
    written = for_engine(Target.of("elasticsearch", None), model.ensemble)
    rows = rows_at_limits(model.ensemble, 400, 1, single=True)
    for text in (
        written.text.replace('"default_left":true', '"default_left":false'),
        written.text.replace('"decision_type"', '"decision_kind"', 1).replace('"threshold":', '"threshold":1', 1),
    ):
        wrong = written._replace(text=text)
        assert not agreement(model.scores(rows), wrong.scores(wrong.rows(rows)), 0.0, is_double=True).holds


def test_an_engine_of_another_version_would_score_otherwise() -> None:
    model = models()["missing is NaN"]
    rows = rows_at_limits(model.ensemble, 400, 1, single=True)
    written = for_engine(Target.of("opensearch", "3.8"), model.ensemble)
    for missing in ("right", "zero"):
        elsewhere = written._replace(target=written.target._replace(missing=missing))
        agreed = agreement(model.scores(rows), elsewhere.scores(elsewhere.rows(rows)), written.lift, is_double=False)
        assert agreed.other_leaves > 100
        assert agreed.swapped_apart


def one_split(limit: float, *, missing_left: bool = False) -> Ensemble:
    return Ensemble(("x",), {}, (NumberSplit(0, limit, missing_left, Leaf(-1.0), Leaf(1.0)),))


@pytest.mark.parametrize("limit", [0.5, -0.1, 1e-35, 1e-9, 7.3e-7, 16777217.0, -3e20])
@pytest.mark.parametrize(("engine", "version"), TARGETS)
def test_values_at_a_limit_go_left_and_the_next_above_right(engine: ServingEngine, version: str, limit: float) -> None:
    kind = np.float64 if engine == "vespa" else np.float32
    at = np.float64(limit) if kind is np.float64 else before(limit)
    above = np.nextafter(at, kind(np.inf))
    written = for_engine(Target.of(engine, version), one_split(limit))
    rows = np.array([[at], [above]], np.float64)
    if engine == "solr" and abs(limit) < 1e-6:  # singles are 1e-13 apart where 1e-6 is added
        rows = np.array([[limit - 1e-12], [limit + 1e-12]])
    assert written.scores(written.rows(rows)).round(3).tolist() == [-1, 1]


def before(limit: float) -> np.float32:
    """The largest single that is not above a limit."""
    single = np.float32(limit)
    return single if float(single) <= limit else np.nextafter(single, np.float32(-np.inf))


@pytest.mark.parametrize(("engine", "version"), TARGETS)
@pytest.mark.parametrize("missing_left", [False, True])
@pytest.mark.parametrize("limit", [-2.0, 2.0])
def test_missing_values_go_where_the_split_says(
    engine: ServingEngine, version: str, limit: float, *, missing_left: bool
) -> None:
    inner = NumberSplit(0, limit - 1, not missing_left, Leaf(-2.0), Leaf(-1.0))  # told again, otherwise, further down
    beside = NumberSplit(0, limit + 1, not missing_left, Leaf(1.0), Leaf(2.0))
    tree = NumberSplit(0, limit, missing_left, inner, beside)
    written = for_engine(Target.of(engine, version), Ensemble(("x",), {}, (tree,)))
    rows = np.array([[np.nan], [limit], [limit + 1.5], [limit - 1.5]])
    scores = written.scores(written.rows(rows)).round(3).tolist()
    assert scores == [-1.0 if missing_left else 1.0, -1.0, 2.0, -2.0]


@pytest.mark.parametrize("categories", ["sets", "codes"])
@pytest.mark.parametrize(("engine", "version"), TARGETS)
def test_a_set_of_texts_holds_its_texts_and_neither_missing_nor_unseen_ones(
    engine: ServingEngine, version: str, categories: CategoriesAs
) -> None:
    tree: Node = CategorySplit(0, frozenset({0, 1, 3}), Leaf(1.0), Leaf(-1.0))
    ensemble = Ensemble(("color",), {0: ("a", "b", "c", "d")}, (tree,))
    written = for_engine(Target.of(engine, version), ensemble, categories)
    rows = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [np.nan]])
    assert written.scores(written.rows(rows)).round(3).tolist() == [1, 1, -1, 1, -1, -1]


def test_the_limit_for_solr_and_the_one_above_are_next_to_each_other() -> None:
    for number in (0.3, -5.5, 2e-6, 1e-6, -1e-6, 1e9):
        single = before(number)
        assert np.float32(before_slack(single) + np.float32(1e-6)) <= single
        assert single_above(number) == np.nextafter(single, np.float32(np.inf))


def test_a_large_model_has_singles_in_vespa_and_a_small_one_doubles() -> None:
    model = models()["values that are doubles"]
    large = replace(model.ensemble, trees=model.ensemble.trees * 30)
    small, written = (for_engine(Target.of("vespa", None), each) for each in (model.ensemble, large))
    assert small.arithmetic.is_double
    assert not written.arithmetic.is_double
    rows = rows_at_limits(model.ensemble, 400, 1, single=True)
    assert agreement(30 * model.scores(rows), written.scores(written.rows(rows)), 0.0, is_double=False).holds


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [
        ("opensearch", "1.3", "--engine-version 1.3: of opensearch, 2 is the first"),
        ("elasticsearch", "8.11", "--engine elasticsearch-ltr writes for the plugin"),
        ("elasticsearch-ltr", "8.11.4", "give the version of the plugin, such as 1.5.9"),
        ("solr", "latest", "is no version"),
    ],
)
def test_versions_that_cannot_load_trees_are_refused(engine: ServingEngine, version: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Target.of(engine, version)


def test_versions_are_compared_by_their_numbers() -> None:
    assert [Target.of("opensearch", version).missing for version in ("2.19.2", "3.2", "3.7.1", "3.8.0.0", "3.10")] == [
        *("zero", "right", "right", "by split", "by split")
    ]
    assert Target.of("elasticsearch-ltr", "v1.5.9-es8.11.4").missing == "by split"


def test_missing_values_that_an_engine_reads_as_0_are_refused_by_name_with_the_default_that_would_do() -> None:
    model = models()["missing is NaN"].ensemble
    target = Target.of("opensearch", "2.11")
    with pytest.raises(UsageError, match=r"tells them apart for 'price'.*--missing-default 1e\+30"):
        model_for(target, model, categories="sets", missing_default=None, name="m")
    for default, words in ((3.0, "must be from"), (1e39, "must be from")):
        with pytest.raises(UsageError, match=words):
            model_for(target, model, categories="sets", missing_default=default, name="m")
    with pytest.raises(UsageError, match="has no effect here"):
        model_for(Target.of("vespa", None), model, categories="sets", missing_default=1e30, name="m")


def test_names_that_an_engine_would_read_as_more_than_a_name_are_replaced() -> None:
    ensemble = models()["nothing missing"].ensemble
    assert for_engine(Target.of("opensearch", None), ensemble).ensemble.names == (
        *("price", "color", "f2", "dwell-time", "x.y"),
    )
    taken = replace(ensemble, names=("f2", *NAMES[1:]))
    assert for_engine(Target.of("solr", None), taken).ensemble.names[2] == "f2_"
    assert for_engine(Target.of("vespa", None), ensemble).ensemble.names == tuple(f"lgb_{i}" for i in range(5))


def test_trees_that_are_too_deep_and_models_of_several_scores_are_refused() -> None:
    chain = {
        "split_feature": " ".join(["0"] * 300),
        "threshold": " ".join(map(str, range(300))),
        "decision_type": " ".join(["2"] * 300),
        "left_child": " ".join(str(-1 - i) for i in range(300)),
        "right_child": " ".join([*(str(i + 1) for i in range(299)), "-301"]),
        "leaf_value": " ".join(["0.5"] * 301),
    }
    with pytest.raises(UsageError, match=r"tree 0 of the ranker is 300 levels deep.*leaves=31"):
        parse(ModelText({}, (chain,)), ("x",), {})
    for head, tree in (({"num_tree_per_iteration": "3"}, {}), ({}, {"is_linear": "1"})):
        with pytest.raises(ValueError, match=r"scores|linear"):
            parse(ModelText(head, (tree,)), ("x",), {})


def test_a_pair_in_another_order_is_counted_and_told_apart_by_how_far_it_was_apart() -> None:
    agreed = agreement(np.array([0.0, 1.0, 1.000001]), np.array([0.5, 0.4, 1.0]), 0.0, is_double=False)
    assert (agreed.pairs, agreed.swapped, agreed.swapped_apart, agreed.other_leaves) == (3, 1, 1, 2)
    near = agreement(np.array([0.0, 1.0, 1.000001]), np.array([0.0, 1.000001, 1.0]), 0.0, is_double=False)
    assert (near.swapped, near.swapped_apart, near.holds) == (1, 0, True)
    assert agreement(np.zeros(0), np.zeros(0), 0.0, is_double=True).holds
