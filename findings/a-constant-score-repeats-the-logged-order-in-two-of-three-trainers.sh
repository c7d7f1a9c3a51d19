#!/usr/bin/env bash
# Documents with equal scores have no order. LightGBM 4.7.0 and XGBoost 3.2.0 leave them in the order of the rows when
# they measure NDCG and MAP of a validation set; the rows of a log come by position, so a model that has learnt nothing
# is given the NDCG of the ranker that was logged, and a good one that differs from it looks worse. The same rows from
# the last position to the first give about half. CatBoost 1.2.10 takes the worst order of equal documents, scikit-learn
# 1.9.1 the mean over all. So for one constant score on one log four tools have three numbers, from .34 to .76. Early
# rounds and small trees tie most documents: rows in logged order favour stopping at once. Shuffle the rows of each page
# before validation.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    lightgbm==4.7.0 xgboost-cpu==3.2.0 scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 six==1.17.0
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps catboost==1.2.10 # without its plots
cd "$folder"
cat > try.py <<'PYTHON'
import lightgbm as lgb
import numpy as np
import xgboost as xgb
from catboost.utils import eval_metric
from sklearn.metrics import ndcg_score

rng = np.random.default_rng(1)
length = 10
clicks = (rng.random((2000, length)) < 0.5 / np.arange(1, length + 1)).astype(int)  # the first position is seen most
clicks = clicks[clicks.any(axis=1)]
pages = len(clicks)
query = np.repeat(np.arange(pages), length)
nothing = np.zeros((pages * length, 1))  # one feature, the same everywhere


def lightgbm_ndcg(labels):
    found = {}
    training = lgb.Dataset(rng.random(nothing.shape), labels.ravel(), group=[length] * pages)
    validation = lgb.Dataset(nothing, labels.ravel(), group=[length] * pages, reference=training)
    options = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [length], "verbose": -1, "num_threads": 1}
    booster = lgb.train(options, training, 1, [validation], callbacks=[lgb.record_evaluation(found)])
    assert len(set(booster.predict(nothing))) == 1
    return found["valid_0"][f"ndcg@{length}"][-1]


def xgboost_ndcg(labels):
    data = xgb.DMatrix(nothing, labels.ravel(), qid=query)
    booster = xgb.train({"objective": "rank:ndcg", "eval_metric": f"ndcg@{length}", "nthread": 1}, data, 1)
    assert len(set(booster.predict(data))) == 1
    return float(booster.eval(data).split(":")[-1])


def catboost_ndcg(labels):
    return eval_metric(labels.ravel().astype(float), nothing.ravel(), "NDCG", group_id=query)[0]


def sklearn_ndcg(labels):
    return ndcg_score(labels, np.zeros(labels.shape))


tools = {"LightGBM": lightgbm_ndcg, "XGBoost": xgboost_ndcg, "CatBoost": catboost_ndcg, "scikit-learn": sklearn_ndcg}
logged, reverse = ({name: ndcg(labels) for name, ndcg in tools.items()} for labels in (clicks, clicks[:, ::-1]))
order = ndcg_score(clicks, np.tile(-np.arange(length), (pages, 1)))
print(f"NDCG of the logged order: {order:.4f}")
for name in tools:
    print(f"{name:13} a constant score: {logged[name]:.4f}, with the rows of each page reversed {reverse[name]:.4f}")
for name in ("LightGBM", "XGBoost"):
    assert np.isclose(logged[name], order, atol=1e-5) and reverse[name] < order - 0.3
for name in ("CatBoost", "scikit-learn"):
    assert np.isclose(logged[name], reverse[name], atol=1e-9)
assert logged["CatBoost"] < logged["scikit-learn"] - 0.1 < order - 0.2
PYTHON
venv/bin/python try.py
