#!/usr/bin/env bash
# ultr-bias-toolkit 0.0.5 (estimators of position bias by Agarwal et al. 2019): AdjacentChainEstimator multiplies the ratios
# of clicks between neighbouring positions, of those pairs of neighbours that the log has. Where one is missing, because
# position 5 holds an advert or no document stood at both 5 and 6, the product runs on across the gap as if both sides of it
# were seen alike: every position below is too high by the attention lost in between, and the first one below has no row.
# A log without position 1 (results below an advert) is chained from its second position, whose own ratio is the first
# number: nothing says that it is relative to position 2. Numbers look like a curve, with no warning. PivotEstimator of the
# same package gets the same logs right, but has no row for what was never shown at the pivot either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==2.3.3 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps ultr-bias-toolkit==0.0.5 # without torch, tqdm
cd "$folder"
cat > try.py <<'PYTHON'
import sys
from unittest.mock import MagicMock

for name in ("torch", "torch.nn", "torch.utils", "torch.utils.data", "tqdm"):
    sys.modules[name] = MagicMock()  # for the package's third estimator, which is not used here

import pandas as pd
from ultr_bias_toolkit.bias.intervention_harvesting import AdjacentChainEstimator, PivotEstimator

ATTENTION = {1: 1.0, 2: 0.8, 3: 0.6, 4: 0.5, 5: 0.45, 6: 0.4, 7: 0.3, 8: 0.2}


def log(*shown):
    """Documents, each 100 times at each of its positions, clicked exactly as often as attention says."""
    return pd.DataFrame(
        {"query_id": "q", "doc_id": doc, "position": position, "click": int(i < round(100 * ATTENTION[position]))}
        for doc, positions in enumerate(shown)
        for position in positions
        for i in range(100)
    )


def estimate(name, frame, estimator):
    found = estimator(frame).set_index("position")["examination"]
    print(f"{name:48}", {int(k): round(float(v), 3) for k, v in found.items()})
    return found


whole = estimate("all positions, chained", log(range(1, 9)), AdjacentChainEstimator())
assert all(abs(whole[k] - ATTENTION[k]) < 1e-9 for k in ATTENTION)

without = [1, 2, 3, 4, 6, 7, 8]
gap = estimate("position 5 holds an advert, chained", log(without), AdjacentChainEstimator())
assert 6 not in gap.index and abs(gap[7] - 0.375) < 1e-9 and abs(gap[8] - 0.25) < 1e-9  # 0.3 and 0.2 are right
pivot = estimate("the same log, against position 1", log(without), PivotEstimator())
assert all(abs(pivot[k] - ATTENTION[k]) < 1e-9 for k in without)

apart = estimate("no document at both 5 and 6, chained", log([1, 2, 3, 4, 5], [1, 6, 7, 8]), AdjacentChainEstimator())
assert 6 not in apart.index and abs(apart[8] - 0.45 * 0.2 / 0.4) < 1e-9  # 0.2 is right

below = estimate("results below an advert at position 1, chained", log(range(2, 9)), AdjacentChainEstimator())
assert 2 not in below.index and abs(below[3] - 0.6 / 0.8) < 1e-9  # relative to position 2, which is not in the table
PYTHON
venv/bin/python try.py
