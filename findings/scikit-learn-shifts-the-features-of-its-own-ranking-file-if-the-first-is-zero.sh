#!/usr/bin/env bash
# scikit-learn 1.9.1: dump_svmlight_file counts features from 0 and leaves zeros out; load_svmlight_file (each with its
# defaults, and with query ids) takes a file in which no feature 0 occurs for one that counts from 1, and moves every
# column to the left. So a file of pages on which the first feature is zero throughout (no click yet, no match in the
# title; a small validation set, a new market) comes back with each feature in its neighbour's place. With n_features
# given, as one does to keep files alike, the shape is right and an empty column stands at the end; a ranker scores it
# without complaint. The documentation of zero_based says that "auto" should always be safe for a whole file.
# zero_based=True is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

features = np.random.default_rng(1).integers(1, 1000, (20, 4)) / 1000
grades, queries = np.arange(20) % 3, np.arange(20) // 5
for name, column in (("no feature is zero", None), ("the last feature is zero", 3), ("the first feature is zero", 0)):
    written = features.copy()
    if column is not None:
        written[:, column] = 0
    dump_svmlight_file(written, grades, "pages.txt", query_id=queries)
    read, _, ids = load_svmlight_file("pages.txt", n_features=4, query_id=True)
    safe, _, _ = load_svmlight_file("pages.txt", n_features=4, query_id=True, zero_based=True)
    assert (ids == queries).all() and (safe.toarray() == written).all() and read.shape == (20, 4)
    print(f"{name:25} written {written[0]}, read {read.toarray()[0]}")
    if column == 0:
        assert (read.toarray()[:, :3] == written[:, 1:]).all() and (read.toarray()[:, 3] == 0).all()
    else:
        assert (read.toarray() == written).all()
PYTHON
venv/bin/python try.py
