"""Intervention harvesting by the ULTR bias toolkit; run by the interpreter of its own environment.

    ULTR_PYTHON tests/benchmarks/recovery_ultr_peer.py LOG OUTPUT

LOG has one row per impression: `query_id`, `doc_id`, `position`, `click`. Written is the examination of each position
by each estimator. Both are CSV, which needs no further package.
"""

import sys
from importlib import import_module
from typing import Any

SEED = 0
"""All pairs are climbed by stochastic steps from a random start."""

ESTIMATORS = {"adjacent-chain": "AdjacentChainEstimator", "pivot": "PivotEstimator", "allpairs": "AllPairsEstimator"}


def main() -> None:
    """Read, estimate, write."""
    log, output = sys.argv[1:]
    pandas, torch = import_module("pandas"), import_module("torch")
    harvesting: Any = import_module("ultr_bias_toolkit.bias.intervention_harvesting")
    torch.manual_seed(SEED)
    rows: Any = pandas.read_csv(log)
    found = [
        getattr(harvesting, name)()(rows)[["position", "examination"]].assign(method=method)
        for method, name in ESTIMATORS.items()
    ]
    pandas.concat(found).to_csv(output, index=False)


if __name__ == "__main__":
    main()
