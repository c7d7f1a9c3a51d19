"""Expectation maximisation of a click model over pages, and the closed forms, which are its first division.

    parameter = (s v + sum of weight * favourable) / (s + sum of weight * decided)

over all impressions that decide it; s and v are the strength and the mean of its prior. Parameters by unit have one,
given or estimated from the log; those that all units share need none.

Sources: Dempster, Laird & Rubin 1977; Varadhan & Roland 2008 (SQUAREM); Chuklin, Markov & de Rijke 2015, chapter 4.

A pass over pages adds up how often each parameter was decided, and how often in its favour: impression by impression,
in their order, so that sums by unit do not depend on what is a batch. One batch is in memory at a time: threads would
gain little, as most steps are short, and hold several.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from posbias.core.browsing import parameters
from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.likelihood import log_of_clicks, log_of_decisions, within
from posbias.core.browsing.parameters import MEANS, STRENGTHS, Parameter, Parameters, Ratio, estimate_prior
from posbias.core.browsing.signatures import Signatures
from posbias.core.browsing.uncertain import Certain
from posbias.core.priors import BetaPrior


@dataclass(frozen=True)
class Decisions:
    """What a batch says.

    Attributes:
        pages: the batch.
        ratios: by parameter, weighted, shape (N, L).
        impressions: with their weights.
        log_likelihood: of its clicks; 0 where nobody asked.
    """

    pages: PageBatch
    ratios: Mapping[str, Ratio]
    impressions: float
    log_likelihood: float = 0.0


@dataclass(frozen=True)
class Sums:
    """What all batches say.

    Attributes:
        ratios: by parameter, in its shape.
        impressions: with their weights.
        log_likelihood: of all clicks; 0 where nobody asked.
    """

    ratios: Mapping[str, Ratio]
    impressions: float
    log_likelihood: float


def add_up(
    of_batch: Callable[[PageBatch], Decisions],
    pages: Iterable[PageBatch],
    parameters: Sequence[Parameter],
    known: Sums,
) -> Sums:
    """The sums of all batches, and what is known besides.

    Args:
        of_batch: what a batch says.
        pages: the batches.
        parameters: of which.
        known: sums of these, to which those of the pages are added.
    """
    ratios = {name: Ratio(ratio.favourable.copy(), ratio.decided.copy()) for name, ratio in known.ratios.items()}
    impressions, log_likelihood = known.impressions, known.log_likelihood
    for found in map(of_batch, pages):
        for parameter in parameters:
            ratio, total = found.ratios[parameter.name], ratios[parameter.name]
            _add(parameter, found.pages, ratio.favourable, total.favourable)
            _add(parameter, found.pages, ratio.decided, total.decided)
        impressions += found.impressions
        log_likelihood += found.log_likelihood
    return Sums(ratios, impressions, log_likelihood)


def _add(parameter: Parameter, pages: PageBatch, rows: Floats, total: Floats) -> None:
    """Add rows of pages, shape (N, L), to a total by what a parameter differs by."""
    if parameter.shape == "one":
        total += rows.sum()
        return
    if parameter.shape == "unit":
        index = pages.unit
    elif parameter.shape == "position":
        index = pages.position
    else:
        index = pages.position * total.shape[1] + pages.previous_click
    np.add.at(total.reshape(-1), index.ravel(order="F"), rows.ravel(order="F"))


class MadeOfRatios(Protocol):
    """What EM needs of a model; see `ClickModel`."""

    parameters: ClassVar[tuple[Parameter, ...]]
    closed_form: ClassVar[bool]
    statistics_columns: ClassVar[tuple[str, ...]]

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """By parameter, what pages say of it."""
        ...

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1 | clicks above)."""
        ...

    def certain(self, pages: PageBatch) -> Flags:
        """Which impressions say the same whatever the parameters."""
        ...


@dataclass(frozen=True)
class Expectation:
    """What pages say of the parameters of a model, weighted.

    Attributes:
        model: it.
        parameters: those that are wanted.
        multiplicity: how many units of the log each unit of the pages stands for, shape (J + 1,), where they are
            signatures; None where each stands for itself.
    """

    model: MadeOfRatios
    parameters: Sequence[Parameter]
    multiplicity: Floats | None

    def decisions(self, values: Parameters, pages: PageBatch) -> Decisions:
        """At these values."""
        return self._weighted(values, pages, pages.row_weight)

    def decisions_and_likelihood(self, values: Parameters, pages: PageBatch) -> Decisions:
        """The same, and the logarithm of the probability of the clicks."""
        logs = log_of_clicks(self.model.given_clicks(values, pages), pages)
        log_likelihood = float((self._of_all_units(pages.row_weight, pages) * logs).sum())
        return replace(self.decisions(values, pages), log_likelihood=log_likelihood)

    def certain(self, values: Parameters, pages: PageBatch) -> Decisions:
        """What impressions say that say the same at any values."""
        return self._weighted(values, pages, pages.row_weight * self.model.certain(pages))

    def _weighted(self, values: Parameters, pages: PageBatch, weight: Floats) -> Decisions:
        found, of_all = self.model.expected(values, pages), self._of_all_units(weight, pages)
        ratios = {p.name: found[p.name].times(weight if p.shape == "unit" else of_all) for p in self.parameters}
        return Decisions(pages, ratios, float(of_all.sum()))

    def _of_all_units(self, weight: Floats, pages: PageBatch) -> Floats:
        """The weight of an impression, of all units of its signature, shape (N, L)."""
        return weight if self.multiplicity is None else weight * self.multiplicity[pages.unit]


