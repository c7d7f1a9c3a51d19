"""What a debiased training set is worth: rankers trained on clicks, judged by the true labels of unseen queries.

    python tests/benchmarks/value.py [--seeds 5] [--quick]

Documents, features and labels are real (../shared/data); clicks are drawn on the pages of a weak, sticky ranker
(`value_worlds.py`). Of every setting and seed three logs are drawn, each of two thirds of the queries, the propensities
estimated from it, training rows made of it in every layout (`value_rows.py`) with no, estimated and true propensities,
a ranker trained on them (`value_learners.py`) and judged on the last third by NDCG. --quick: one seed of one setting.

Two processes work at once, in one thread each. Methods that read whole pages are slow: they run on a setting's first
seeds only.

Found on LightGBM's documents, NDCG@10, mean and standard error of paired differences over the folds of 1 to 3 settings
and 2 seeds, propensities by the conditional estimate:

* Judgments. The posterior mean is the best label. Least squares on it is as good as the pointwise layout
  (-.001 ± .003), on ips and coec rates, noisy where theta is small, it is not (-.027 and -.025 ± .005). In lambdarank
  on five grades in equal steps it gains .018 ± .005 on them. Quantiles mend ips and coec grades (+.012 ± .006; more on
  ClueWeb09), but not those of the posterior mean (-.011 ± .004); a scale per query mends nothing.
* Losers. Pairs against all other documents of the page, or only against those without a click: no difference
  (.000 ± .002). Only the former is unbiased.
* Rankers that divide what a group teaches by its current loss, as LightGBM and XGBoost do by default, lose .022 ± .008
  and .013 ± .006 on clicked groups. It is off here.

The label of judgments and that division were thus chosen by looking at true labels, but on other draws than those that
the tables show: other splits, ranking functions and clicks, of the same documents.
"""

import argparse

import polars as pl
from processes import table_console
from recovery_logs import in_parallel
from value_measure import DEPTHS, measure
from value_table import Results, aims_table, ndcg_table, theta_table
from value_worlds import FILES, Setting

EXAMPLE, CLUEWEB = FILES
SETTINGS = (
    Setting(EXAMPLE, 6_000, page_seeds=2),
    Setting(EXAMPLE, 30_000, page_seeds=2),
    Setting(EXAMPLE, 30_000, eta=1.5, page_seeds=1),
    Setting(EXAMPLE, 5_000, temperature=0.5, page_seeds=1),
    Setting(CLUEWEB, 30_000, page_seeds=1),
)
QUICK = (Setting(EXAMPLE, 6_000),)


def main() -> None:
    """Parse the command line, measure, print the tables and the aims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed of one setting")
    options = parser.parse_args()
    n_seeds = 1 if options.quick else options.seeds
    console = table_console()
    wanted = QUICK if options.quick else SETTINGS
    for path in sorted({FILES[setting.dataset] for setting in wanted}):
        if not path.exists():
            console.print(f"the judged documents {path} are not here: settings that need them are left out")
    settings = [setting for setting in wanted if FILES[setting.dataset].exists()]
    if not settings:
        return
    results = Results(settings, measured_seeds(settings, n_seeds))
    for depth in reversed(DEPTHS):
        console.print(ndcg_table(results, f"NDCG@{depth}", n_seeds))
    console.print(theta_table(results))
    console.print(aims_table(results, f"NDCG@{DEPTHS[-1]}"))


def measured_seeds(settings: list[Setting], n_seeds: int) -> pl.DataFrame:
    """Every setting and seed, the slow ones first."""
    slow_first = sorted(
        range(len(settings)), key=lambda number: -settings[number].page_seeds * settings[number].n_sessions
    )
    tasks = [(number, seed) for number in slow_first for seed in range(n_seeds)]
    results = in_parallel(measure, [(settings[number], seed) for number, seed in tasks], "value")
    return pl.concat(
        [
            result.with_columns(setting=pl.lit(number), seed=pl.lit(seed))
            for (number, seed), result in zip(tasks, results, strict=True)
        ]
    )


if __name__ == "__main__":
    main()
