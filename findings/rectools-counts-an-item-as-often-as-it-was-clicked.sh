#!/usr/bin/env bash
# RecTools 0.19.0: metrics are computed from recommendations and "interactions", a table of user and item. A user who
# came back to an item has it there twice, as in any log of clicks, and each row counts as a hit of its own at the one
# rank: the item clicked four times of three recommended gives a precision of 1.33 and an NDCG of 1.88, recall and MAP
# rise as well, and MRR and hit rate stay. Nothing is said. Below 1 it is not seen: a model that recommends what is
# visited again and again looks better by some metrics and not by others. The area under the curve of the same package
# drops such rows first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    RecTools==0.19.0 numpy==1.26.4 pandas==2.3.3 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import warnings

warnings.simplefilter("ignore")  # of pandas, about fillna
import pandas as pd
from rectools.metrics import MAP, MRR, NDCG, HitRate, PartialAUC, Precision, Recall, calc_metrics

recommended = pd.DataFrame({"user_id": 1, "item_id": ["a", "b", "c"], "rank": [1, 2, 3]})
metrics = {
    "precision": Precision(3),
    "recall": Recall(3),
    "NDCG": NDCG(3),
    "MAP": MAP(3),
    "MRR": MRR(3),
    "hits": HitRate(3),
}


def measured(interactions):
    found = calc_metrics(
        metrics | {"AUC": PartialAUC(3, insufficient_handling="ignore")}, recommended, interactions=interactions
    )
    return {name: float(value) for name, value in found.items()}


clicks = pd.DataFrame({"user_id": 1, "item_id": ["a", "a", "a", "a", "z"]})
twice, once = measured(clicks), measured(clicks.drop_duplicates())
for name in once:
    print(f"{name:9} {once[name]:.3f} with one row per item, {twice[name]:.3f} with one row per click")
assert twice["precision"] > 1.3 and twice["NDCG"] > 1.8
assert twice["recall"] == 0.8 and once["recall"] == 0.5 and twice["MAP"] > once["MAP"]
assert all(twice[name] == once[name] for name in ("MRR", "hits", "AUC"))
PYTHON
venv/bin/python try.py
