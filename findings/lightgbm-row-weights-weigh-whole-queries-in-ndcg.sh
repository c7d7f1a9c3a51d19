#!/usr/bin/env bash
# LightGBM 4.7.0: weights are given per row, and NDCG and MAP of a validation set are means over queries in which each
# query counts by the mean of the weights of its rows. So weights of clicks (1 / propensity on a clicked row, 1 on the
# others) that are meant for the loss change what early stopping looks at: a page whose one click was far down counts
# several times as much as a page clicked at the top. The number is no NDCG of the clicks (it would not move) and no NDCG
# weighted by propensity (there the weight belongs to the gain of the document; a weight on rows without a click counts
# just as much). A page padded with more unclicked rows counts for less. And a page without a click adds 1 whatever it
# weighs, while the sum that all is divided by has its weight: with weights below 1 NDCG is above 1. XGBoost takes one
# weight per query for the same metrics, which says it; LightGBM has no word for the step from rows to queries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import lightgbm as lgb
import numpy as np

length = 5
features = np.tile(np.arange(length, dtype=float)[::-1], 2).reshape(-1, 1)  # the model puts the rows in this order
clicks = np.zeros(2 * length, int)
clicks[0] = clicks[length + 4] = 1  # one page clicked at the top, one at the bottom
ndcg = np.array([1.0, 1 / np.log2(6)])
many = np.tile(features[:length], (40, 1))
training = lgb.Dataset(many, np.tile(np.arange(length)[::-1], 40), group=[length] * 40)


def measured(weights, clicks=clicks):
    found = {}
    validation = lgb.Dataset(features, clicks, group=[length] * 2, weight=weights, reference=training)
    options = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [length], "verbose": -1, "num_threads": 1}
    keep = lgb.record_evaluation(found)
    booster = lgb.train(options, training, 20, valid_sets=[validation], callbacks=[keep])
    assert (np.argsort(-booster.predict(features[:length]), kind="stable") == np.arange(length)).all()
    return found["valid_0"][f"ndcg@{length}"][-1]


def weighted(weights):
    of_query = weights.reshape(2, length).mean(1)
    return (ndcg * of_query).sum() / of_query.sum()


inverse = np.ones(2 * length)
inverse[length + 4] = 20.0  # 1 / propensity of the click at the bottom
unclicked = np.ones(2 * length)
unclicked[length + 1] = 20.0  # a row without a click, of the same page
plain = measured(None)
print(f"no weights:                                    {plain:.6f} (the mean of {ndcg[0]:.3f} and {ndcg[1]:.3f})")
print(f"the click at the bottom weighs 20:             {measured(inverse):.6f}")
print(f"instead a row of that page without a click:    {measured(unclicked):.6f}")
print(f"mean of queries by the mean of their weights:  {weighted(inverse):.6f}")
assert np.isclose(plain, ndcg.mean())
assert np.isclose(measured(inverse), weighted(inverse)) and np.isclose(measured(unclicked), weighted(inverse))
assert plain - measured(inverse) > 0.1
halved = np.repeat([1.0, 0.25], length)
empty = measured(halved, np.repeat([[1], [0]], length, axis=0).ravel() * clicks)  # the second page has no click
print(f"the second page without a click, weighing 1/4: {empty:.6f} (2 / 1.25)")
assert np.isclose(empty, 2 / 1.25)
PYTHON
venv/bin/python try.py
