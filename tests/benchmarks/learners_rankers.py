"""NDCG@10 of the learners, on the true labels of queries that no click was seen for.

The prototypes' figures stand beside: a comparison learner that a bug makes look bad would be no comparison.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import polars as pl
from learners_parts import Parts
from learners_unrepeated import Unrepeated
from learners_worlds import STOPPING, learn, learning_data, options_of, propensities, scores, with_validation
from processes import table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from value_learners import lambdarank
from value_measure import CONDITIONAL, NAIVE, TRUE, judged_rows, ndcg
from value_worlds import FILES, FOLDS, Documents, Floats, Fold, Setting, draw_folds

from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.data import LearningData
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
    "no pair repeats": Setting(EXAMPLE, 6_000),
}
UNREPEATED = "no pair repeats"
LEAF_ROWS = 50  # there, where a document is one impression: as in the prototype

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

_BESIDE = (*list(SETTINGS)[:3], "error of theta", "CPU s")


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
        Variant("pbm, true propensities", "pbm", source=TRUE),
        Variant("gbrank, raw", "gbrank", (("corrected", False),)),
        Variant("logistic, no position", "logistic", (("position_as_feature", False),)),
        Variant("pal-sum, dropout", "pal-sum", (("observation_dropout", 0.5),), networks=True),
        Variant("pal-sum, reversal", "pal-sum", (("gradient_reversal", 0.1),), networks=True),
    ]
    return found + [variant for variant in more if variant.learner in learner_names()]


def run(words: list[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    Parts.add_to(parser)
    parser.add_argument("--only", default="", help="learners, separated by commas")
    parser.add_argument("--settings", default="", help="separated by semicolons")
    parser.add_argument("--quick", action="store_true", help="one seed of one setting")
    asked = parser.parse_args(words)
    names = [name for name in asked.settings.split(";") if name] or list(SETTINGS)[: 1 if asked.quick else None]
    parts = Parts.of(asked)
    tasks = [
        (name, seed, fold, asked.only)
        for seed in (parts.seeds[:1] if asked.quick else parts.seeds)
        for name in sorted(names, key=lambda name: name != UNREPEATED)  # what takes longest begins first
        for fold in range(FOLDS)
        if FILES[SETTINGS[name].dataset].exists()
    ]
    if not tasks and not parts.merge:
        print("the judged documents are not here")
        return
    found = parts.measure(measure, tasks, "learners")
    print_table(found, [name for name in SETTINGS if name in found["setting"]])


def measure(task: tuple[str, int, int, str]) -> pl.DataFrame:
    """One fold of a setting: `setting`, `seed`, `fold`, `method`, `ndcg`, `theta_error`, `seconds`."""
    name, seed, number, only = task
    setting = SETTINGS[name]
    documents = Documents.read(FILES[setting.dataset])
    fold = next(islice(draw_folds(documents, setting, seed), number, None))
    wanted = [variant for variant in variants() if not only or variant.learner in only.split(",")]
    said = {"setting": name, "seed": seed, "fold": number}
    rows: list[dict[str, object]] = []
    rows.append({**said, "method": LOGGING, "ndcg": ndcg(documents, fold.logging_score, fold.held_out, DEPTH)})
    best = lambdarank(judged_rows(fold), documents.features)
    rows.append({**said, "method": LABELS, "ndcg": ndcg(documents, best, fold.held_out, DEPTH)})
    seen = _seen(name, fold, seed, setting.examination)
    rows += [{**said, **_measured(variant, fold, seen, seed, setting)} for variant in wanted]
    return pl.DataFrame(rows, schema=_MEASURED)


def _seen(name: str, fold: Fold, seed: int, truth: Floats) -> dict[str, LearningData]:
    """The log as learners see it, by where its propensities come from."""
    if name == UNREPEATED:
        log = Unrepeated.of(fold, seed)
        return {source: log.data(theta) for source, theta in log.propensities(truth, seed).items()}
    return {source: learning_data(fold, theta) for source, theta in propensities(fold, truth).items()}


def _measured(
    variant: Variant, fold: Fold, seen: dict[str, LearningData], seed: int, setting: Setting
) -> dict[str, object]:
    data = seen[variant.source]
    options = dict(variant.options)
    if variant.networks:
        data, options = with_validation(data, seed), {**options, **STOPPING}
    asked = options_of(seed, **options)
    if setting is SETTINGS[UNREPEATED]:
        asked = replace(asked, trees=replace(asked.trees, leaf_rows=LEAF_ROWS))
    start = time.process_time()
    try:
        learned = learn(variant.learner, data, asked)
    except IdentifiabilityError:
        return {"method": variant.name}
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
    """Two tables, a row per learner: NDCG, mean and standard error over seeds and folds; and what else is known."""
    worth = _table(f"NDCG@{DEPTH} of rankers from clicks, ± standard error over seeds and folds", settings)
    beside = _table("the same with other code, error of the learner's own theta, cost", _BESIDE)
    for (method,), rows in results.group_by("method", maintain_order=True):
        worth.add_row(str(method), *(cell(rows.filter(pl.col("setting") == name)["ndcg"]) for name in settings))
        known = ["-" if value is None else f"{value:.3f}"[1:] for value in PROTOTYPES.get(str(method), ())]
        repeated = rows.filter(pl.col("setting") != UNREPEATED)
        error, seconds = repeated.select(pl.col("theta_error").mean(), pl.col("seconds").median()).row(0)
        found = ("" if error is None else f"{error:.2f}", "" if seconds is None else f"{seconds:.1f}")
        if any((*known, *found)):
            beside.add_row(str(method), *(known or [""] * 3), *found)
    table_console().print(worth, beside)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("learner", *columns):
        table.add_column(name, justify="left" if name == "learner" else "right", no_wrap=True)
    return table


def cell(values: pl.Series) -> str:
    """A mean and its standard error."""
    values = values.drop_nulls()
    if not len(values):
        return "-"
    mean, spread = values.to_frame("value").select(mean=pl.col("value").mean(), spread=pl.col("value").std()).row(0)
    error = f" ±{spread / len(values) ** 0.5:.3f}".replace("±0", "±") if len(values) > 1 else ""
    return f"{mean:.3f}".removeprefix("0") + error
