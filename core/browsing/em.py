"""Expectation maximisation of a click model over pages, and the closed forms, which are its first division.

    parameter = (s v + sum of weight * favourable) / (s + sum of weight * decided)

over all impressions that decide it; s and v are the strength and the mean of its prior. Parameters by unit have one,
given or estimated from the log; those that all units share need none.

Sources: Dempster, Laird & Rubin 1977; Varadhan & Roland 2008 (SQUAREM); Chuklin, Markov & de Rijke 2015, chapter 4.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.beta_binomial import estimate_prior
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.priors import LARGEST_STRENGTH, BetaPrior

SMALLEST_PROBABILITY = 1e-6
"""Parameters keep this far from 0 and 1: at the ends, EM divides by zero, and a single click would be impossible."""

_FIRST_PRIOR = BetaPrior(0.5, 2.0)
_MOST_PRIORS = 40  # estimates of the prior, each from where EM came to rest
_PRIOR_CHANGE = 0.005  # of its mean, and of how far it draws a usual parameter: predictions do not notice less
_LONGEST_LEAP = 8.0  # in steps of a prior
_TINY = 1e-300


class TrainingPages(Protocol):
    """The pages of a log, batch by batch, as often as they are asked for."""

    @property
    def n_units(self) -> int:
        """J: units are numbered from 0 to J - 1 over all batches."""
        ...

    @property
    def n_positions(self) -> int:
        """K, the largest position."""
        ...

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches, always in the same order."""
        ...


