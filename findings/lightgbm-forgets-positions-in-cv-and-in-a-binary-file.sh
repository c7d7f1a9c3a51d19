#!/usr/bin/env bash
# LightGBM 4.7.0: a Dataset with position= trains LambdaRank with a factor per position. Whatever is made of that Dataset
# has labels, weights and groups but no positions, with no message: Dataset.subset, the folds of lightgbm.cv (which are
# such subsets) and the file of Dataset.save_binary. So lightgbm.cv gives the same numbers and the same trees with
# positions as without: who chooses lambdarank_position_bias_regularization by it compares equal models, and chooses the
# number of rounds for a model that is not the one trained afterwards. A job that keeps its data as a binary file trains
# the naive model from the second run on. Fold by fold, with each Dataset made from arrays, the correction is there.
# Neither the page of parameters nor "Support for Position Bias Treatment" names this limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import lightgbm as lgb
import numpy as np

rng = np.random.default_rng(1)
pages, length = 400, 10
features = rng.random((pages * length, 3))
position = np.tile(np.arange(length), pages)
clicks = (rng.random(pages * length) < features[:, 0] / (1 + position)).astype(int)
options = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [5], "verbose": -1, "num_threads": 1, "seed": 1}
options["deterministic"] = True
half = pages * length // 2


def dataset(rows=slice(None), **given):
    given = {name: value[rows] for name, value in given.items()}
    group = [length] * (len(clicks[rows]) // length)
    return lgb.Dataset(features[rows], clicks[rows], group=group, free_raw_data=False, **given)


def scores(data):
    return lgb.train(options, data, 20).predict(features)


def folds(**given):
    rows = np.arange(pages * length)
    parts = [(rows[:half], rows[half:]), (rows[half:], rows[:half])]
    result = lgb.cv(options, dataset(**given), 20, folds=parts, return_cvbooster=True)
    return result["valid ndcg@5-mean"][-1], result["cvbooster"].boosters[0].predict(features)


naive, corrected = scores(dataset()), scores(dataset(position=position))
dataset(position=position).save_binary("log.bin")
from_file = scores(lgb.Dataset("log.bin"))
whole = dataset(position=position).construct()
from_subset = scores(whole.subset(np.arange(pages * length)))
fold_naive, fold_corrected = scores(dataset(slice(half))), scores(dataset(slice(half), position=position))
(ndcg, first), (ndcg_naive, first_naive) = folds(position=position), folds()
print(f"whole log, largest change of a score by positions: {np.abs(corrected - naive).max():.3f}")
print(f"  the same from the binary file:                   {np.abs(from_file - naive).max():.3f}")
print(f"  the same from a subset of all rows:              {np.abs(from_subset - naive).max():.3f}")
print(f"first fold by hand:                                {np.abs(fold_corrected - fold_naive).max():.3f}")
print(f"first fold of lightgbm.cv:                         {np.abs(first - first_naive).max():.3f}")
print(f"NDCG@5 of lightgbm.cv with positions {ndcg:.6f}, without {ndcg_naive:.6f}")
assert np.abs(corrected - naive).max() > 0.1 and np.abs(fold_corrected - fold_naive).max() > 0.1
assert np.array_equal(from_file, naive) and np.array_equal(from_subset, naive)
assert np.array_equal(first, first_naive) and ndcg == ndcg_naive
PYTHON
venv/bin/python try.py