_FIRST_PRIOR = BetaPrior(0.5, 2.0)
_MOST_PRIORS = 40  # estimates of the prior, each from where EM came to rest
_PRIOR_CHANGE = 0.005  # of its mean, and of how far it draws a usual parameter: predictions do not notice less
_LONGEST_LEAP = 8.0  # in steps of a prior
_MOST_LEAPS = 6  # which may go to and fro around where the steps themselves come to rest
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
        """The batches, always in the same order; small ones are faster."""
        ...

    def uncertain(self, certain: Certain) -> "TrainingPages":
        """The pages without the impressions that say the same whatever the parameters; see `ClickModel.certain`."""
        ...

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Units with equal rows once; see `posbias.core.browsing.signatures`.

        Args:
            columns: by which rows are told apart, `position` and perhaps `previous_click`.
        """
        ...


@dataclass(frozen=True)
class FittedModel:
    """A click model with its parameters.

    Attributes:
        parameters: by name; see `Parameters`.
        priors: of the parameters by unit.
        decided: of those that all units share and were found, the expected number of decisions, in their shapes.
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
    alike = _equal_units_stay_equal(model, options)
    problem = _Problem(model, pages.signatures(model.statistics_columns) if alike else pages, options, on_pass)
    values = problem.start()
    if not problem.wanted:
        return FittedModel(values, {}, {}, 0, converged=True)
    if model.closed_form:
        problem.step(values)
        problem.estimate_priors(problem.counts)
        values, converged = problem.divided(values), True
    else:
        problem.ask_once(values)
        values, rested = problem.climb(values)
        converged = rested and not problem.estimate_priors(problem.effective_counts(values))
        for _ in range(_MOST_PRIORS):
            if converged or not rested:
                break
            values, rested = problem.climb(values)
            converged = rested and not problem.estimate_priors(problem.effective_counts(values))
    return FittedModel(problem.of_all_units(values), problem.priors, problem.decided, problem.passes, converged)


def _equal_units_stay_equal(model: MadeOfRatios, options: EMOptions) -> bool:
    """Whether EM makes several passes over impressions that each stand for themselves, with nothing given by unit."""
    given = any(p.shape == "unit" and p.name in options.fixed for p in model.parameters)
    return bool(model.statistics_columns) and not model.closed_form and not given


