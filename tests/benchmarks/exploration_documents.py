"""How soon the best documents are found, by what is shown in each round.

A query has 30 documents, of which 5 are shown on a page; a log of 20 pages of a weak ranker comes first. Then pages
come in rounds of 5. In each round all of them show, from the top, the 5 documents whose bounds reach furthest, or
that have the largest upper bounds, or the largest posterior means (greedy), or random ones. Theta is known here, so
that only the choice differs. Reach was chosen among eleven such rules on seeds from 1000 on.
"""

from collections.abc import Callable, Mapping

import numpy as np
from recovery_logs import Floats, in_parallel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.arrays.count_table import CountTable
from posbias.core.attractiveness.posterior import posterior
from posbias.core.exploration.documents import upper_bounds
from posbias.core.priors import BetaPrior

_QUERIES, _DOCUMENTS, _SHOWN = 40, 30, 5
_PAGES_BEFORE, _PAGES, _ROUNDS = 20, 5, 60
_LOOKS = (10, 20, 40, 60)
_SHAPE = (1.0, 2.0)
_THETA = 1 / np.arange(1.0, _SHOWN + 1)
_NORMAL = 1.96

Choice = Callable[[Floats, Floats, np.random.Generator], Floats]

CHOICES: Mapping[str, Choice] = {
    "reach": lambda mean, sd, _: _reach(mean, sd),
    "upper bound": lambda mean, sd, _: upper_bounds(mean, sd),
    "mean + 1.96 std_dev": lambda mean, sd, _: mean + _NORMAL * sd,
    "mean (greedy)": lambda mean, _sd, _rng: mean,
    "random": lambda mean, _, rng: rng.random(len(mean)),
}


def _reach(mean: Floats, std_dev: Floats) -> Floats:
    by_query = mean.reshape(_QUERIES, _DOCUMENTS)
    best = -np.sort(-by_query, axis=1)[:, _SHOWN - 1 : _SHOWN]
    return upper_bounds(mean, std_dev) - np.maximum(by_query, best).ravel()


class _Log:
    """The counts of all documents by position, in memory."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.true = self.rng.beta(*_SHAPE, (_QUERIES, _DOCUMENTS))
        self.impressions = np.zeros((_QUERIES * _DOCUMENTS, _SHOWN))
        self.clicks = np.zeros_like(self.impressions)
        score = self.true + self.rng.normal(0, 0.3, self.true.shape)
        for _ in range(_PAGES_BEFORE):
            self.show(score + self.rng.gumbel(0, 0.1, score.shape), 1)

    def show(self, score: Floats, pages: int) -> None:
        """Show the documents with the largest scores of each query, shape (queries, documents)."""
        shown = np.argsort(-score, axis=1, kind="stable")[:, :_SHOWN]
        row = (shown + np.arange(_QUERIES)[:, None] * _DOCUMENTS).ravel()
        position = np.tile(np.arange(_SHOWN), _QUERIES)
        rate = np.take_along_axis(self.true, shown, 1) * _THETA
        self.impressions[row, position] += pages
        self.clicks[row, position] += self.rng.binomial(pages, rate).ravel()

    def belief(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of each document's attractiveness."""
        a, b = _SHAPE
        table = CountTable.from_dense(self.impressions, self.clicks)
        return posterior(table, _THETA, BetaPrior(a / (a + b), a + b))

    def quality(self, score: Floats) -> tuple[float, float]:
        """Of the documents with the largest scores: the share that is of the best, and the regret a page."""
        best = -np.sort(-self.true, axis=1)[:, :_SHOWN]
        chosen = np.take_along_axis(self.true, np.argsort(-score, axis=1, kind="stable")[:, :_SHOWN], 1)
        share = (chosen >= best[:, -1:]).mean()
        return float(share), float(((best - chosen) * _THETA).sum(axis=1).mean())


def measure(task: tuple[str, int]) -> Floats:
    """After the rounds that are looked at: the share of the best that are known, clicks missed, clicks paid so far."""
    name, seed = task
    log, found, regret = _Log(seed), list[list[float]](), 0.0
    for number in range(1, _ROUNDS + 1):
        score = CHOICES[name](*log.belief(), log.rng).reshape(_QUERIES, _DOCUMENTS)
        regret += log.quality(score)[1]
        log.show(score, _PAGES)
        if number in _LOOKS:
            known, missed = log.quality(log.belief()[0].reshape(_QUERIES, _DOCUMENTS))
            found.append([known, missed, regret / number])
    return np.array(found)


def documents(console: Console, replications: int) -> None:
    """Draw, choose, show, and print the table."""
    tasks = [(name, seed) for name in CHOICES for seed in range(replications)]
    results = np.array(in_parallel(measure, tasks, "documents")).reshape(len(CHOICES), replications, len(_LOOKS), 3)
    table = Table(
        title=f"the {_SHOWN} best of {_DOCUMENTS} documents, {_QUERIES} queries, {replications} times",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("shown by", no_wrap=True)
    for rounds in _LOOKS:
        table.add_column(f"known\n{rounds}", justify="right", no_wrap=True)
    for what in ("missed", "paid"):
        table.add_column(what, justify="right", no_wrap=True)
    for name, rows in zip(CHOICES, results.mean(axis=1), strict=True):
        table.add_row(name, *(f"{share:.1%}" for share in rows[:, 0]), *(f"{clicks:.3f}" for clicks in rows[-1, 1:]))
    console.print(table)
    console.print("  known: share of the best that are among the five largest means, after so many rounds;")
    console.print("  missed: expected clicks a page that these five have less than the best, after the last round;")
    console.print("  paid: expected clicks a page that the documents shown had less, on average over the rounds")
