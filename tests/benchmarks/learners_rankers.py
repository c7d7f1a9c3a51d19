"""NDCG@10 of the learners, on the true labels of queries that no click was seen for.

The prototypes' figures stand beside: a comparison learner that a bug makes look bad would be no comparison.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import polars as pl
from learners_worlds import STOPPING, learn, learning_data, options_of, propensities, scores, with_validation
from processes import table_console
from recovery_logs import in_parallel
from rich.box import SIMPLE_HEAD
from rich.table import Table
from value_learners import lambdarank
from value_measure import CONDITIONAL, NAIVE, judged_rows, ndcg
from value_worlds import FILES, Documents, Floats, Fold, Setting, draw_folds

from posbias.core.learners.methods import get_learner, learner_names

DEPTH = 10
_MEASURED = {
    "setting": pl.String,
    "seed": pl.Int64,
    "fold": pl.Int64,
    "method": pl.String,
    "ndcg": pl.Float64,
    "theta_error": pl.Float64,
    "seconds": pl.Float64,
}
LABELS, LOGGING = "true labels, lambdarank", "logging ranker"
EXAMPLE, CLUEWEB = FILES

SETTINGS = {
    "30,000 pages": Setting(EXAMPLE, 30_000),
    "6,000 pages": Setting(EXAMPLE, 6_000),
    "strong ranker": Setting(EXAMPLE, 30_000, strength=0.5),
    "ClueWeb09": Setting(CLUEWEB, 30_000),
}

PROTOTYPES = {  # as measured with other code on the same worlds, three seeds
    "pbm": (0.767, 0.751, 0.756),
    "pal-sum": (0.730, 0.726, 0.733),
    "pal-product": (0.721, 0.705, 0.723),
    "pal-sum, dropout": (0.714, 0.721, 0.740),
    "pal-sum, reversal": (0.730, 0.726, 0.736),
    "dla": (0.735, 0.681, 0.670),
    "ipw-dcg": (0.746, None, None),
    "ipw-arp": (0.745, 0.723, 0.747),
    "gbrank, raw": (0.715, 0.730, 0.751),
    "gbrank": (0.746, 0.675, 0.737),
    "logistic, no position": (0.693, None, None),
    "logistic": (0.729, 0.714, 0.706),
    "position-feature": (0.752, 0.732, 0.718),
    "single-tower": (0.702, 0.702, 0.730),
    "regression-em": (0.769, 0.751, 0.734),
    LABELS: (0.767, 0.767, 0.767),
}


@dataclass(frozen=True)
class Variant:
    """A learner with options of its own."""

    name: str
    learner: str
    options: tuple[tuple[str, object], ...] = ()
    source: str = CONDITIONAL
    networks: bool = False


def variants() -> list[Variant]:
    """All learners from features, and what some are asked besides."""
    networks = ("pal-sum", "pal-product", "single-tower")
    found = [
        Variant(name, name, networks=name in networks) for name in learner_names() if get_learner(name).needs_features
    ]
    more = [
        Variant("pbm, naive propensities", "pbm", source=NAIVE),
        Variant("gbrank, raw", "gbrank", (("corrected", False),)),
        Variant("logistic, no position", "logistic", (("position_as_feature", False),)),
        Variant("pal-sum, dropout", "pal-sum", (("observation_dropout", 0.5),), networks=True),
        Variant("pal-sum, reversal", "pal-sum", (("gradient_reversal", 0.1),), networks=True),
    ]
    return found + [variant for variant in more if variant.learner in learner_names()]


def run(words: list[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="learners, separated by commas")
    parser.add_argument("--settings", default="", help="separated by semicolons")
    parser.add_argument("--quick", action="store_true", help="one seed of one setting")
    asked = parser.parse_args(words)
    names = [name for name in asked.settings.split(";") if name] or list(SETTINGS)[: 1 if asked.quick else None]
    seeds = 1 if asked.quick else asked.seeds
    tasks = [
        (name, seed, asked.only) for seed in range(seeds) for name in names if FILES[SETTINGS[name].dataset].exists()
    ]
    if not tasks:
        print("the judged documents are not here")
        return
    print_table(pl.concat(in_parallel(measure, tasks, "learners")), names)


def measure(task: tuple[str, int, str]) -> pl.DataFrame:
    """One seed of a setting: `setting`, `seed`, `fold`, `method`, `ndcg`, `theta_error`, `seconds`."""
    name, seed, only = task
    setting = SETTINGS[name]
    documents = Documents.read(FILES[setting.dataset])
    wanted = [variant for variant in variants() if not only or variant.learner in only.split(",")]
    rows: list[dict[str, object]] = []
    for number, fold in enumerate(draw_folds(documents, setting, seed)):
        theta = propensities(fold, setting.examination)
        said = {"setting": name, "seed": seed, "fold": number}
        rows.append({**said, "method": LOGGING, "ndcg": ndcg(documents, fold.logging_score, fold.held_out, DEPTH)})
        best = lambdarank(judged_rows(fold), documents.features)
        rows.append({**said, "method": LABELS, "ndcg": ndcg(documents, best, fold.held_out, DEPTH)})
        rows += [{**said, **_measured(variant, fold, theta, seed, setting)} for variant in wanted]
    return pl.DataFrame(rows, schema=_MEASURED)


def _measured(variant: Variant, fold: Fold, theta: dict[str, Floats], seed: int, setting: Setting) -> dict[str, object]:
    data = learning_data(fold, theta[variant.source])
    options = dict(variant.options)
    if variant.networks:
        data, options = with_validation(data, seed), {**options, **STOPPING}
    start = time.process_time()
    learned = learn(variant.learner, data, options_of(seed, **options))
    spent = time.process_time() - start
    found: dict[str, object] = {
        "method": variant.name,
        "ndcg": ndcg(fold.documents, scores(learned, fold), fold.held_out, DEPTH),
        "seconds": spent,
    }
    if learned.propensities is not None:
        own: Floats = learned.propensities / learned.propensities[0]
        relative: Floats = np.abs(own / setting.examination - 1)
        found["theta_error"] = float(np.nanmean(relative[1:]))
    return found


def print_table(results: pl.DataFrame, settings: list[str]) -> None:
    """A row per learner: the mean over seeds and folds, its standard error over seeds, and the prototype's."""
    title = f"NDCG@{DEPTH} of rankers from clicks, ± standard error over seeds and folds"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("learner", no_wrap=True)
    for name in settings:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prototypes", justify="right", no_wrap=True)
    table.add_column("error\nof theta", justify="right")
    table.add_column("CPU s", justify="right")
    for (method,), rows in results.group_by("method", maintain_order=True):
        cells = [cell(rows.filter(pl.col("setting") == name)["ndcg"]) for name in settings]
        known = " ".join("   -" if value is None else f"{value:.3f}"[1:] for value in PROTOTYPES.get(str(method), ()))
        error, seconds = rows.select(pl.col("theta_error").mean(), pl.col("seconds").median()).row(0)
        table.add_row(
            str(method),
            *cells,
            known,
            "" if error is None else f"{error:.2f}",
            "" if seconds is None else f"{seconds:.1f}",
        )
    table_console().print(table)


def cell(values: pl.Series) -> str:
    """A mean and its standard error."""
    if not len(values):
        return "-"
    mean, spread = values.to_frame("value").select(mean=pl.col("value").mean(), spread=pl.col("value").std()).row(0)
    error = f" ±{spread / len(values) ** 0.5:.3f}".replace("±0", "±") if len(values) > 1 else ""
    return f"{mean:.3f}".removeprefix("0") + error
