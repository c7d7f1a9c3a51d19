"""Learners of `posbias train`, each on the same logs, judged by what the logs were drawn from.

    python tests/benchmarks/learners.py rankers [--seeds 3] [--only pbm,naive] [--settings "6,000 pages;ClueWeb09"]
    python tests/benchmarks/learners.py mix [--seeds 3] [--datasets LightGBM] [--weights 0 .6]
    python tests/benchmarks/learners.py factors [--seeds 3] [--only clicks]
    python tests/benchmarks/learners.py cost [--impressions 100000 1000000 10000000] [--features 40] [--text]

`rankers`: NDCG@10 on the true labels of held-out queries, in the worlds of `value.py` (real documents, drawn clicks).
`mix`: NDCG@5 where the logging ranker mixes relevance and noise.
`factors`: learners without features.
`cost`: seconds and peak memory of `train`.

`rankers` and `mix` work in one thread a process, two processes at once or `--processes N`. What parts of them measure
(`--first-seed`, `--settings`, `--datasets`, `--save FILE`) is put together with `--merge FILES` (`learners_parts.py`).
"""

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = {"rankers": "learners_rankers", "mix": "learners_mix", "cost": "learners_cost", "factors": "learners_factors"}


def main() -> None:
    """Hand over to the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    part = parser.parse_args(sys.argv[1:2]).part
    run: Callable[[list[str]], None] = import_module(PARTS[part]).run
    run(sys.argv[2:])


if __name__ == "__main__":
    main()
