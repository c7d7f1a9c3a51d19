#!/usr/bin/env bash
# ranx 0.3.21: judgments are held as 64-bit integers, and a grade that is a fraction is cut to the whole number below it
# when Qrels is made from a dict, with no message. So labels estimated from clicks (attractiveness between 0 and 1, or
# clicks over propensity) become 0 or lose their order, and every measure is computed of other grades than were given:
# NDCG of a perfect ranking by grades .9, .5, .1 is 0. The same labels times 100 are ranked right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ranx==0.3.21
cd "$folder"
cat > try.py <<'PYTHON'
from ranx import Qrels, Run, evaluate

run = Run({"q1": {"a": 3.0, "b": 2.0, "c": 1.0}})
for grades in ({"a": 0.9, "b": 0.5, "c": 0.1}, {"a": 1.0, "b": 1.9, "c": 0.1}, {"a": 1, "b": 190, "c": 10}):
    qrels = Qrels({"q1": dict(grades)})
    held = {doc: int(grade) for doc, grade in qrels.to_dict()["q1"].items()}
    ndcg = float(evaluate(qrels, run, "ndcg"))
    print(f"given {grades}, held {held}, NDCG {ndcg:.4f}")
    assert held == {doc: int(grade) for doc, grade in grades.items()}, held
    if grades["a"] == 0.9:
        assert ndcg == 0.0  # the ranking is perfect
    elif grades["b"] == 1.9:
        assert ndcg == 1.0  # a and b are equal now; in truth b is nearly twice as good and stands second
PYTHON
venv/bin/python try.py
