#!/usr/bin/env bash
# pytrec_eval-terrier 0.5.11 (and with it ir-measures 0.4.3, whose nDCG, AP, P and R are its own): scores are Python
# floats of 64 bits in the call and 32-bit floats where documents are ordered, since trec_eval holds them so. Scores that
# are the same 32-bit float are a tie, and ties go from the last id to the first. The baseline "newest first", with the
# seconds since 1970 as the score, is not evaluated at all: about 2 minutes are one score, and an order by id comes of
# it. So are probabilities of a calibrated model near 1, and ids or ranks subtracted from a large number. RR@k of
# ir-measures, which another provider computes, orders the same run right: RR@k is 1 where P@1 is 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pytrec_eval-terrier==0.5.11 ir-measures==0.4.3 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import ir_measures
import numpy as np
import pytrec_eval
from ir_measures import P, RR, nDCG

grades = {"q": {"a": 1, "b": 0, "c": 0}}
measures = [nDCG @ 3, P @ 1, RR, RR @ 3]
runs = {
    "seconds since 1970": {"a": 1767225660.0, "b": 1767225630.0, "c": 1767225600.0},
    "probabilities": {"a": 0.999999995, "b": 0.99999999, "c": 0.999999985},
    "as small numbers": {"a": 60.0, "b": 30.0, "c": 0.0},
}
for name, scores in runs.items():
    ordered = sorted(scores, key=scores.get, reverse=True)
    found = pytrec_eval.RelevanceEvaluator(grades, {"ndcg", "P_1"}).evaluate({"q": scores})["q"]
    both = ir_measures.calc_aggregate(measures, grades, {"q": scores})
    single = len(set(np.float32(list(scores.values())).tolist()))
    print(f"{name}: order {ordered}, distinct scores 3, as 32 bits {single}")
    print("    pytrec_eval", {key: round(value, 4) for key, value in found.items()})
    print("    ir_measures", {str(key): round(value, 4) for key, value in both.items()})
    assert ordered == ["a", "b", "c"]
    if name == "as small numbers":
        assert found["ndcg"] == found["P_1"] == both[RR] == both[RR @ 3] == 1
    else:
        assert single == 1 and found["P_1"] == 0 and np.isclose(found["ndcg"], 0.5)
        assert both[P @ 1] == 0 and np.isclose(both[nDCG @ 3], 0.5) and np.isclose(both[RR], 1 / 3)
        assert both[RR @ 3] == 1
PYTHON
venv/bin/python try.py
