#!/usr/bin/env bash
# NumPy 2.4.6: np.unique of integers counts on a hash table since 2.3, which the release notes call an improvement of
# its speed. For columns of few values it is one; for ids, of which nearly every one is new (sessions, impressions,
# hashes), a million of them takes ten to twenty times as long as np.sort of the same array, although the result is
# sorted as well. Asking for more is the remedy: with return_counts=True (or return_index, return_inverse) the old way
# by sorting is taken, and the same values come back many times sooner. Floats were not touched. Only a ratio of 3 is
# claimed below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
cd "$folder"
cat > try.py <<'PYTHON'
import time

import numpy as np

rng = np.random.default_rng(1)


def fastest(function):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


ratios = {}
for name, column in (
    ("a million random ids", rng.integers(0, 2**62, 1_000_000)),
    ("a million ids in their order", np.arange(1_000_000)),
    ("as floats", rng.random(1_000_000)),
    ("a thousand different ids", rng.integers(0, 1000, 1_000_000)),
):
    unique, values = fastest(lambda: np.unique(column))
    sort, _ = fastest(lambda: np.sort(column))
    counts, (same, _) = fastest(lambda: np.unique(column, return_counts=True))
    assert (values == same).all() and (np.diff(values) > 0).all()
    ratios[name] = unique / sort, unique / counts
    print(
        f"{name:29} unique {unique * 1e3:5.0f} ms, sort {sort * 1e3:4.0f} ms, with counts {counts * 1e3:4.0f} ms",
        end="",
    )
    print(f": {ratios[name][0]:.1f} and {ratios[name][1]:.1f} times as long")
for name in ("a million random ids", "a million ids in their order"):
    assert min(ratios[name]) > 3, ratios
for name in ("as floats", "a thousand different ids"):
    assert ratios[name][1] < ratios["a million random ids"][1] / 2, ratios
PYTHON
venv/bin/python try.py
