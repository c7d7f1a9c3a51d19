#!/usr/bin/env bash
# XGBoost 3.2.0: the rows of a ranking problem can be given in batches (DataIter, for QuantileDMatrix and the matrices
# in external memory), each with its query ids. Batches by number of rows, or row groups of a Parquet file, end in the
# midst of a query; the rest of it follows in the next batch with the same qid, and is taken for another query. Nothing
# is said. The pairs across the cut are not trained on, and the metrics are means over more and shorter queries: with
# pages of 20 rows and batches of 30 the NDCG of the same rows by the same trees is .1 higher. The ids that would tell
# are at hand: rows of one query that are not together within a batch are refused. With batches that end where queries
# end all agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
import xgboost as xgb

rng = np.random.default_rng(1)
queries, length = 300, 20
features = rng.random((queries * length, 3))
query = np.repeat(np.arange(queries), length)
clicks = (rng.random(len(query)) < 0.3 * features[:, 0]).astype(int)


class Batches(xgb.DataIter):
    def __init__(self, rows):
        self.rows, self.start = rows, 0
        super().__init__()

    def next(self, input_data):
        if self.start == len(query):
            return False
        rows = slice(self.start, self.start + self.rows)
        input_data(data=features[rows], label=clicks[rows], qid=query[rows])
        self.start += self.rows
        return True

    def reset(self):
        self.start = 0


whole = xgb.QuantileDMatrix(features, clicks, qid=query)
options = {"objective": "rank:ndcg", "eval_metric": "ndcg@5", "nthread": 1}
ranker = xgb.train(options, whole, 5)


def ndcg(data, booster=ranker):
    return float(booster.eval(data).split(":")[-1])


for rows in (600, 50, 30):
    batches = xgb.QuantileDMatrix(Batches(rows))
    groups = len(batches.get_uint_info("group_ptr")) - 1
    other = ndcg(whole, xgb.train(options, batches, 5))
    print(
        f"batches of {rows:3} rows: {groups} queries of {queries}, NDCG@5 of the same trees {ndcg(batches):.4f}", end=""
    )
    print(f" instead of {ndcg(whole):.4f}; trained on the batches, measured on the whole: {other:.4f}")
    if rows % length == 0:
        assert groups == queries and ndcg(batches) == ndcg(whole) == other
    else:
        cuts = sum(end % length != 0 for end in range(rows, len(query), rows))
        assert groups == queries + cuts and ndcg(batches) > ndcg(whole) + 0.02 and other != ndcg(whole)
mixed = query.copy()
mixed[[0, -1]] = mixed[[-1, 0]]
try:
    xgb.QuantileDMatrix(features, clicks, qid=mixed)
except (ValueError, xgb.core.XGBoostError) as refused:
    print("rows of one query that are not together, in one batch:", str(refused).splitlines()[0][-60:])
else:
    raise SystemExit("not refused")
PYTHON
venv/bin/python try.py
