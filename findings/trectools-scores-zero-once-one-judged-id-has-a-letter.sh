#!/usr/bin/env bash
# trectools 0.0.50: runs and judgments are read with the types that pandas guesses, column by column and file by file, and
# turned into texts afterwards. So ids like 0042 lose their zeros while all ids of the column look like numbers, and keep
# them as soon as one does not. One judged document more, with a letter in its id and in no run, parts the two files: the
# judgments hold 0042, the run holds 42, and every measure of a perfect run is 0, with no message. With query ids the same
# happens, and queries 7 and 07 become one (or an error about a document given twice). The two files are right by the
# format, and the same judgments give 1 in pytrec_eval-terrier 0.5.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    trectools==0.0.50 pytrec_eval-terrier==0.5.11 pandas==3.1.1 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1
cd "$folder"
printf 'q1 Q0 0042 1 3.0 run\nq1 Q0 0043 2 2.0 run\n' > run.txt
printf 'q1 0 0042 1\nq1 0 0043 0\n' > judged.txt
{ cat judged.txt; printf 'q1 0 x7 0\n'; } > more.txt
cat > try.py <<'PYTHON'
import warnings

warnings.simplefilter("ignore")  # about the way trectools calls pandas
import pytrec_eval
from trectools import TrecEval, TrecQrel, TrecRun

run = TrecRun("run.txt")
for name in ("judged.txt", "more.txt"):
    judgments = TrecQrel(name)
    measures = TrecEval(run, judgments)
    found = {"MAP": measures.get_map(), "NDCG": measures.get_ndcg(), "RR": measures.get_reciprocal_rank()}
    found = {measure: float(value) for measure, value in found.items()}
    print(f"{name:10} run {run.run_data['docid'].tolist()}, judged {judgments.qrels_data['docid'].tolist()}: {found}")
    with open(name) as judged, open("run.txt") as given:
        evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(judged), {"map", "ndcg", "recip_rank"})
        other = evaluator.evaluate(pytrec_eval.parse_run(given))["q1"]
    assert set(other.values()) == {1.0}
    assert set(found.values()) == ({1.0} if name == "judged.txt" else {0.0}), found
    assert run.run_data["docid"].tolist() == ["42", "43"]
PYTHON
venv/bin/python try.py
