"""What decides the default of `--negatives`: how the pointwise layout comes to its labels, on logs with known truth.

    python tests/benchmarks/negatives.py [--seeds 6]

A world: documents have four features x, a hidden part and a logging score of standard deviation 1 that correlates with
both; logit gamma is linear in them. The production ranker shows 10 of 20 documents by its score (Plackett-Luce), and
theta = position ** -eta. A learner that is given x and the score then reads the pointwise rows, and ranks
queries that it has not seen.

Shown, as mean and standard deviation over the seeds:

* bias left: the pooled label, sum W+ / sum (W+ + W-), of documents shown at positions 6 to 10 by that of documents
  shown at 1 to 5, each divided by their mean gamma, over the middle fifth of gamma. 1 is none.
* label error: mean |pooled label - mean gamma| over the tenths of gamma and the shown positions.
* score : features: the coefficient that a logistic regression gives the logging score, by the mean of those of x. More
  than with true gamma says that it learns the ranker's own choices.
* NDCG@10 of the learnt ranking, gain gamma: of that regression, and of one that also has squares and products.

Found, and why the clamp is the default. Posterior labels lean on the prior, the more so the further down a document
stood. With one prior mean, documents that the ranker puts low are all labelled close to that mean, the bad ones too
high and the good ones too low: a straight line averages that out, and is as good as with true gamma; a learner that
can bend loses, on sparse logs, more than with naive clicks. With a mean by position the labels repeat the ranker's
choices. The clamp keeps a little bias, but both learners stay within .007 of true gamma, and within .011 where most
examined documents are clicked on a sparse log. On dense logs all but naive clicks and the prior 0.5:2 are within .005.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from posbias.core.arrays.count_table import CountTable, sum_by_number
from posbias.core.attractiveness.prior import (
    AttractivenessPrior,
    estimate_prior,
    posterior_by_position,
    shown_position,
)
from posbias.core.priors import BetaPrior
from posbias.core.simulation.simulate import draw_clicks
from posbias.core.theta.conditional import fit_conditional
from posbias.core.theta.linkage import find_linkage
from posbias.core.training.layouts.pointwise import expected_attractions, pointwise_rows, positive_and_shown
from posbias.core.training.weights import WeightOptions, click_weights

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DOCS, POSITIONS, FEATURES = 20, 10, 4
POSITION = np.arange(1, POSITIONS + 1)
TEST_QUERIES = 2_000
_BAND = (0.4, 0.6)  # as quantiles
_NEWTON_STEPS = 25
_TABLE_WIDTH = 130


@dataclass(frozen=True)
class Scenario:
    """A log to simulate.

    Attributes:
        name: what the table calls it.
        n_sessions: pages.
        n_queries: which arrive with frequency ~ rank ** -0.7.
        median: of gamma.
        score_quality: correlation of the logging score with logit gamma.
        ranker_strength: log odds per standard deviation of the logging score.
        eta: severity of the position bias.
    """

    name: str
    n_sessions: int = 20_000
    n_queries: int = 10_000
    median: float = 0.23
    score_quality: float = 0.5
    ranker_strength: float = 2.0
    eta: float = 1.0

    @property
    def examination(self) -> Floats:
        """Theta by position, shape (K,)."""
        return np.arange(1.0, POSITIONS + 1) ** -self.eta


SCENARIOS = (
    Scenario("sparse"),
    Scenario("middling", 40_000, 2_000),
    Scenario("dense", 60_000, 150),
    Scenario("sparse, few clicks", median=0.03),
    Scenario("sparse, many clicks", median=0.6),
    Scenario("sparse, weak position bias", eta=0.5),
    Scenario("sparse, logging score that says nothing", score_quality=0.0),
    Scenario("sparse, ranker that hardly varies", ranker_strength=6.0),
)


@dataclass(frozen=True)
class World:
    """Documents: features, shape (Q, D, 5), the logging score the last of them, and gamma, shape (Q, D)."""

    features: Floats
    gamma: Floats

    @classmethod
    def draw(cls, n_queries: int, scenario: Scenario, rng: np.random.Generator) -> "World":
        """Draw the documents of some queries."""
        noise = rng.standard_normal((n_queries, DOCS, FEATURES + 2))
        x = noise[..., :FEATURES]
        z = np.sqrt(0.6 / FEATURES) * x.sum(axis=-1) + np.sqrt(0.4) * noise[..., FEATURES]
        quality = scenario.score_quality
        score = quality * z + np.sqrt(1 - quality**2) * noise[..., FEATURES + 1]
        odds = scenario.median / (1 - scenario.median) * np.exp(1.2 * z)
        return cls(np.concatenate([x, score[..., np.newaxis]], axis=-1), odds / (1 + odds))


@dataclass(frozen=True)
class Log:
    """Counts per pair, and what is known of the pairs that were shown.

    Attributes:
        table: counts per pair and position.
        features: shape (J, 5).
        gamma: shape (J,).
    """

    table: CountTable
    features: Floats
    gamma: Floats

    @classmethod
    def simulate(cls, world: World, scenario: Scenario, rng: np.random.Generator) -> "Log":
        """Draw pages and clicks, and count them."""
        frequency = np.arange(1.0, scenario.n_queries + 1) ** -0.7
        query = rng.choice(scenario.n_queries, scenario.n_sessions, p=frequency / frequency.sum())
        score = scenario.ranker_strength * world.features[query, :, -1]
        doc = np.argsort(-score - rng.gumbel(size=score.shape), axis=1)[:, :POSITIONS]
        click = draw_clicks(world.gamma[query[:, np.newaxis], doc], scenario.examination, rng)
        row = ((query[:, np.newaxis] * DOCS + doc) * POSITIONS + np.arange(POSITIONS)).ravel()
        size = world.gamma.size * POSITIONS
        impressions = sum_by_number(row, np.ones(len(row)), size).reshape(-1, POSITIONS)
        clicks = sum_by_number(row, click.ravel().astype(np.float64), size).reshape(-1, POSITIONS)
        shown = impressions.any(axis=1)
        return cls(
            CountTable.from_dense(impressions[shown], clicks[shown]),
            world.features.reshape(-1, FEATURES + 1)[shown],
            world.gamma.ravel()[shown],
        )

    def labels(self, propensity: Floats, positive: Floats | None = None) -> Floats:
        """W+ and W-, shape (J, 2), as the pointwise layout has them."""
        number = np.arange(self.table.n_units)
        pairs = pl.DataFrame({"query": number, "doc": number, "signature": number})
        cells = pl.DataFrame({"position": POSITION})
        nothing = np.zeros(POSITIONS)
        weights = click_weights(cells, propensity, nothing, nothing, WeightOptions())
        return (
            pointwise_rows(pairs, positive_and_shown(self.table, weights, positive))["weight"].to_numpy().reshape(-1, 2)
        )


def estimated_examination(table: CountTable) -> Floats:
    """Theta by conditional estimation, at most 1."""
    propensity = fit_conditional(table, find_linkage(table)).theta
    return propensity / np.nanmax(propensity)


def all_labels(log: Log, truth: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Every way to label: its name, the theta that it uses, W+ and W-."""
    table = log.table
    yield "true gamma", "", log.labels(truth, table.sum_by_unit(table.impressions) * log.gamma)
    yield "naive clicks", "", log.labels(np.ones(POSITIONS))
    for source, theta in (("true", truth), ("estimated", estimated_examination(table))):
        yield "clamp", source, log.labels(theta)
        priors = {
            "0.5:2": AttractivenessPrior.from_beta(BetaPrior(0.5, 2)),
            "one mean": estimate_prior(table, theta, np.ones(POSITIONS, np.int64)),
            "by position": estimate_prior(table, theta, POSITION),
        }
        for name, prior in priors.items():
            gamma, _ = posterior_by_position(table, theta, prior, POSITION)
            yield f"posterior, {name}", source, log.labels(theta, expected_attractions(table, theta, gamma))