class MadeOfRatios(Protocol):
    """What EM needs of a model; see `ClickModel`."""

    parameters: ClassVar[tuple[Parameter, ...]]
    rows_alone: ClassVar[bool]
    closed_form: ClassVar[bool]

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """By parameter, what pages say of it."""
        ...

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1 | clicks above)."""
        ...


@dataclass(frozen=True)
class FittedModel:
    """A click model with its parameters.

    Attributes:
        parameters: by name; see `Parameters`.
        priors: of the parameters by unit.
        decided: the expected number of decisions of each parameter that was found, same shapes.
        passes: that were made over the pages.
        converged: whether they ended by themselves.
    """

    parameters: Parameters
    priors: dict[str, BetaPrior]
    decided: dict[str, Floats]
    passes: int
    converged: bool


@dataclass(frozen=True)
class EMOptions:
    """How parameters are found.

    Attributes:
        prior: of parameters by unit; None estimates it from the log.
        passes: over the pages, at most.
        tolerance: the gain in log-likelihood per impression, over one cycle of three passes, at which they end.
        fixed: parameters that are given, and not found.
        start: where EM begins, on as many units and positions, and with which priors, which then stay.
    """

    prior: BetaPrior | None = None
    passes: int = 1000
    tolerance: float = 1e-8
    fixed: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    start: FittedModel | None = None


def fit(model: MadeOfRatios, pages: TrainingPages, options: EMOptions, on_pass: Callable[[], None]) -> FittedModel:
    """Find the parameters of a model.

    EM, accelerated (SQUAREM): from two steps the change is extrapolated, unless that would descend. Where the prior is
    estimated, that is done whenever EM has come to rest, until it changes nothing.

    Args:
        model: it.
        pages: to learn from.
        options: how.
        on_pass: is called after each pass over the pages.
    """
    batches = [batch.rows_alone() for batch in pages] if model.rows_alone else pages
    problem = _Problem(model, batches, pages.n_units, pages.n_positions, options, on_pass)
    values = problem.start()
    if not problem.wanted:
        return FittedModel(values, {}, {}, 0, converged=True)
    if model.closed_form:
        problem.step(values)
        problem.estimate_priors()
        values, converged = problem.divided(values), True
    else:
        values, rested = problem.climb(values)
        converged = rested and not problem.estimate_priors()
        for _ in range(_MOST_PRIORS):
            if converged or not rested:
                break
            values, rested = problem.climb(values)
            converged = rested and not problem.estimate_priors()
    return FittedModel(values, problem.priors, problem.decided, problem.passes, converged)


class _Problem:
    """EM's map on the pages of a log."""

    def __init__(
        self,
        model: MadeOfRatios,
        batches: Iterable[PageBatch],
        n_units: int,
        n_positions: int,
        options: EMOptions,
        on_pass: Callable[[], None],
    ) -> None:
        self.wanted = [parameter for parameter in model.parameters if parameter.name not in options.fixed]
        self._known = {p.name: p.prior for p in self.wanted if p.prior is not None and not options.fixed}
        self.priors = {
            p.name: self._known.get(p.name) or options.prior or _FIRST_PRIOR for p in self.wanted if p.shape == "unit"
        }
        if options.start is not None:
            self.priors = dict(options.start.priors)
        self.passes = 0
        self._model, self._batches, self._options, self._on_pass = model, batches, options, on_pass
        self._shapes = {p.name: p.dimensions(n_units, n_positions) for p in self.wanted}
        self._steps: list[dict[str, Floats]] = []
        self._sums: dict[str, Ratio] = {}
        self._impressions = 0.0

    def start(self) -> dict[str, Floats]:
        """Where EM begins."""
        if self._options.start is not None:
            return dict(self._options.start.parameters)
        return {p.name: np.full(self._shapes[p.name], p.start) for p in self.wanted} | dict(self._options.fixed)

    @property
    def decided(self) -> dict[str, Floats]:
        """The expected number of decisions at the last step."""
        return {name: ratio.decided for name, ratio in self._sums.items()}

    def step(self, values: Parameters) -> tuple[dict[str, Floats], float]:
        """One E-step and M-step from values, and the objective at these values."""
        names = [p.name for p in self.wanted]
        sums = {name: Ratio(np.zeros(self._shapes[name]), np.zeros(self._shapes[name])) for name in names}
        log_likelihood = impressions = 0.0
        for batch in self._batches:
            weight = batch.row_weight
            found = self._model.expected(values, batch)
            for parameter in self.wanted:
                ratio, total = found[parameter.name], sums[parameter.name]
                sums[parameter.name] = Ratio(
                    total.favourable + _by_index(parameter, batch, weight * ratio.favourable, total.favourable.shape),
                    total.decided + _by_index(parameter, batch, weight * ratio.decided, total.decided.shape),
                )
            log_likelihood += float((weight * log_of_clicks(self._model.given_clicks(values, batch), batch)).sum())
            impressions += float(weight.sum())
        self._sums, self._impressions = sums, impressions
        self.passes += 1
        self._on_pass()
        return self.divided(values), log_likelihood + self._log_prior(values)

    def divided(self, values: Parameters) -> dict[str, Floats]:
        """The M-step from the last sums; what nothing decides keeps its value."""
        divided = {p.name: _divided(self._sums[p.name], self.priors.get(p.name), values[p.name]) for p in self.wanted}
        return dict(values) | divided

    def climb(self, values: dict[str, Floats]) -> tuple[dict[str, Floats], bool]:
        """Cycles of SQUAREM until the objective hardly rises, and whether it came to that."""
        before = -np.inf
        while self.passes < self._options.passes:
            first, _ = self.step(values)
            second, objective = self.step(first)
            far = self._extrapolated(values, first, second)
            following, objective_far = self.step(far)
            if not objective_far >= objective:
                following = second
            if objective - before <= self._options.tolerance * max(self._impressions, 1.0):
                return following, True
            values, before = following, objective
        return values, False

    def estimate_priors(self) -> bool:
        """Estimate the priors from the last sums, where that is asked, and say whether that changed them."""
        if self._options.prior is not None or self._options.start is not None:
            return False
        before = self.priors
        self.priors = before | {
            name: estimate_prior(ratio.favourable[:-1], ratio.decided[:-1])
            for name, ratio in self._sums.items()
            if name in before and name not in self._known
        }
        changes = [
            max(abs(prior.mean - before[name].mean), self._change_of_strength(name, before[name], prior))
            for name, prior in self.priors.items()
        ]
        moved = max(changes, default=0.0) > _PRIOR_CHANGE
        if moved:
            self._leap(before)
        return moved

    def _leap(self, before: Mapping[str, BetaPrior]) -> None:
        """After two steps of the priors, go to where a geometric series of such steps ends (Aitken), or towards it."""
        self._steps.append({name: _coordinates(self.priors[name]) - _coordinates(before[name]) for name in before})
        if len(self._steps) < 2:  # noqa: PLR2004 - a first and a second step
            return
        first, second = self._steps
        self._steps = []
        for name, step in second.items():
            shrinks = np.divide(step, first[name], out=np.zeros(2), where=first[name] != 0)
            leap = np.where(shrinks > 0, shrinks / np.maximum(1 - shrinks, 1 / _LONGEST_LEAP), 0.0)
            self.priors[name] = _prior_at(_coordinates(self.priors[name]) + np.minimum(leap, _LONGEST_LEAP) * step)

    def _change_of_strength(self, name: str, before: BetaPrior, after: BetaPrior) -> float:
        """How far another strength moves a usual parameter, relative to its shrinkage s / (s + n).

        n is how often the parameter is decided that a usual decision is about. A prior that is much stronger than all
        data may become stronger still, and nothing changes.
        """
        decided = self._sums[name].decided
        usual = float((decided**2).sum() / max(decided.sum(), _TINY))
        return abs(np.log(after.strength / before.strength)) * usual / (min(before.strength, after.strength) + usual)

    def _extrapolated(self, start: Parameters, first: Parameters, second: Parameters) -> dict[str, Floats]:
        """x0 - 2 a r + a^2 v, with r = x1 - x0, v = x2 - 2 x1 + x0, a = -|r| / |v| (Varadhan & Roland's S3)."""
        names = [p.name for p in self.wanted]
        r = {name: first[name] - start[name] for name in names}
        v = {name: second[name] - first[name] - r[name] for name in names}
        squares = [sum(float((way[name] ** 2).sum()) for name in names) for way in (r, v)]
        length = max(1.0, np.sqrt(squares[0] / max(squares[1], _TINY)))
        return dict(second) | {
            name: _within(start[name] + 2 * length * r[name] + length**2 * v[name]) for name in names
        }

    def _log_prior(self, values: Parameters) -> float:
        """Of parameters by unit, s (v log x + (1 - v) log(1 - x))."""
        return sum(
            float((prior.pseudo_clicks * np.log(values[name]) + prior.pseudo_skips * np.log1p(-values[name])).sum())
            for name, prior in self.priors.items()
        )


