#!/usr/bin/env bash
# ranx 0.3.21: bpref divides by the number of relevant documents of a query in a compiled loop over queries that runs in
# parallel. A query without any (a topic nobody could answer, or at bpref-l3 one whose best grade is 2) stops the loop
# with an error that nobody sees: the queries of the same thread that come after it keep the 0 with which the result
# began, and the mean is taken over them. How many those are depends on the number of threads, so on the machine; with
# one thread, as here, it is all of them. A query that has only relevant documents gives NaN, and so does the mean. The
# other measures give such a query its 0 or 1 and leave the rest alone; pytrec_eval-terrier 0.5.11 (trec_eval) gives
# bpref right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check ranx==0.3.21 pytrec_eval-terrier==0.5.11
cd "$folder"
cat > try.py <<'PYTHON'
import warnings

warnings.simplefilter("ignore")  # of numba, about casts
import numpy as np
import pytrec_eval
from ranx import Qrels, Run, evaluate

run = {f"q{query}": {"a": 2.0, "b": 1.0} for query in range(8)}  # perfect: a before b


for name, other in (
    ("all have relevant documents", {}),
    ("q0 has no relevant document", {"q0": {"a": 0, "b": 0}}),
    ("q0 has only relevant ones", {"q0": {"a": 1, "b": 1}}),
):
    judged = {query: {"a": 1, "b": 0} for query in run} | other
    found = evaluate(Qrels(judged), Run(run), "bpref", return_mean=False)
    trec = pytrec_eval.RelevanceEvaluator(judged, {"bpref"}).evaluate(run)
    trec = np.array([trec[query]["bpref"] for query in sorted(run)])
    print(f"{name}: {found}, mean {found.mean()}; trec_eval {trec}")
    assert (trec[1:] == 1).all() and trec[0] == (not name.endswith("document"))
    if name.endswith("document"):
        assert (found == 0).all()
    else:
        assert (found[1:] == 1).all() and (np.isnan(found[0]) if other else found[0] == 1)
PYTHON
NUMBA_NUM_THREADS=1 venv/bin/python try.py
