#!/usr/bin/env bash
# implicit 0.7.3: its evaluation takes every value that is stored in the sparse test matrix for a relevant item, whatever
# the value. A matrix made of (user, item, click) rows stores the zeros of items that were shown and not clicked, and all
# measures take the skips for hits; the same matrix made from a dense array, or after eliminate_zeros, is right. A rating
# below zero is a hit, too, and NDCG knows no grades. And "precision" at K is divided by the smaller of K and the number
# of relevant items of the user: one relevant item at rank 10 of 10 is a precision of 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check implicit==0.7.3 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
from implicit.evaluation import ranking_metrics_at_k
from scipy.sparse import csr_matrix

items = 20


class InOrder:  # a model that recommends item 0, 1, 2, ... to everybody
    def recommend(self, users, seen, N=10, **others):
        return np.tile(np.arange(N, dtype=np.int32), (len(users), 1)), np.ones((len(users), N), np.float32)


def measures(test):
    found = ranking_metrics_at_k(InOrder(), csr_matrix((1, items)), test, K=10, show_progress=False, num_threads=1)
    return {name: round(float(value), 4) for name, value in found.items()}


shown = np.arange(10)
clicks = np.zeros(10)
clicks[9] = 1.0  # ten items shown, the last one clicked
stored = csr_matrix((clicks, (np.zeros(10, int), shown)), shape=(1, items))
pruned = stored.copy()
pruned.eliminate_zeros()
rated = csr_matrix((np.array([-3.0, 5.0]), (np.zeros(2, int), np.array([0, 1]))), shape=(1, items))
print("10 shown, 1 clicked, zeros stored:", measures(stored))
print("the same without stored zeros:    ", measures(pruned))
print("ranked 1st rated -3, 2nd rated 5: ", measures(rated))
assert (stored.toarray() == pruned.toarray()).all()
assert measures(stored)["precision"] == measures(stored)["ndcg"] == measures(stored)["map"] == 1
assert measures(pruned)["precision"] == 1 and measures(pruned)["map"] == 0.1 and measures(pruned)["ndcg"] == 0.2891
assert measures(rated)["ndcg"] == measures(rated)["precision"] == 1
PYTHON
venv/bin/python try.py