class _Problem:
    """EM's map on the pages of a log, or on its signatures, each of which counts as often as it occurs."""

    def __init__(
        self,
        model: MadeOfRatios,
        pages: TrainingPages | Signatures,
        options: EMOptions,
        on_pass: Callable[[], None],
    ) -> None:
        self.wanted = [parameter for parameter in model.parameters if parameter.name not in options.fixed]
        self._given = {p.name: p.prior for p in self.wanted if p.prior is not None and not options.fixed}
        self.priors = {
            p.name: self._given.get(p.name) or options.prior or _FIRST_PRIOR for p in self.wanted if p.shape == "unit"
        }
        if options.start is not None:
            self.priors = dict(options.start.priors)
        self.passes = 0
        self._model, self._pages, self._options, self._on_pass = model, pages, options, on_pass
        self._expectation = Expectation(
            model, self.wanted, pages.multiplicity if isinstance(pages, Signatures) else None
        )
        self._shapes = {p.name: p.dimensions(pages.n_units, pages.n_positions) for p in self.wanted}
        self._known = self._sums = self._nothing()
        self._steps: list[dict[str, Floats]] = []
        self._leaps = 0

    def start(self) -> dict[str, Floats]:
        """Where EM begins."""
        if self._options.start is not None:
            return self._of_one_unit_each(self._options.start.parameters)
        return {p.name: np.full(self._shapes[p.name], p.start) for p in self.wanted} | dict(self._options.fixed)

    def ask_once(self, values: Parameters) -> None:
        """Add up what some impressions say whatever the parameters, and go on with the others."""
        of_certain = partial(self._expectation.certain, values)
        self._known = add_up(of_certain, self._pages, self.wanted, self._known)
        self._pages = self._pages.uncertain(self._model.certain)

    def _nothing(self) -> Sums:
        sums = {name: Ratio(np.zeros(shape), np.zeros(shape)) for name, shape in self._shapes.items()}
        return Sums(sums, 0.0, 0.0)

    def of_all_units(self, values: Parameters) -> dict[str, Floats]:
        """The parameters of all units, where those of their signatures were found."""
        by_unit = {p.name for p in self.wanted if p.shape == "unit"}
        if not isinstance(self._pages, Signatures):
            return dict(values)
        of_unit = self._pages.of_unit
        return {name: one[of_unit] if name in by_unit else one for name, one in values.items()}

    def _of_one_unit_each(self, values: Parameters) -> dict[str, Floats]:
        """The way back."""
        if not isinstance(self._pages, Signatures):
            return dict(values)
        by_unit = {p.name for p in self.wanted if p.shape == "unit"}
        of_one = self._pages.of_one_unit_each
        return {name: of_one(one) if name in by_unit else one for name, one in values.items()}

    @property
    def decided(self) -> dict[str, Floats]:
        """The expected number of decisions at the last step, of what all units share."""
        return {p.name: self._sums.ratios[p.name].decided for p in self.wanted if p.shape != "unit"}

    def step(self, values: Parameters) -> dict[str, Floats]:
        """One E-step and M-step from values."""
        self._sum_up(partial(self._expectation.decisions, values))
        return self.divided(values)

    def step_and_objective(self, values: Parameters) -> tuple[dict[str, Floats], float]:
        """The same, and the objective at these values, which takes half as long again."""
        self._sum_up(partial(self._expectation.decisions_and_likelihood, values))
        return self.divided(values), self._sums.log_likelihood + self._log_of_known(values)

    def _sum_up(self, of_batch: Callable[[PageBatch], Decisions]) -> None:
        self._sums = self._known  # the memory of the last ones is needed for the new ones
        self._sums = add_up(of_batch, self._pages, self.wanted, self._known)
        self.passes += 1
        self._on_pass()

    def divided(self, values: Parameters) -> dict[str, Floats]:
        """The M-step from the last sums; what nothing decides keeps its value."""
        ratios = self._sums.ratios
        divided = {
            p.name: _divided(_with_prior(ratios[p.name], self.priors.get(p.name)), values[p.name]) for p in self.wanted
        }
        return dict(values) | divided

    def climb(self, values: dict[str, Floats]) -> tuple[dict[str, Floats], bool]:
        """Cycles of SQUAREM until the objective hardly rises, and whether it came to that."""
        before = -np.inf
        while self.passes < self._options.passes:
            first = self.step(values)
            second, objective = self.step_and_objective(first)
            far = self._extrapolated(values, first, second)
            values = second
            del first, second  # large: the last step needs their memory
            following, objective_far = self.step_and_objective(far)
            if objective_far >= objective:
                values = following
            if objective - before <= self._options.tolerance * max(self._sums.impressions, 1.0):
                return values, True
            before = objective
        return values, False

    @property
    def counts(self) -> dict[str, Ratio]:
        """The counts of the last step of each parameter whose prior is estimated: evidence where nothing is hidden."""
        return {p.name: self._sums.ratios[p.name] for p in self._of_estimated_prior}

    def effective_counts(self, values: Parameters) -> dict[str, Ratio]:
        """What the log says of each parameter whose prior is estimated; see `posbias.core.browsing.parameters`.

        One more pass, after which the last step has no sums by unit any more: both are large.
        """
        wanted = self._of_estimated_prior
        if not wanted:
            return {}
        shared = {p.name: self._sums.ratios[p.name] for p in self.wanted if p.shape != "unit"}
        self._sums = replace(self._sums, ratios=shared)

        def of_batch(pages: PageBatch) -> Decisions:
            found, weight = self._model.expected(values, pages), pages.row_weight
            ratios = {p.name: parameters.of_rows(found[p.name], values[p.name][pages.unit]) for p in wanted}
            return Decisions(pages, {name: ratio.times(weight) for name, ratio in ratios.items()}, 0.0)

        certain = {p.name: self._known.ratios[p.name] for p in wanted}
        sums = add_up(of_batch, self._pages, wanted, Sums(certain, 0.0, 0.0))
        self.passes += 1
        self._on_pass()
        return {name: parameters.of_units(ratio, values[name]) for name, ratio in sums.ratios.items()}

    @property
    def _of_estimated_prior(self) -> list[Parameter]:
        if self._options.prior is not None or self._options.start is not None:
            return []
        return [p for p in self.wanted if p.name in self.priors and p.name not in self._given]

    def estimate_priors(self, counts: Mapping[str, Ratio]) -> bool:
        """Estimate priors from such counts, and say whether that changed them."""
        before, times = self.priors, self._expectation.multiplicity
        self.priors = before | {
            name: estimate_prior(ratio.favourable, ratio.decided, times) for name, ratio in counts.items()
        }
        changes = [
            max(
                abs(self.priors[name].mean - before[name].mean),
                self._change_of_strength(ratio.decided, before[name], self.priors[name]),
            )
            for name, ratio in counts.items()
        ]
        moved = max(changes, default=0.0) > _PRIOR_CHANGE
        if moved:
            self._leap(before)
        return moved

    def _leap(self, before: Mapping[str, BetaPrior]) -> None:
        """After two steps of the priors, go to where a geometric series of such steps ends (Aitken), or towards it."""
        self._steps.append({name: _coordinates(self.priors[name]) - _coordinates(before[name]) for name in before})
        if len(self._steps) < 2 or self._leaps == _MOST_LEAPS:  # noqa: PLR2004 - a first and a second step
            return
        first, second = self._steps
        self._steps = []
        self._leaps += 1
        for name, step in second.items():
            shrinks = np.divide(step, first[name], out=np.zeros(2), where=first[name] != 0)
            leap = np.where(shrinks > 0, shrinks / np.maximum(1 - shrinks, 1 / _LONGEST_LEAP), 0.0)
            self.priors[name] = _prior_at(_coordinates(self.priors[name]) + np.minimum(leap, _LONGEST_LEAP) * step)

    def _change_of_strength(self, decided: Floats, before: BetaPrior, after: BetaPrior) -> float:
        """How far another strength moves a usual parameter, relative to its shrinkage s / (s + n).

        n is how often the parameter is decided, shape (J + 1,), that a usual decision is about. A prior that is much
        stronger than all data may become stronger still, and nothing changes.
        """
        usual = self._over_units(decided**2) / max(self._over_units(decided), _TINY)
        return abs(np.log(after.strength / before.strength)) * usual / (min(before.strength, after.strength) + usual)

    def _extrapolated(self, start: Parameters, first: Parameters, second: Parameters) -> dict[str, Floats]:
        """x0 - 2 a r + a^2 v, with r = x1 - x0, v = x2 - 2 x1 + x0, a = -|r| / |v| (Varadhan & Roland's S3)."""
        squares = np.zeros(2)
        for p in self.wanted:
            r = first[p.name] - start[p.name]
            v = second[p.name] - first[p.name] - r
            over_all = self._over_units if p.shape == "unit" else np.sum
            squares += over_all(r**2), over_all(v**2)
        length = max(1.0, np.sqrt(squares[0] / max(squares[1], _TINY)))
        far = dict(second)
        for name in (p.name for p in self.wanted):
            r = first[name] - start[name]
            v = second[name] - first[name] - r
            far[name] = within(start[name] + 2 * length * r + length**2 * v)
        return far

    def _log_of_known(self, values: Parameters) -> float:
        """The logarithm of the priors, and of the probability of what is certain: f log x + (d - f) log(1 - x)."""
        total = 0.0
        for p in self.wanted:
            logs = log_of_decisions(_with_prior(self._known.ratios[p.name], self.priors.get(p.name)), values[p.name])
            total += self._over_units(logs) if p.shape == "unit" else float(logs.sum())
        return total

    def _over_units(self, values: Floats) -> float:
        """The sum over all units of values by unit, or by signature."""
        times = self._expectation.multiplicity
        return float((values if times is None else times * values).sum())


def _coordinates(prior: BetaPrior) -> Floats:
    """A prior without bounds, shape (2,): the log-odds of its mean, and the logarithm of its strength."""
    return np.array([np.log(prior.mean / (1 - prior.mean)), np.log(prior.strength)])


def _prior_at(coordinates: Floats) -> BetaPrior:
    mean, strength = 1 / (1 + np.exp(-coordinates[0])), np.exp(coordinates[1])
    return BetaPrior(float(np.clip(mean, *MEANS)), float(np.clip(strength, *STRENGTHS)))


def _with_prior(ratio: Ratio, prior: BetaPrior | None) -> Ratio:
    """Sums, and what the prior says besides."""
    if prior is None:
        return ratio
    return Ratio(ratio.favourable + prior.pseudo_clicks, ratio.decided + prior.pseudo_clicks + prior.pseudo_skips)


def _divided(ratio: Ratio, before: Floats) -> Floats:
    return within(np.divide(ratio.favourable, ratio.decided, out=np.array(before), where=ratio.decided > 0))
