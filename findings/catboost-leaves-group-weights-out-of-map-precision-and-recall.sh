#!/usr/bin/env bash
# CatBoost 1.2.10: the weights of groups (group_weight, 1 / propensity of the page or how often it was seen) count in
# NDCG, DCG, MRR, ERR, PFound and AverageGain of eval_metrics, and not in MAP, PrecisionAt and RecallAt,
# with no message. With use_weights=true, the parameter that switches weights of other metrics on and off, these three
# take it and still do not weigh. So metrics side by side in one table are means over two different populations of pages,
# and a choice of the best round by MAP is one of a naive average. QueryAUC leaves weights out as well, until it is given
# use_weights=true; FilteredDCG refuses a pool with weights, which shows that a refusal was possible.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 six==1.17.0
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps catboost==1.2.10 # without its plots
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
from catboost import CatBoost, CatBoostError, Pool

options = {"loss_function": "RMSE", "iterations": 60, "learning_rate": 0.3, "verbose": False, "thread_count": 1}
place = np.arange(10.0).reshape(-1, 1)
model = CatBoost({**options, "allow_writing_files": False}).fit(Pool(place, -place.ravel()))
shown = np.tile(place[:5], (2, 1))
assert (np.diff(model.predict(shown[:5])) < 0).all()  # two pages, each in this order
clicks = [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]  # one clicked at the top, one at the bottom


def measured(metric, weights=None):
    weight = {} if weights is None else {"group_weight": np.repeat(weights, 5)}
    pages = Pool(shown, clicks, group_id=np.repeat([0, 1], 5), **weight)
    return list(model.eval_metrics(pages, [metric]).values())[0][-1]


for metrics, weighs in (
    (["NDCG:top=3", "DCG:top=3", "MRR:top=4", "ERR:top=4", "PFound:top=3", "AverageGain:top=1"], True),
    (["MAP:top=4", "PrecisionAt:top=1", "RecallAt:top=4"], False),
    (["MAP:top=4;use_weights=true", "PrecisionAt:top=1;use_weights=true", "RecallAt:top=4;use_weights=true"], False),
    (["QueryAUC:type=Ranking"], False),
    (["QueryAUC:type=Ranking;use_weights=true"], True),
):
    for metric in metrics:
        alone, other = measured(metric, [1.0, 1e-9]), measured(metric, [1e-9, 1.0])
        plain, weighted = measured(metric), measured(metric, [1.0, 9.0])
        print(f"{metric:40} no weights {plain:.4f}, the second page weighs 9 {weighted:.4f}")
        assert np.isclose(plain, weighted) != weighs
        assert np.isclose(weighted, (alone + 9 * other) / 10, atol=1e-6) if weighs else np.isclose(alone, other)
try:
    measured("FilteredDCG", [1.0, 9.0])
except CatBoostError as error:
    print("FilteredDCG:", error)
else:
    raise AssertionError("FilteredDCG takes weights now")
PYTHON
venv/bin/python try.py
