#!/usr/bin/env bash
# A page without a click has no best order. CatBoost 1.2.10 gives it 1 in NDCG and RecallAt, and 0 in MAP, MRR, ERR,
# PFound and PrecisionAt; LightGBM 4.7.0 and XGBoost 3.2.0 give it 1 in NDCG and in MAP as well. Most pages of a log have
# no click: with 8 of 10 such, the same order of the same pages is a MAP of .1 in CatBoost and .9 in the others, though
# their NDCG agrees. Within CatBoost NDCG and RecallAt rise with every empty page and the rest falls, so that two weeks
# with other shares of empty pages are said to be better by one metric and worse by the next. Left out, all agree.
# XGBoost documents its 1 (and has ndcg- and map- for 0); one expects the others to do the same, or one rule per tool.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    lightgbm==4.7.0 xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 six==1.17.0
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps catboost==1.2.10 # without its plots
cd "$folder"
cat > try.py <<'PYTHON'
import lightgbm as lgb
import numpy as np
import xgboost as xgb
from catboost import CatBoost, Pool

LENGTH = 5
places = np.arange(float(LENGTH)).reshape(-1, 1)
grades = np.arange(LENGTH)[::-1]  # what is trained: the order of places
many, labels, groups = np.tile(places, (60, 1)), np.tile(grades, 60), np.repeat(np.arange(60), LENGTH)
options = {"loss_function": "RMSE", "iterations": 60, "verbose": False, "thread_count": 1, "allow_writing_files": False}
by_catboost = CatBoost(options).fit(Pool(many, labels))
by_xgboost = xgb.train({"objective": "rank:ndcg", "nthread": 1}, xgb.DMatrix(many, labels, qid=groups), 20)


def with_lightgbm(shown, clicks, pages):
    found = {}
    training = lgb.Dataset(many, labels, group=[LENGTH] * 60)
    validation = lgb.Dataset(shown, clicks, group=[LENGTH] * pages, reference=training)
    given = {"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": [LENGTH], "verbose": -1, "num_threads": 1}
    keep = lgb.record_evaluation(found)
    booster = lgb.train(given, training, 20, valid_sets=[validation], callbacks=[keep])
    assert (np.diff(booster.predict(places)) < 0).all()
    return {name.split("@")[0].upper(): values[-1] for name, values in found["valid_0"].items()}


def with_xgboost(shown, clicks, pages):
    matrix = xgb.DMatrix(shown, clicks, qid=np.repeat(np.arange(pages), LENGTH))
    assert (np.diff(by_xgboost.predict(xgb.DMatrix(places))) < 0).all()
    found = {}
    for name in ("ndcg", "map"):
        by_xgboost.set_param({"eval_metric": f"{name}@{LENGTH}"})
    for part in by_xgboost.eval(matrix).split()[1:]:
        name, value = part.split(":")
        found[name.split("-")[1].split("@")[0].upper()] = float(value)
    return {name: found[name] for name in ("NDCG", "MAP")}


def with_catboost(shown, clicks, pages):
    pool = Pool(shown, clicks, group_id=np.repeat(np.arange(pages), LENGTH))
    assert (np.diff(by_catboost.predict(places)) < 0).all()
    names = ("NDCG", "RecallAt", "MAP", "MRR", "ERR", "PFound", "PrecisionAt")
    return {name: list(by_catboost.eval_metrics(pool, [f"{name}:top={LENGTH}"]).values())[0][-1] for name in names}


page = [0, 1, 0, 0, 0]  # clicked at the second place
for name, evaluate in (("CatBoost", with_catboost), ("LightGBM", with_lightgbm), ("XGBoost", with_xgboost)):
    clicked = evaluate(np.tile(places, (2, 1)), np.array(page * 2), 2)
    whole = evaluate(np.tile(places, (10, 1)), np.array(page * 2 + [0] * LENGTH * 8), 10)
    of_empty = {metric: round((whole[metric] * 10 - clicked[metric] * 2) / 8, 3) for metric in whole}
    print(f"{name}: 2 pages with a click", {metric: round(float(value), 4) for metric, value in clicked.items()})
    print(f"    and 8 pages without one ", {metric: round(float(value), 4) for metric, value in whole.items()})
    print("    so such a page is       ", {metric: float(value) for metric, value in of_empty.items()})
    assert np.isclose(clicked["NDCG"], 1 / np.log2(3), atol=1e-5) and np.isclose(clicked["MAP"], 0.5, atol=1e-5)
    ones = {metric for metric, value in of_empty.items() if np.isclose(value, 1, atol=0.002)}
    zeros = {metric for metric, value in of_empty.items() if np.isclose(value, 0, atol=0.002)}
    assert ones == ({"NDCG", "RecallAt"} if name == "CatBoost" else {"NDCG", "MAP"})
    assert ones | zeros == set(whole)
PYTHON
venv/bin/python try.py