def log_of_clicks(given_clicks: Floats, pages: PageBatch) -> Floats:
    """The logarithm of the probability of what happened, click or none, shape (N, L), bounded away from minus infinity.

    Args:
        given_clicks: the probability of a click, shape (N, L).
        pages: with clicks.
    """
    probability = _within(given_clicks)
    return np.log(np.where(pages.click, probability, 1 - probability))


def _coordinates(prior: BetaPrior) -> Floats:
    """A prior without bounds, shape (2,): the log-odds of its mean, and the logarithm of its strength."""
    return np.array([np.log(prior.mean / (1 - prior.mean)), np.log(prior.strength)])


def _prior_at(coordinates: Floats) -> BetaPrior:
    strength = min(float(np.exp(coordinates[1])), LARGEST_STRENGTH)
    return BetaPrior(1 / (1 + float(np.exp(-coordinates[0]))), strength)


def _within(probability: Floats) -> Floats:
    return np.array(np.clip(probability, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY))


def _by_index(parameter: Parameter, batch: PageBatch, rows: Floats, shape: tuple[int, ...]) -> Floats:
    """Rows of pages, shape (N, L), added up by what a parameter differs by."""
    if parameter.shape == "one":
        return np.asarray(rows.sum())
    if parameter.shape == "unit":
        index = batch.unit
    elif parameter.shape == "position":
        index = batch.position
    else:
        index = batch.position * shape[1] + batch.previous_click
    added: Floats = np.bincount(index.ravel(), weights=rows.ravel(), minlength=int(np.prod(shape))).astype(np.float64)
    return added.reshape(shape)


def _divided(ratio: Ratio, prior: BetaPrior | None, before: Floats) -> Floats:
    clicks, skips = (0.0, 0.0) if prior is None else (prior.pseudo_clicks, prior.pseudo_skips)
    decided = np.asarray(ratio.decided + clicks + skips)
    return _within(np.divide(ratio.favourable + clicks, decided, out=np.array(before), where=decided > 0))
