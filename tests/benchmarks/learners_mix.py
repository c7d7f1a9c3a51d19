"""Where relevance and position are mixed: the world of the experiments on disentangling relevance and bias.

    s = w label + (1 - w) noise      the logging ranker's score, both standardised; each page shows documents by s
    theta_k = 1 / k                  P(click | examined) = eps + (1 - eps) (2 ^ label - 1) / (2 ^ top - 1),  eps = .1

The noise is drawn for every page. At w = 0 documents stand at random, at w = 1 by relevance: no document then moves,
propensities are not identified, and `posbias fit` says so: what needs them has no figure (-). NDCG@5 on the labels of
held-out queries.

Source: Zhang et al. 2023 (Towards Disentangling Relevance and Bias in Unbiased Learning to Rank, KDD).
"""

import argparse
from typing import Any, cast

import numpy as np
import polars as pl
from learners_parts import Parts
from learners_rankers import cell
from learners_worlds import STOPPING, learn, learning_data, options_of, scores, with_validation
from processes import table_console
from rich.table import Table
from value_measure import CONDITIONAL, NAIVE, estimated, ndcg
from value_rows import Log
from value_worlds import CLICK_NOISE, FILES, FOLDS, HIGHEST_GRADE, SHOWN, Documents, Floats, Fold, Integers, Setting

from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.methods import learner_names
from posbias.core.simulation.simulate import draw_clicks, graded_attractiveness

WEIGHTS = (0.0, 0.2, 0.6, 0.8, 1.0)
DEPTH = 5
PAGES = 30_000

_SERIES = 7  # of random draws

METHODS: dict[str, tuple[str, dict[str, Any], str]] = {  # name: learner, its options, where propensities come from
    "linear": ("logistic", {"position_as_feature": False}, NAIVE),
    "linear, position as a feature": ("logistic", {}, NAIVE),
    "GBDT": ("naive", {}, NAIVE),
    "GBDT, position as a feature": ("position-feature", {}, NAIVE),
    "single tower": ("single-tower", {}, NAIVE),
    "PAL product": ("pal-product", {}, NAIVE),
    "PAL sum": ("pal-sum", {}, NAIVE),
    "PAL sum, observation dropout": ("pal-sum", {"observation_dropout": 0.5}, NAIVE),
    "PAL sum, gradient reversal": ("pal-sum", {"gradient_reversal": 0.1}, NAIVE),
    "DLA": ("dla", {}, NAIVE),
    "GBrank": ("gbrank", {}, CONDITIONAL),
    "pbm": ("pbm", {}, CONDITIONAL),
}


def run(words: list[str]) -> None:
    """Measure, and print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Parts.add_to(parser)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--datasets", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--weights", nargs="+", type=float, default=WEIGHTS)
    asked = parser.parse_args(words)
    parts, datasets = Parts.of(asked), [name for name in asked.datasets if FILES[name].exists()]
    tasks = [(name, weight, seed, asked.pages) for seed in parts.seeds for name in datasets for weight in asked.weights]
    if not tasks and not parts.merge:
        print("the judged documents are not here")
        return
    results = parts.measure(measure, tasks, "mix")
    for name in results["dataset"].unique(maintain_order=True):
        table = Table(
            title=f"{name}: NDCG@{DEPTH} by the weight of relevance in the logging ranker", title_justify="left"
        )
        table.add_column("learner")
        weights = results["weight"].unique().sort()
        for weight in weights:
            table.add_column(f"w = {weight:g}", justify="right")
        of_set = results.filter(pl.col("dataset") == name)
        for (method,), rows in of_set.group_by("method", maintain_order=True):
            cells = (cell(rows.filter(pl.col("weight") == weight)["ndcg"]) for weight in weights)
            table.add_row(str(method), *cells)
        table_console().print(table)


def measure(task: tuple[str, float, int, int]) -> pl.DataFrame:
    """One draw: `dataset`, `weight`, `seed`, `method`, `ndcg`."""
    name, weight, seed, n_pages = task
    documents = Documents.read(FILES[name])
    fold = _draw(documents, weight, n_pages, seed)
    theta = {NAIVE: np.ones(SHOWN), CONDITIONAL: _conditional(fold)}
    rows: list[dict[str, object]] = []
    for method, (learner, options, source) in METHODS.items():
        known = theta[source]
        if learner not in learner_names() or known is None:
            continue
        data = learning_data(fold, known)
        asked = options
        if learner in {"single-tower", "pal-product", "pal-sum"}:
            data, asked = with_validation(data, seed), {**options, **STOPPING}
        try:
            found = scores(learn(learner, data, options_of(seed, **asked)), fold)
            value = ndcg(documents, found, fold.held_out, DEPTH)
        except IdentifiabilityError:  # gbrank: no click rates that differ
            value = None
        rows.append({"dataset": name, "weight": weight, "seed": seed, "method": method, "ndcg": value})
    return pl.DataFrame(rows, schema_overrides={"ndcg": pl.Float64})


def _conditional(fold: Fold) -> Floats | None:
    """Propensities as `posbias fit` estimates them; None where it says that they are not identified."""
    try:
        return estimated(Log.of(fold.log), "conditional")
    except RuntimeError:
        return None


def _draw(documents: Documents, weight: float, n_pages: int, seed: int) -> Fold:
    """A log of two thirds of the queries."""
    rng = np.random.default_rng(np.random.SeedSequence([_SERIES, seed]))
    queries = rng.permutation(documents.n_queries)
    held_out = np.sort(queries[::FOLDS])
    training = np.setdiff1d(queries, held_out)
    label = documents.label.astype(np.float64)
    relevance = (label - label.mean()) / label.std()
    gamma = graded_attractiveness(documents.label, HIGHEST_GRADE, CLICK_NOISE)
    theta = Setting().examination
    visits = np.bincount(rng.integers(len(training), size=n_pages), minlength=len(training))
    parts: list[pl.DataFrame] = []
    for query, pages, session in np.column_stack([training, visits, np.cumsum(visits) - visits]).tolist():
        rows = cast("Integers", np.arange(*documents.start[query : query + 2].tolist()))
        score = weight * relevance[rows] + (1 - weight) * rng.standard_normal((pages, len(rows)))
        order: Integers = np.argsort(-score, axis=1, kind="stable")
        shown: Integers = rows[order[:, :SHOWN]]
        click = draw_clicks(gamma[shown], theta[: shown.shape[1]], rng)
        page, place = np.indices(shown.shape)
        columns: dict[str, Any] = {
            "session": session + page,
            "query": np.full(shown.shape, query),
            "doc": shown,
            "position": place + 1,
            "click": click,
        }
        parts.append(pl.DataFrame({name: values.ravel() for name, values in columns.items()}))
    log = pl.concat(parts, rechunk=True).sort("session", "position")
    log = log.cast({"session": pl.Int32, "query": pl.Int32, "doc": pl.Int32, "position": pl.Int32})
    return Fold(documents, held_out, training, np.zeros(len(label)), log)
