"""How well theta is recovered where the truth is known, what the intervals are worth, and what it costs: the proof.

    python tests/benchmarks/recovery.py [PART|all] [--seeds 20] [--replications 200]

accuracy        mean relative error of theta, per kind of log and estimator
coverage        of the 95 % intervals, by the sandwich and by the bootstrap
checks          size and power of what a log says against its own numbers, and what makes joint EM biased
attractiveness  what the standard deviation of attractiveness is worth
thin            curves from few clicks: `--shape smooth` beside free and power, from seeds that it was not chosen on
contexts        error and coverage where contexts are shrunk towards each other
clusters        errors that users, markets or days share: by query, by a column of the log, two-way
replicates      what the spread of replicate weights is worth
tests           size and power of every test
feedback        rankers that learn from clicks: what auto chooses, and the test that it rests on
model           of the tests of the model: false alarms and power
check           the standard errors that `posbias check` expects, against actual errors, on 50 logs per kind
guards          against logs of what was clicked: false alarms, and how many are found
days            that do not look like the others: false alarms, and how many are found
fepois          theta by pyfixest's Poisson regression with fixed effects, where `--pyfixest` says where that is
ultr            intervention harvesting by the ULTR bias toolkit, where `--ultr` says where that is
features        theta where no pair repeats, by features: error and coverage beside regression EM
real            the real logs beside the repository (../shared/data), where they are there
speed           conditional and joint fits of a compressed log of 10M impressions
cost            what `posbias fit` takes beyond `posbias collect`, whole processes
times           what `posbias fit` takes where the log has no times, dates, or times of day

The logs are simulated (`recovery_worlds.py`), the same ones for the same seeds. Two processes work at once, except
where time is measured.
"""

import argparse
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from processes import table_console
from recovery_accuracy import accuracy
from recovery_attractiveness import attractiveness
from recovery_check import check
from recovery_checks import checks
from recovery_clusters import clusters
from recovery_contexts import contexts
from recovery_coverage import coverage
from recovery_days import days
from recovery_features import features
from recovery_feedback import feedback
from recovery_fepois import fepois
from recovery_guards import guards
from recovery_model_tests import model_tests
from recovery_real import real
from recovery_replicates import replicates
from recovery_speed import IMPRESSIONS, cost, speed, times
from recovery_tests import tests
from recovery_thin import thin
from recovery_ultr import ultr
from rich.console import Console

PARTS: Mapping[str, Callable[[Console, Namespace], None]] = {
    "accuracy": lambda console, asked: accuracy(console, asked.seeds),
    "coverage": lambda console, asked: coverage(console, asked.replications),
    "checks": lambda console, asked: checks(console, asked.replications),
    "attractiveness": lambda console, asked: attractiveness(console, asked.seeds),
    "thin": lambda console, asked: thin(console, asked.replications),
    "contexts": lambda console, asked: contexts(console, asked.replications),
    "clusters": lambda console, asked: clusters(console, asked.replications),
    "replicates": lambda console, asked: replicates(console, asked.replications),
    "tests": lambda console, asked: tests(console, asked.replications),
    "feedback": lambda console, asked: feedback(console, asked.replications),
    "model": lambda console, asked: model_tests(console, asked.replications),
    "check": lambda console, asked: check(console, min(asked.replications, CHECKED)),
    "guards": lambda console, asked: guards(console, asked.replications),
    "days": lambda console, asked: days(console, asked.replications),
    "fepois": lambda console, asked: fepois(console, asked.pyfixest),
    "ultr": lambda console, asked: ultr(console, asked.ultr, min(asked.seeds, COMPARED)),
    "features": lambda console, asked: features(console, asked.replications),
    "real": lambda console, _: real(console),
    "speed": lambda console, asked: speed(console, asked.impressions),
    "cost": lambda console, asked: cost(console, asked.impressions, asked.runs),
    "times": lambda console, asked: times(console, asked.impressions, asked.runs),
}

COMPARED = 5
"""Logs per kind for `ultr`, of which each takes a quarter of a minute."""

CHECKED = 50
"""Logs per kind for `check`."""


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--seeds", type=int, default=20, help="logs per kind, for accuracy and attractiveness")
    parser.add_argument("--replications", type=int, default=200, help="logs per kind, for the other parts")
    parser.add_argument("--impressions", type=int, default=IMPRESSIONS, help="of the log that is timed")
    parser.add_argument("--runs", type=int, default=3, help="of each process that is timed")
    parser.add_argument("--pyfixest", type=Path, metavar="DIR", help="environment that holds pyfixest, for fepois")
    parser.add_argument("--ultr", type=Path, metavar="DIR", help="environment that holds ultr_bias_toolkit, for ultr")
    asked = parser.parse_args()
    console = table_console()
    for name in PARTS if asked.part == "all" else (asked.part,):
        PARTS[name](console, asked)


if __name__ == "__main__":
    main()
