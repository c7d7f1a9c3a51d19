"""How well theta is recovered where the truth is known, what the intervals are worth, and what it costs: the proof.

    python tests/benchmarks/recovery.py [accuracy|coverage|checks|real|speed|cost|all] [--seeds 20] [--replications 200]

accuracy  mean relative error of theta, per kind of log and estimator
coverage  of the 95 % intervals, by the sandwich and by the bootstrap
checks    size and power of what a log says against its own numbers, and what makes joint EM biased
real      the real logs beside the repository (../shared/data), where they are there
speed     conditional and joint fits of a compressed log of 10M impressions
cost      what `posbias fit` takes beyond `posbias collect`, whole processes

The logs are simulated (`recovery_worlds.py`), the same ones for the same seeds. Two processes work at once, except
where time is measured.
"""

import argparse

from processes import table_console
from recovery_accuracy import accuracy
from recovery_checks import checks
from recovery_coverage import coverage
from recovery_real import real
from recovery_speed import IMPRESSIONS, cost, speed

PARTS = ("accuracy", "coverage", "checks", "real", "speed", "cost")


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--seeds", type=int, default=20, help="logs per kind, for accuracy")
    parser.add_argument("--replications", type=int, default=200, help="logs per kind, for coverage and checks")
    parser.add_argument("--impressions", type=int, default=IMPRESSIONS, help="of the log that is timed")
    parser.add_argument("--runs", type=int, default=3, help="of each process that is timed")
    options = parser.parse_args()
    console = table_console()
    wanted = PARTS if options.part == "all" else (options.part,)
    if "accuracy" in wanted:
        accuracy(console, options.seeds)
    if "coverage" in wanted:
        coverage(console, options.replications)
    if "checks" in wanted:
        checks(console, options.replications)
    if "real" in wanted:
        real(console)
    if "speed" in wanted:
        speed(console, options.impressions)
    if "cost" in wanted:
        cost(console, options.impressions, options.runs)


if __name__ == "__main__":
    main()
