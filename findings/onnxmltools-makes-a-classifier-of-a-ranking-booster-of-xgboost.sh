#!/usr/bin/env bash
# onnxmltools 1.16.0 refuses an XGBRanker of XGBoost 3.2.0 ("No proper operator name"). The Booster of the same training
# is converted without a message, as a binary classifier: the outputs are a label and two probabilities instead of a
# score. The label is 0 for every document and the probabilities take one or two values, so every page is one tie and
# keeps the order it came in: a ranker served from that file looks as if it agreed with the logged order. It is not the
# conversion of trees: the same data with reg:squarederror agree to 6 digits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnxmltools==1.16.0 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
import onnxmltools
import onnxruntime
import xgboost as xgb
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(1)
pages, length = 200, 10
features = rng.random((pages * length, 3)).astype(np.float32)
grades = (features[:, 0] * 2 + features[:, 1]).astype(int)
page = np.repeat(np.arange(pages), length)
types = [("features", FloatTensorType([None, 3]))]


def both(objective):
    booster = xgb.train({"objective": objective, "nthread": 1}, xgb.DMatrix(features, grades, qid=page), 20)
    model = onnxmltools.convert_xgboost(booster, initial_types=types).SerializeToString()
    session = onnxruntime.InferenceSession(model)
    names = [output.name for output in session.get_outputs()]
    return booster.predict(xgb.DMatrix(features)), names, session.run(None, {"features": features})


def distinct(values):
    return len(np.unique(values))


own, names, outputs = both("reg:squarederror")
print("reg:squarederror, outputs", names, "largest difference", np.abs(own - outputs[0].ravel()).max())
assert np.abs(own - outputs[0].ravel()).max() < 1e-5
for objective in ("rank:ndcg", "rank:pairwise", "rank:map"):
    if objective == "rank:map":
        grades = (grades > 1).astype(int)
    own, names, (label, probabilities) = both(objective)
    print(f"{objective}: distinct scores of XGBoost {distinct(own)}; outputs {names}: labels {np.unique(label).tolist()}, ")
    print(f"    distinct values of the second probability {distinct(probabilities[:, 1])}")
    assert names == ["label", "probabilities"] and label.dtype == np.int64 and probabilities.shape == (len(own), 2)
    assert distinct(own) > 100 and distinct(label) == 1 and distinct(probabilities[:, 1]) <= 3
ranker = xgb.XGBRanker(n_estimators=20, n_jobs=1).fit(features, grades, qid=page)
try:
    onnxmltools.convert_xgboost(ranker, initial_types=types)
except ValueError as error:
    print("XGBRanker:", error)
else:
    raise AssertionError("XGBRanker is converted now")
PYTHON
venv/bin/python try.py 2> errors.txt || { cat errors.txt; exit 1; }
