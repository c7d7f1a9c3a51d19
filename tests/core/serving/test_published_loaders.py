"""The texts for engines, read by XGBoost's predictor, and written by eland where it is installed."""

import json
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from posbias.core.learners.boosting import ModelText
from posbias.core.serving.formats import Target, model_for
from posbias.core.serving.splits import parse, rows_at_limits

pytestmark = pytest.mark.slow
NAMES = ("a", "b", "c", "d")


def lacking(seed: int) -> tuple[Any, Any]:
    """Rows of which some values are missing, and labels that depend on what is missing."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2000, 4)).astype(np.float32).astype(np.float64)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows, np.nan_to_num(rows[:, 0]) + np.isnan(rows[:, 1]) - np.nan_to_num(rows[:, 2]) ** 2


def model_of_xgboost(text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The trees of `model/xgboost+json` as XGBoost saves a model."""
    trees = list[dict[str, Any]]()
    content = json.loads(text)
    for tree in content["splits"]:
        nodes = [tree]
        for node in nodes:  # which grows meanwhile
            node["at"] = len(trees)
            node["places"] = [len(nodes) + i for i in range(len(node.get("children", ())))]
            nodes += node.get("children", ())
        n = len(nodes)
        parents = [2147483647] * n
        for number, node in enumerate(nodes):
            for child in node["places"]:
                parents[child] = number
        trees.append(
            {
                "id": len(trees),
                "base_weights": [0.0] * n,
                "categories": [],
                "categories_nodes": [],
                "categories_segments": [],
                "categories_sizes": [],
                "default_left": [int(node.get("missing", 0) == node.get("yes", 1)) for node in nodes],
                "left_children": [node["places"][0] if node["places"] else -1 for node in nodes],
                "right_children": [node["places"][1] if node["places"] else -1 for node in nodes],
                "split_conditions": [node.get("leaf", node.get("split_condition")) for node in nodes],
                "split_indices": [names.index(node["split"]) if "split" in node else 0 for node in nodes],
                "split_type": [0] * n,
                "loss_changes": [0.0] * n,
                "sum_hessian": [1.0] * n,
                "parents": parents,
                "tree_param": {"num_deleted": "0", "num_feature": "4", "num_nodes": str(n), "size_leaf_vector": "1"},
            }
        )
    booster = {
        "name": "gbtree",
        "model": {
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
            "iteration_indptr": [*range(len(trees) + 1)],
            "tree_info": [0] * len(trees),
            "trees": trees,
        },
    }
    learner: dict[str, Any] = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": booster,
        "learner_model_param": {
            "base_score": "0E0",
            "boost_from_average": "0",
            "num_class": "0",
            "num_feature": str(len(names)),
            "num_target": "1",
        },
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return {"learner": learner, "version": [3, 2, 0]}


def test_xgboost_predicts_from_the_text_for_the_plugins_what_they_are_taken_to_score() -> None:
    lightgbm: Any = import_module("lightgbm")
    xgboost: Any = pytest.importorskip("xgboost")
    rows, label = lacking(0)
    options = {"num_leaves": 15, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, label), 60)
    ensemble = parse(ModelText.parse(booster.model_to_string()), NAMES, {})
    target = Target.of("opensearch", None)
    written = model_for(target, ensemble, categories="sets", missing_default=None, name="posbias")
    loaded = xgboost.Booster()
    loaded.load_model(bytearray(json.dumps(model_of_xgboost(written.text, NAMES)).encode()))
    hard = rows_at_limits(ensemble, 3000, 0, single=True)
    theirs = loaded.predict(xgboost.DMatrix(hard.astype(np.float32)), output_margin=True).astype(np.float64)
    ours = written.scores(written.rows(hard)) + written.lift
    np.testing.assert_allclose(theirs, ours, rtol=3e-7, atol=0)  # the last of the trees holds what is added
    expected = booster.predict(hard, raw_score=True) + written.lift
    assert np.abs(theirs - expected).max() < 6e-6


def test_eland_writes_the_same_nodes_for_elasticsearch() -> None:
    transformers: Any = pytest.importorskip("eland.ml.transformers")
    lightgbm: Any = import_module("lightgbm")
    rows, label = lacking(1)
    regressor = lightgbm.LGBMRegressor(n_estimators=10, num_leaves=7, verbose=-1, n_jobs=1, min_child_samples=5)
    regressor.fit(rows, label)
    theirs = transformers.get_model_transformer(regressor, feature_names=[*NAMES]).transform().to_dict()
    ensemble = parse(ModelText.parse(regressor.booster_.model_to_string()), NAMES, {})
    target = Target.of("elasticsearch", None)
    written = model_for(target, ensemble, categories="sets", missing_default=None, name="posbias")
    ours = json.loads(written.text)["trained_model"]["ensemble"]

    def paths(nodes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        by_number = {node["node_index"]: node for node in nodes}
        waiting, found = [0], list[tuple[Any, ...]]()
        for number in waiting:  # which grows meanwhile
            node = by_number[number]
            if node.get("left_child") is None:
                found.append((float(np.ravel(node["leaf_value"])[0]),))
            else:
                found.append(tuple(node[name] for name in ("split_feature", "threshold", "default_left")))
                waiting += [node["left_child"], node["right_child"]]
        return found

    theirs = theirs["ensemble"]
    assert theirs["feature_names"] == ours["feature_names"]
    for one, other in zip(theirs["trained_models"], ours["trained_models"], strict=True):
        pairs = zip(*(paths(tree["tree"]["tree_structure"]) for tree in (other, one)), strict=True)
        for our, their in pairs:
            assert [*our] == pytest.approx([*their]), (our, their)
