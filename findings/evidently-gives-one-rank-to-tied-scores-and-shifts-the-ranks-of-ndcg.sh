#!/usr/bin/env bash
# evidently 0.7.23, metrics of rankings by score: tied documents get the mean of their ranks, cut to a whole number, so
# that two documents that tie at the top both stand at rank 1. A model with few different scores (counts of clicks, a
# rounded or clipped score, a tree of few leaves) has a rank with two results: precision at 1 is 2, NDCG 1.23 and MAP
# 1.5, though "values range from 0 to 1". A tie of all six is nobody at ranks 1 and 2. And the table of NDCG and MRR
# calls rank 2 what is measured at 1, and so on: who reads NDCG at rank 3 from the report reads NDCG at 2. Precision and
# recall in the same report are counted from 1. no_feedback_users, "whether to exclude users with no feedback (default:
# False)", is the other way round: by default they are left out, and True takes them in.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    evidently==0.7.23 pandas==2.3.3 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 statsmodels==0.15.0
cd "$folder"
cat > try.py <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import numpy as np
import pandas as pd
from evidently import DataDefinition, Dataset, Recsys, Report
from evidently.metrics import MAP, MRR, NDCG, PrecisionTopK
from sklearn.metrics import ndcg_score


def measured(pages, **options):
    rows = [(query, f"d{n}", *row) for query, page in enumerate(pages) for n, row in enumerate(zip(*page))]
    log = pd.DataFrame(rows, columns=["query", "document", "score", "click"])
    ranking = Recsys(user_id="query", item_id="document", target="click", prediction="score")
    data = Dataset.from_pandas(log, data_definition=DataDefinition(ranking=[ranking]))
    report = Report([metric(k=3, **options) for metric in (NDCG, MRR, MAP, PrecisionTopK)]).run(data, None)
    found = {}
    for metric in report.dict()["metrics"]:
        ranks, values = (list(metric["value"][column].values()) for column in ("rank", "value"))
        found[metric["metric_name"].split("(")[0]] = dict(zip(ranks, map(float, values)))
    return found


def shown(name, found):
    for metric, values in found.items():
        print(f"{name}, {metric} by rank:", {rank: round(value, 3) for rank, value in values.items() if rank < 5})
    return found


scores, clicks = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [0, 1, 0, 0, 0, 0]
plain = shown("the second of six is clicked", measured([(scores, clicks)] * 20))
second = 1 / np.log2(3)
assert np.isclose(ndcg_score([clicks], [scores], k=2), second)
assert [plain["NDCG"].get(rank) for rank in (1, 2)] == [None, 0.0] and np.isclose(plain["NDCG"][3], second)
assert (
    plain["MRR"][2] == 0
    and plain["MRR"][3] == 0.5
    and plain["PrecisionTopK"][1] == 0
    and plain["PrecisionTopK"][2] == 0.5
)
tied = shown("the first two tie, both clicked", measured([([6.0, 6.0, 4.0, 3.0, 2.0, 1.0], [1, 1, 0, 0, 0, 0])] * 20))
assert tied["PrecisionTopK"][1] == 2 and tied["NDCG"][3] > 1.2 and tied["MAP"][2] == 1.5
level = shown("all six tie, two clicked", measured([([1.0] * 6, [1, 1, 0, 0, 0, 0])] * 20))
assert [level["PrecisionTopK"][rank] for rank in (1, 2)] == [0, 0] and np.isclose(level["PrecisionTopK"][3], 2 / 3)
half = [(scores, [1, 0, 0, 0, 0, 0])] * 10 + [(scores, [0] * 6)] * 10
left_out, taken_in = (measured(half, no_feedback_users=flag)["NDCG"][3] for flag in (False, True))
print(f"half of the pages without a click: NDCG {left_out} with no_feedback_users=False, {taken_in} with True")
assert left_out == 1 and taken_in == 0.5
PYTHON
venv/bin/python try.py
