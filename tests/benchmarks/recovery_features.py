"""Theta where no (query, document) pair repeats: `--method features`, beside what else could be done.

    python tests/benchmarks/recovery.py features [--replications 67]

Pages of 20 documents, each seen once, of which 10 are shown; relevance is a sigmoid of six features, some of them
bent or in products, and the ranker orders by a score, with noise:

    weak            the score is made of features
    hidden+score    the score also knows relevance beyond what trees of the size learn; it is a feature
    unseen+score    each document has relevance that no feature shows and the score does; the score is a feature
    unseen          the same, and the score is not known: nothing can be right, and the command says so

Constants are those of the design and were chosen on none of these worlds; the seeds are those from 0. Replications are
logs per world, of 5,000 pages. Errors are clustered by page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.arrays.count_table import Floats
from posbias.core.exposure.estimate import FittedExposure
from posbias.core.exposure.nuisances import LearningRows, learn_nuisances, tree_options
from posbias.core.exposure.regression_em import regression_em
from posbias.core.exposure.strata import ExposureCounts, ScoredRows, StratumEdges
from posbias.core.learners.boosting import BinnedRows, bin_rows
from posbias.core.learners.links import sigmoid
from posbias.core.standard_errors.cluster import errors_from_sums
from posbias.core.theta.conditional import fit_conditional
from posbias.core.theta.linkage import find_linkage

WORLDS = ("weak", "hidden+score", "unseen+score", "unseen")
PAGES, SHOWN = 5_000, 10
COMPARED = 5
"""Logs per world for regression EM, and for the world in which nothing is right."""

_DOCUMENTS, _FEATURES = 20, 6
_TEMPERATURE = 0.4
_THETA: Floats = 1 / np.arange(1.0, SHOWN + 1)
_SERIES = 17  # of random draws


@dataclass(frozen=True)
class World:
    """A log.

    Attributes:
        features: of each row, shape (n, F).
        rows: where they were shown, and which were clicked.
        page: of each row, shape (n,).
        relevance: the truth, shape (n,).
    """

    features: Floats
    rows: LearningRows
    page: NDArray[np.int64]
    relevance: Floats


def draw_world(kind: str, seed: int, pages: int = PAGES) -> World:
    """Draw a log."""
    draws = np.random.default_rng(np.random.SeedSequence([_SERIES, seed]))
    x, unseen = draws.normal(size=(pages, _DOCUMENTS, _FEATURES)), draws.normal(size=(pages, _DOCUMENTS))
    shown_by_features = 1.2 * x[..., 0] + 0.8 * np.abs(x[..., 1]) + 0.8 * x[..., 2] * (x[..., 3] > 0)
    relevance = shown_by_features - 0.4 * x[..., 4] - 2.5
    score = 0.6 * x[..., 0] + 0.6 * x[..., 2] + 0.5 * x[..., 5]
    if kind.startswith("hidden"):
        score = 0.5 * score + 0.6 * relevance
    if kind.startswith("unseen"):
        relevance, score = relevance + 0.8 * unseen, 0.6 * score + 0.6 * unseen
    score = score / score.std()
    race = cast("Floats", score / _TEMPERATURE + draws.gumbel(size=score.shape))
    order = np.argsort(-race, axis=1)[:, :SHOWN]

    def shown(values: Floats) -> Floats:
        return np.take_along_axis(values, order, axis=1).ravel()

    cell, page = np.tile(np.arange(SHOWN), pages), np.repeat(np.arange(pages), SHOWN)
    true = sigmoid(shown(relevance))
    click = (draws.random(len(cell)) < _THETA[cell] * true).astype(np.float64)
    columns = [shown(x[..., number]) for number in range(_FEATURES)]
    columns += [shown(score)] if kind.endswith("score") else []
    fold, context = draws.integers(2, size=pages)[page], np.zeros(SHOWN, np.int64)
    rows = LearningRows(cell, click, np.ones(len(cell)), fold, np.arange(1, SHOWN + 1), context)
    return World(np.stack(columns, axis=1), rows, page, true)


@dataclass(frozen=True)
class Found:
    """What one log gave, each array by position from 2 on.

    Attributes:
        by_method: log theta less the truth, by method.
        std_error: of the features method.
        covered: whether its interval holds the truth.
    """

    by_method: dict[str, Floats]
    std_error: Floats
    covered: NDArray[np.bool_]


def estimate(world: World, seed: int, *, with_em: bool) -> Found:
    """Estimate theta in every way."""
    rows = world.rows
    features = bin_rows(world.features, [f"f{n}" for n in range(world.features.shape[1])], [], tree_options(1))
    learned = learn_nuisances(features, rows)
    edges = StratumEdges.of(learned.scores, learned.places, rows.fold)
    stratum = edges.stratum(learned.scores, learned.places, rows.fold)
    scored = ScoredRows(stratum, rows.cell, sigmoid(learned.scores), rows.click, rows.weight)
    table = ExposureCounts.of(scored, edges.n_strata, SHOWN).table(rows.context)
    fitted = FittedExposure(table, fit_conditional(table, find_linkage(table)), rows.context, edges.n_strata)
    errors = errors_from_sums(fitted.fit.log_theta, fitted.fit.free_cells, fitted.sums_of(scored, world.page))
    clicks = rows.sum_by_cell(rows.click)
    thetas = {
        "click rates": clicks / rows.sum_by_cell(np.ones(len(rows.cell))),
        **({"regression EM": _em(features, rows, seed)} if with_em else {}),
        "moment": learned.theta,
        "features": fitted.fit.theta,
        "true relevance": clicks / rows.sum_by_cell(world.relevance),
    }
    covered = (errors.low <= _THETA) & (errors.high >= _THETA)
    off = {name: np.log(theta / theta[0] / _THETA)[1:] for name, theta in thetas.items()}
    return Found(off, errors.std_error[1:], covered[1:])


def _em(features: BinnedRows, rows: LearningRows, seed: int) -> Floats:
    return regression_em(features, rows, seed)


def study(kind: str, replications: int) -> Iterator[Found]:
    """The logs of one world."""
    number = min(replications, COMPARED) if kind == "unseen" else replications
    for seed in range(number):
        yield estimate(draw_world(kind, seed), seed, with_em=seed < COMPARED)


def print_table(console: Console, found: dict[str, list[Found]]) -> None:
    """Mean relative error by method, and what the intervals are worth."""
    table = Table(
        box=SIMPLE_HEAD, title="mean |relative error| of theta where no pair repeats, and intervals of features"
    )
    for name in ("world", "logs", *_METHODS, "bias", "rms z", "coverage"):
        table.add_column(name, justify="left" if name == "world" else "right")
    for kind, logs in found.items():
        errors = {name: [log.by_method[name] for log in logs if name in log.by_method] for name in _METHODS}
        means = [f"{np.abs(np.expm1(np.stack(off))).mean():.3f}" if off else "-" for off in errors.values()]
        off = np.stack(errors["features"])
        ratio = off / np.stack([log.std_error for log in logs])
        covered = np.stack([log.covered for log in logs])
        table.add_row(
            *(kind, str(len(logs)), *means),
            *(f"{off.mean():+.3f}", f"{np.sqrt((ratio**2).mean()):.2f}", f"{covered.mean():.1%}"),
        )
    console.print(table)


_METHODS = ("click rates", "regression EM", "moment", "features", "true relevance")


def features(console: Console, replications: int) -> None:
    """Measure, and print the table."""
    print_table(console, {kind: list(study(kind, replications)) for kind in WORLDS})