def with_products(features: Floats) -> Floats:
    """The features, their squares and their products, what a learner needs to bend."""
    first, second = np.triu_indices(features.shape[-1])
    return np.concatenate([features, features[..., first] * features[..., second]], axis=-1)


def learn(features: Floats, labels: Floats) -> Floats:
    """Coefficients of the logistic regression on weighted rows, the constant left out, by Newton's method."""
    x = np.column_stack([features, np.ones(len(features))])
    total = labels.sum(axis=1)
    beta = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        probability = 1 / (1 + np.exp(-(x @ beta)))
        curvature = (x * (total * probability * (1 - probability))[:, np.newaxis]).T @ x
        beta += cast("Floats", np.linalg.solve(curvature, x.T @ (labels[:, 0] - total * probability)))
    return beta[:-1]


def ndcg(features: Floats, gamma: Floats, coefficients: Floats) -> float:
    """Mean NDCG@10 of ranking by the coefficients, gain gamma."""
    discount = 1 / np.log2(np.arange(2, POSITIONS + 2))
    order = np.argsort(-(features @ coefficients), axis=1)[:, :POSITIONS]
    found = np.take_along_axis(gamma, order, axis=1) @ discount
    best = -np.sort(-gamma, axis=1)[:, :POSITIONS] @ discount
    return float((found / best).mean())


