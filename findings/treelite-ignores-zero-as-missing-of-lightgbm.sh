#!/usr/bin/env bash
# treelite 4.8.1 loads a LightGBM 4.7 model that was trained with zero_as_missing=true, without a message, and predicts
# something else: LightGBM sends a zero (and nothing else: a NaN goes the same way) along the default branch, treelite
# compares it with the threshold. Features of ranking are full of zeros (no match in the title, no clicks yet), and this
# parameter is what one sets for them; the order of results changes. The same data without the parameter agree exactly.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check treelite==4.8.1 lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import lightgbm as lgb
import numpy as np
import treelite

rng = np.random.default_rng(1)
features = rng.random((2000, 4))
features[rng.random(features.shape) < 0.3] = 0.0
grades = np.minimum((features[:, 0] * 2 + (features[:, 1] == 0) + features[:, 2]).astype(int), 3)


def largest_difference(**parameters):
    data = lgb.Dataset(features, grades, group=[20] * 100)
    options = {"objective": "lambdarank", "verbose": -1, "num_threads": 1, "deterministic": True, **parameters}
    booster = lgb.train(options, data, 20)
    own = booster.predict(features)
    other = np.asarray(treelite.gtil.predict(treelite.frontend.from_lightgbm(booster), features)).ravel()
    first = [np.argmax(own[page : page + 20]) != np.argmax(other[page : page + 20]) for page in range(0, 2000, 20)]
    return np.abs(own - other).max(), sum(first)


plain, plain_first = largest_difference()
zero, zero_first = largest_difference(zero_as_missing=True)
print(f"default:              largest difference of scores {plain:.2g}, another first result on {plain_first} of 100 pages")
print(f"zero_as_missing=true: largest difference of scores {zero:.2g}, another first result on {zero_first} of 100 pages")
assert plain < 1e-9 and plain_first == 0
assert zero > 0.05 and zero_first > 0
PYTHON
venv/bin/python try.py
