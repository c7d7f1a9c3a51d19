#!/usr/bin/env bash
# LightGBM 4.7.0 and XGBoost 3.2.0: LambdaRank trained 10 rounds, saved, and continued for 10 more (init_model=,
# xgb_model=) is exactly the model of 20 rounds in a row; so checkpoints and retries cost nothing. With positions
# (Dataset(position=), lambdarank_unbiased=True) it is another model: the factors of positions, which are learnt round by
# round, are no part of a saved model, and the continued training estimates them anew, from 1, against trees that were
# fitted with the old factors. Nothing is printed. A daily job that adds rounds to yesterday's ranker, or a job that was
# stopped and resumed, does not get the ranker that an undisturbed run gives. Of XGBoost it does not help that the
# Booster is still in memory or was pickled, though its configuration shows the factors (ti+).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    lightgbm==4.7.0 xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import pickle

import lightgbm as lgb
import numpy as np
import xgboost as xgb

rng = np.random.default_rng(1)
pages, length = 300, 10
features = rng.random((pages * length, 3))
position = np.tile(np.arange(length), pages)
clicks = (rng.random(pages * length) < features[:, 0] / (1 + position)).astype(int)
matrix = xgb.DMatrix(features, clicks, qid=np.repeat(np.arange(pages), length))


def with_lightgbm(rounds, positions, start=None):
    options = {"objective": "lambdarank", "verbose": -1, "num_threads": 1, "deterministic": True}
    data = lgb.Dataset(features, clicks, group=[length] * pages, position=position if positions else None)
    return lgb.train(options, data, rounds, init_model=start)


def with_xgboost(rounds, positions, start=None):
    options = {"objective": "rank:ndcg", "nthread": 1, "lambdarank_unbiased": positions}
    return xgb.train(options, matrix, rounds, xgb_model=start)


for positions in (False, True):
    whole, half = with_lightgbm(20, positions).predict(features), with_lightgbm(10, positions)
    half.save_model("half.txt")
    changes = {"LightGBM, file": whole - with_lightgbm(10, positions, "half.txt").predict(features)}
    whole, half = with_xgboost(20, positions).predict(matrix), with_xgboost(10, positions)
    half.save_model("half.json")
    starts = {"file": "half.json", "pickle": pickle.loads(pickle.dumps(half)), "memory": half}
    for name, start in starts.items():
        changes[f"XGBoost, {name}"] = whole - with_xgboost(10, positions, start).predict(matrix)
    print("with positions:   " if positions else "without positions:", end=" ")
    print({name: round(float(np.abs(change).max()), 6) for name, change in changes.items()})
    for change in changes.values():
        assert np.abs(change).max() > 0.1 if positions else np.abs(change).max() < 1e-9
PYTHON
venv/bin/python try.py