def pooled(labels: Floats, members: NDArray[np.bool_]) -> float:
    """The label of all these documents together."""
    positive, negative = labels[members].sum(axis=0)
    return float(positive / (positive + negative))


def bias_left(log: Log, labels: Floats) -> float:
    """Pooled label at the lower half of the page by that at the upper half, in a band of gamma."""
    position = shown_position(log.table, POSITION)
    shown = log.table.sum_by_unit(log.table.impressions)
    low, high = np.quantile(log.gamma, _BAND)
    in_band = (log.gamma > low) & (log.gamma < high)

    def relative(members: NDArray[np.bool_]) -> float:
        return pooled(labels, members) / float(np.average(log.gamma[members], weights=shown[members]))

    half = POSITIONS // 2
    return relative(in_band & (position > half)) / relative(in_band & (position <= half))


def label_error(log: Log, labels: Floats) -> float:
    """Mean |pooled label - mean gamma| over groups of gamma and shown position, weighted by impressions."""
    shown = log.table.sum_by_unit(log.table.impressions)
    group = np.floor(10 * log.gamma).astype(np.int64) * (POSITIONS + 1) + shown_position(log.table, POSITION)
    size = np.bincount(group, shown)
    positive, total, gamma = (np.bincount(group, of) for of in (labels[:, 0], labels.sum(axis=1), shown * log.gamma))
    kept = (size > 0) & (total > 0)
    return float(np.average(np.abs(positive[kept] / total[kept] - gamma[kept] / size[kept]), weights=size[kept]))


def measure(scenario: Scenario, seed: int) -> pl.DataFrame:
    """One seed: every way to label, and what it comes to."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    world, unseen = (World.draw(size, scenario, rng) for size in (scenario.n_queries, TEST_QUERIES))
    log = Log.simulate(world, scenario, rng)
    bent, unseen_bent = with_products(log.features), with_products(unseen.features)
    rows: list[dict[str, float | str]] = []
    for name, theta, labels in all_labels(log, scenario.examination):
        straight = learn(log.features, labels)
        rows.append(
            {
                "labels": name,
                "theta": theta,
                "bias left": bias_left(log, labels),
                "label error": label_error(log, labels),
                "score : features": float(straight[-1] / straight[:FEATURES].mean()),
                "NDCG, linear": ndcg(unseen.features, unseen.gamma, straight),
                "NDCG, quadratic": ndcg(unseen_bent, unseen.gamma, learn(bent, labels)),
            }
        )
    return pl.DataFrame(rows).with_columns(impressions_per_pair=log.table.impressions.sum() / log.table.n_units)


def report(scenario: Scenario, measured: pl.DataFrame) -> Table:
    """Lay out means and standard deviations over the seeds."""
    density = measured.select(pl.mean("impressions_per_pair")).item()
    title = f"{scenario.name}: {scenario.n_sessions:,} pages, {density:,.1f} impressions per pair"
    table = Table(title=title, title_justify="left")
    table.add_column("labels")
    table.add_column("theta")
    figures = measured.columns[2:-1]
    for figure in figures:
        table.add_column(figure, justify="right")
    for (name, theta), rows in measured.group_by("labels", "theta", maintain_order=True):
        values = [rows[figure].to_numpy() for figure in figures]
        table.add_row(str(name), str(theta), *(f"{value.mean():.3f} ± {value.std(ddof=1):.3f}" for value in values))
    return table


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    for scenario in SCENARIOS:
        seeds = track(range(options.seeds), description=scenario.name, console=Console(stderr=True))
        console.print(report(scenario, pl.concat([measure(scenario, seed) for seed in seeds])))


if __name__ == "__main__":
    main()
