#!/usr/bin/env bash
# onnxmltools 1.16.0 converts a LightGBM 4.7.0 model without a message whatever its kind. Of boosting=rf LightGBM averages
# the trees, the converted model adds them up: scores are as many times too large as there are trees, and the probability
# of a click (objective=binary) is 0 or 1 after the sigmoid where it was .2 or .7: no weight, threshold or expected number
# of clicks that is made of it holds. Of linear_tree=true the converted model has the constants of the leaves and not
# their slopes. Plain trees and dart agree to 6 digits, and an order of documents by a forest stays, so a test by NDCG
# passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnxmltools==1.16.0 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import warnings

import lightgbm as lgb
import numpy as np
import onnxmltools
import onnxruntime
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(1)
features = rng.random((2000, 3)).astype(np.float32)
clicks = (rng.random(2000) < 0.2 + 0.5 * features[:, 0]).astype(int)
TREES = 10
session_options = onnxruntime.SessionOptions()
session_options.log_severity_level = 3


def both(**given):
    options = {"verbose": -1, "num_threads": 1, "deterministic": True, "min_data_in_leaf": 100, **given}
    booster = lgb.train(options, lgb.Dataset(features, clicks, group=[20] * 100), TREES)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = onnxmltools.convert_lightgbm(
            booster, initial_types=[("features", FloatTensorType([None, 3]))], zipmap=False
        )
    assert not [message for message in said if "forest" in str(message.message) or "linear" in str(message.message)]
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options)
    found = session.run(None, {"features": features})
    return booster.predict(features), found[1][:, 1] if given["objective"] == "binary" else found[0].ravel()


forest = {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}
for name, kind in (("plain trees", {}), ("dart", {"boosting": "dart"}), ("rf", forest), ("linear_tree", {"linear_tree": True})):
    for objective in ("binary", "regression") if name == "linear_tree" else ("binary", "lambdarank"):
        own, other = both(objective=objective, **kind)
        print(f"{name:12} {objective:10} largest difference {np.abs(own - other).max():.2g}", end="; ")
        print(f"LightGBM {own.min():.3f} to {own.max():.3f}, ONNX {other.min():.3f} to {other.max():.3f}")
        if name in ("plain trees", "dart"):
            assert np.abs(own - other).max() < 1e-5
        elif name == "linear_tree":
            assert np.abs(own - other).max() > 0.005
        elif objective == "lambdarank":
            assert np.allclose(other, own * TREES, atol=1e-4)
        else:
            logit = np.log(own / (1 - own))
            assert np.allclose(other, 1 / (1 + np.exp(-TREES * logit)), atol=1e-4) and np.abs(own - other).max() > 0.1
PYTHON
venv/bin/python try.py
