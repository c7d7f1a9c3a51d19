#!/usr/bin/env bash
# rankkit 0.1.0 (corrects click metrics for position bias): a document twice in "ranking" is an error, one twice in
# "clicks" (the user came back and clicked again, as raw logs have it) is weighed once per click, at 1 / propensity each.
# So the corrected metric, the effective sample size and "relevant documents per query implied" count a page's document
# several times, the more the deeper it stood, while clicks_by_rank of the same log counts it once. And --k, "rank cutoff
# (default 10)", cuts only with --weight recall: for dcg (the default) and rr a candidate ranking gets the same value for
# every k, from its whole length, whereas eval of the same tool cuts NDCG at k.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rankkit==0.1.0
cd "$folder"
cat > try.py <<'PYTHON'
import json
import subprocess
from pathlib import Path

docs = [f"d{rank}" for rank in range(1, 11)]


def bias(clicks, *options):
    pages = [{"qid": "q1", "ranking": docs, "clicks": clicks}, {"qid": "q2", "ranking": docs, "clicks": ["d1"]}]
    Path("log.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    command = ["venv/bin/rankkit", "bias", "log.jsonl", *options, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


once, twice = bias(["d8"]), bias(["d8", "d8"])
for name, found in (("one click on the 8th", once), ("the same, clicked again", twice)):
    print(f"{name:24} corrected DCG {found['logged']['ips']:.4f}, relevant documents per query", end=" ")
    print(f"{found['diagnostics']['relevant_per_query']}, clicked at rank 8: {found['clicks_by_rank'][7]}")
assert once["diagnostics"]["relevant_per_query"] == (8 + 1) / 2
assert twice["diagnostics"]["relevant_per_query"] == (8 + 8 + 1) / 2
assert twice["logged"]["ips"] > 1.6 * once["logged"]["ips"] and twice["clicks_by_rank"] == once["clicks_by_rank"]
for weight in ("dcg", "rr", "recall"):
    values = [bias(["d8"], "--weight", weight, "--k", k)["logged"]["ips"] for k in ("1", "5", "10")]
    print(f"--weight {weight}: --k 1, 5, 10 give", [round(value, 4) for value in values])
    assert len(set(values)) == (2 if weight == "recall" else 1)
PYTHON
venv/bin/python try.py
