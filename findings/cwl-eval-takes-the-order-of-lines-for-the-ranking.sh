#!/usr/bin/env bash
# cwl-eval 1.0.12 reads "TREC formatted results" and uses neither the rank nor the score of a line: the ranking is the
# order of lines in the file. For trec_eval the order of lines means nothing, and runs that were joined, sorted by
# document or written in parallel are right; here they are measured as other rankings, with no message. Lines of one
# topic that are not together give that topic twice, each time with a part of its documents. And NDCG-k@10 is not
# divided by the best order possible: one relevant document, ranked first, is .22 where every other tool has 1, so the
# values rank systems by how many relevant documents their topics have. The help of the command names neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    cwl-eval==1.0.12 pytrec_eval-terrier==0.5.11 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import subprocess
from pathlib import Path

import pytrec_eval

judged = {"q1": {"a": 1, "b": 0}, "q2": {"a": 1, "b": 0}}
Path("judged.txt").write_text("".join(f"{q} 0 {doc} {grade}\n" for q in judged for doc, grade in judged[q].items()))
lines = [f"{q} Q0 {doc} {rank} {score} run\n" for q in judged for doc, rank, score in (("a", 1, 2.0), ("b", 2, 1.0))]
orders = {
    "by rank": lines,
    "from the last": lines[::-1],
    "by document": sorted(lines, key=lambda line: line.split()[2]),
}
for name, order in orders.items():
    Path("run.txt").write_text("".join(order))
    program = ["venv/bin/python", "-m", "cwl.cwl_eval", "judged.txt", "run.txt"]
    rows = [
        row.split() for row in subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    found = {metric: [(q, float(value)) for q, of, value, *_ in rows if of == metric] for metric in ("RR", "NDCG-k@10")}
    with open("run.txt") as run:
        evaluator = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank", "ndcg_cut"})
        other = evaluator.evaluate(pytrec_eval.parse_run(run))
    assert all(other[q]["recip_rank"] == other[q]["ndcg_cut_10"] == 1 for q in judged)
    print(f"lines {name:13} RR {found['RR']}, NDCG-k@10 {found['NDCG-k@10']}; trec_eval has 1 for all")
    reciprocal = {"by rank": [("q1", 1), ("q2", 1)], "from the last": [("q2", 0.5), ("q1", 0.5)]}
    assert found["RR"] == reciprocal.get(name, [("q1", 1), ("q2", 1), ("q1", 0), ("q2", 0)])
    if name == "by rank":
        assert all(abs(value - 0.22) < 0.001 for _, value in found["NDCG-k@10"])
PYTHON
venv/bin/python try.py
