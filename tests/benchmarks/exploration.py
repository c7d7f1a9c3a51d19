"""What `posbias explore` proposes: whether it holds, and whether it is better than other choices.

    python tests/benchmarks/exploration.py [PART|all] [--replications 100]

widths     predicted intervals against those that are found once the swaps were really made
plans      the widest interval after the plan, after random swaps, and after what one would do without a plan
documents  how soon the best documents are found: by upper bounds, by means (greedy), at random

The logs are simulated: constants were chosen on seeds from 1000 on, and what is reported is from seed 0 on.
"""

import argparse
from collections.abc import Callable, Mapping

from exploration_documents import documents
from exploration_plans import plans
from exploration_widths import widths
from processes import table_console
from rich.console import Console

PARTS: Mapping[str, Callable[[Console, int], None]] = {"widths": widths, "plans": plans, "documents": documents}


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--replications", type=int, default=100, help="logs per row of a table")
    asked = parser.parse_args()
    console = table_console()
    for name in PARTS if asked.part == "all" else (asked.part,):
        PARTS[name](console, asked.replications)


if __name__ == "__main__":
    main()
