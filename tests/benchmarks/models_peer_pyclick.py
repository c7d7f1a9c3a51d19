"""Train a click model of PyClick on a log; see `models.py`.

    python tests/benchmarks/models_peer_pyclick.py LOG MODEL PYCLICK

As its example trains: closed forms where it has them, else 50 iterations of EM, which is all the stopping it has.
"""

import sys
from importlib import import_module
from typing import Any

from scale_peer_pyclick import read_sessions

LIMITS = dict.fromkeys(("gctr", "rctr", "dctr", "pbm", "ubm", "cm", "dcm", "sdbn"), 350_000) | {
    "ccm": 10_000,
    "dbn": 10_000,
}
"""Impressions of the largest log on which a model takes minutes, and not hours. There is no rdctr and no tpbm."""


def main() -> None:
    """Read, train."""
    log, name, checkout = sys.argv[1:]
    sys.path.insert(0, checkout)
    module: Any = import_module(f"pyclick.click_models.{'CTR' if name.endswith('ctr') else name.upper()}")
    getattr(module, name.upper())().train(read_sessions(log))


if __name__ == "__main__":
    main()
