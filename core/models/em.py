"""Expectation maximisation of a click model over pages, and the closed forms, which are its first division.

    parameter = (s v + sum of weight * favourable) / (s + sum of weight * decided)

over all impressions that decide it; s and v are the strength and the mean of its prior. Parameters by unit have one,
given or estimated from the log; those that all units share need none.

Sources: Dempster, Laird & Rubin 1977; Varadhan & Roland 2008 (SQUAREM); Chuklin, Markov & de Rijke 2015, chapter 4.

A pass over pages adds up how often each parameter was decided, and how often in its favour: impression by impression,
in their order, so that sums by unit do not depend on what is a batch. One batch is in memory at a time: threads would
gain little, as most steps are short, and hold several.

Standard errors of what all documents share, by the jackknife over groups of queries.

    Var(x) = (G - 1) / G  sum_g (x_(g) - mean of x_(1) .. x_(G))^2

x_(g) is the estimate without the queries of group g. Parameters by unit are estimated anew each time, so that their
errors are in it; priors stay those of the whole log. It has G - 1 degrees of freedom.

Source: Shao & Tu 1995, The Jackknife and Bootstrap, section 2.3 (delete-d, in groups).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.arrays.optimize import squarem_cycle
from posbias.core.choices import BetaPrior
from posbias.core.models import ClickModel, page_matrices
from posbias.core.models.page_matrices import Certain, PageBatch, Parameter, Parameters, Ratio, Signatures
from posbias.core.schema import POSITION, PREVIOUS_CLICK

_FIRST_PRIOR = BetaPrior(0.5, 2.0)
_MOST_PRIORS = 41  # estimates of the prior, each from where EM came to rest
_PRIOR_CHANGE = 0.005  # of its mean, and of how far it draws a usual parameter: predictions do not notice less
_LONGEST_LEAP = 8.0  # in steps of a prior
_MOST_LEAPS = 6  # which may go to and fro around where the steps themselves come to rest
_TINY = 1e-300


class TrainingPages(Protocol):
    """The pages of a log, batch by batch, as often as they are read."""

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
        """Units with equal rows once; `columns` are those that tell rows apart, `position` and `previous_click`."""
        ...


@dataclass(frozen=True)
class ModelEstimate:
    """A click model with its parameters."""

    parameters: Parameters
    priors: dict[str, BetaPrior]  # of the parameters by unit
    decided: dict[str, Floats]  # expected number of decisions of the shared parameters that were estimated
    passes: int  # over the pages
    converged: bool


@dataclass(frozen=True)
class EMOptions:
    """Options of the estimation."""

    prior: BetaPrior | None = None  # of parameters by unit; None estimates it from the log
    passes: int = 1000  # over the pages, at most
    tolerance: float = 1e-8  # gain in log-likelihood per impression over a cycle of three passes, at which they end
    fixed: Mapping[str, Floats] = field(default_factory=dict[str, Floats])  # parameters that are given
    start: ModelEstimate | None = None  # where EM begins, and with which priors, which then stay
    left_out: Flags | None = None  # shape (J + 1,), units whose pages do not count


@dataclass
class Sums:
    """Expected decisions over all batches."""

    ratios: dict[str, Ratio]  # by parameter, in its shape
    impressions: float = 0.0  # with their weights
    log_likelihood: float = 0.0  # of all clicks, where it was computed

    def add(self, parameter: Parameter, pages: PageBatch, rows: Ratio) -> None:
        """Add rows of pages, shape (N, L), to the total of what the parameter differs by."""
        total = self.ratios[parameter.name]
        for values, of_all in ((rows.favourable, total.favourable), (rows.decided, total.decided)):
            if parameter.shape == "one":
                of_all[...] += values.sum()
                continue
            if parameter.shape == "unit":
                index = pages.unit
            elif parameter.shape == "position":
                index = pages.position
            else:
                index = pages.position * of_all.shape[1] + pages.previous_click
            np.add.at(of_all.reshape(-1), index.ravel(order="F"), values.ravel(order="F"))


def add_up(
    model: ClickModel,
    parameters: Sequence[Parameter],
    values: Parameters,
    pages: Iterable[PageBatch],
    known: Sums,
    *,
    times: Floats | None = None,
    only_certain: bool = False,
    likelihood: bool = False,
    effective: bool = False,
) -> Sums:
    """The E-step: `known`, and what pages say of some parameters of a model at given values.

    Args:
        model: the model.
        parameters: of it.
        values: of all its parameters.
        pages: batches.
        known: sums to which those of the pages are added.
        times: shape (J + 1,), how many units each unit of the pages stands for; None: one.
        only_certain: whether only those impressions count that say the same at any values.
        likelihood: whether the log-likelihood is computed, which takes half as long again.
        effective: whether rows count as in `of_rows`, for the priors of parameters by unit.
    """
    ratios = {name: Ratio(ratio.favourable.copy(), ratio.decided.copy()) for name, ratio in known.ratios.items()}
    sums = replace(known, ratios=ratios)
    for batch in pages:
        weight = batch.row_weight * model.certain(batch) if only_certain else batch.row_weight
        of_all_units = weight if times is None else weight * times[batch.unit]
        if likelihood:
            logs = page_matrices.log_of_clicks(model.given_clicks(values, batch), batch)
            sums.log_likelihood += float((of_all_units * logs).sum())
        expected = model.expected(values, batch)
        for p in parameters:
            rows = expected[p.name]
            if effective:
                rows = page_matrices.of_rows(rows, values[p.name][batch.unit])
            sums.add(p, batch, rows.times(weight if p.shape == "unit" else of_all_units))
        sums.impressions += float(of_all_units.sum())
    return sums


def fit(model: ClickModel, pages: TrainingPages, options: EMOptions, on_pass: Callable[[], None]) -> ModelEstimate:
    """Find the parameters of a model.

    EM, accelerated (SQUAREM): from two steps the change is extrapolated, unless that would descend. Where the prior is
    estimated, that is done whenever EM has come to rest, until it changes nothing.

    Args:
        model: the model.
        pages: to learn from.
        options: how.
        on_pass: called after each pass over the pages.
    """
    by_unit = [p.name for p in model.parameters if p.shape == "unit"]
    # Where EM makes several passes over impressions that each stand for themselves, equal units stay equal.
    alike = bool(model.statistics_columns) and not model.closed_form and options.fixed.keys().isdisjoint(by_unit)
    problem = _Problem(model, pages.signatures(model.statistics_columns) if alike else pages, options, on_pass)
    free, values = problem.free, problem.start
    if not free:
        return ModelEstimate(values, {}, {}, 0, converged=True)
    if model.closed_form:
        problem.sum_up(values)
        problem.estimate_priors({p.name: problem.sums.ratios[p.name] for p in problem.of_estimated_prior})
        values, converged = problem.divided(values), True
    else:
        problem.add_certain(values)
        converged = False
        for _ in range(_MOST_PRIORS):
            rested = problem.climb(values)
            converged = rested and not problem.estimate_priors(problem.effective_counts(values))
            if converged or not rested:
                break
    decided = {p.name: problem.sums.ratios[p.name].decided for p in free if p.shape != "unit"}
    if isinstance(problem.pages, Signatures):
        of_unit = problem.pages.of_unit
        values = dict(values) | {p.name: values[p.name][of_unit] for p in free if p.shape == "unit"}
    return ModelEstimate(dict(values), problem.priors, decided, problem.passes, converged)


class _Problem:
    """EM's map on the pages of a log, or on its signatures, each of which counts as often as it occurs."""

    def __init__(
        self, model: ClickModel, pages: TrainingPages | Signatures, options: EMOptions, on_pass: Callable[[], None]
    ) -> None:
        self.free = [parameter for parameter in model.parameters if parameter.name not in options.fixed]
        by_unit = [p for p in self.free if p.shape == "unit"]
        given = {p.name: p.prior for p in self.free if p.prior is not None and not options.fixed}
        self.priors = {p.name: given.get(p.name) or options.prior or _FIRST_PRIOR for p in by_unit}
        estimated = options.prior is None and options.start is None
        self.of_estimated_prior = [p for p in by_unit if p.name not in given] if estimated else []
        self.passes = 0
        left_out = options.left_out
        if isinstance(pages, Signatures) and left_out is not None:
            pages, left_out = pages.without(left_out), None
        self.pages, self._left_out = pages, left_out
        self._model, self._options, self._on_pass = model, options, on_pass
        self._times = pages.multiplicity if isinstance(pages, Signatures) else None  # shape (J + 1,)
        self._add_up = partial(add_up, model, times=self._times)
        # How many parameters each value stands for
        self._copies = {
            p.name: self._times if p.shape == "unit" and self._times is not None else 1.0 for p in self.free
        }
        shapes = {p.name: p.dimensions(pages.n_units, pages.n_positions) for p in self.free}
        self._known = self.sums = Sums({name: Ratio(np.zeros(s), np.zeros(s)) for name, s in shapes.items()})
        self._steps: list[dict[str, Floats]] = []
        self._leaps = 0
        self.start = {p.name: np.full(shapes[p.name], p.start) for p in self.free} | dict(options.fixed)
        if options.start is not None:
            self.priors, self.start = dict(options.start.priors), dict(options.start.parameters)
            if isinstance(pages, Signatures):  # equal units have equal values: those of any unit of each signature
                unit = np.full(pages.n_units + 1, len(pages.of_unit) - 1)
                unit[pages.of_unit] = np.arange(len(pages.of_unit))  # the last gets the unit that was never seen
                self.start |= {p.name: self.start[p.name][unit] for p in by_unit}

    def _batches(self) -> Iterator[PageBatch]:
        """The batches; pages that are left out weigh nothing."""
        out = self._left_out
        if out is None:
            return iter(self.pages)
        return (replace(one, weight=np.where(out[one.unit[:, 0]], 0.0, one.weight)) for one in self.pages)

    def add_certain(self, values: Parameters) -> None:
        """Add up what some impressions say whatever the parameters, and go on with the others."""
        self._known = self._add_up(self.free, values, self._batches(), self._known, only_certain=True)
        self.pages = self.pages.uncertain(self._model.certain)

    def sum_up(self, values: Parameters, *, likelihood: bool = False) -> None:
        """The E-step at these values."""
        self.sums = self._known  # the memory of the last ones is needed for the new ones
        self.sums = self._add_up(self.free, values, self._batches(), self._known, likelihood=likelihood)
        self.passes += 1
        self._on_pass()

    def divided(self, values: Parameters) -> dict[str, Floats]:
        """The M-step from the last sums; what nothing decides keeps its value."""
        divided: dict[str, Floats] = {}
        for p in self.free:
            ratio, before = _with_prior(self.sums.ratios[p.name], self.priors.get(p.name)), np.array(values[p.name])
            share = np.divide(ratio.favourable, ratio.decided, out=before, where=ratio.decided > 0)
            divided[p.name] = np.array(np.clip(share, *page_matrices.BOUNDS))
        return dict(values) | divided

    def climb(self, values: dict[str, Floats]) -> bool:
        """Change the values by cycles of SQUAREM until the objective hardly rises, and say whether it came to that."""

        def step(at: Parameters) -> dict[str, Floats]:
            self.sum_up(at)
            return self.divided(at)

        def step_and_objective(at: Parameters) -> tuple[dict[str, Floats], float]:
            """The objective is that at the values before: clicks, priors and what is certain."""
            self.sum_up(at, likelihood=True)
            total = 0.0
            for p in self.free:
                decisions = _with_prior(self._known.ratios[p.name], self.priors.get(p.name))
                logs = page_matrices.log_of_decisions(decisions, at[p.name])
                total += float((self._copies[p.name] * logs).sum())
            return self.divided(at), self.sums.log_likelihood + total

        before = -np.inf
        while self.passes < self._options.passes:
            objective = squarem_cycle(values, step, step_and_objective, self._copies, page_matrices.BOUNDS)
            if objective - before <= self._options.tolerance * max(self.sums.impressions, 1.0):
                return True
            before = objective
        return False

    def effective_counts(self, values: Parameters) -> dict[str, Ratio]:
        """Expected counts of each parameter whose prior is estimated; see `posbias.core.models.page_matrices`.

        One more pass, after which the last step has no sums by unit any more: both are large.
        """
        estimated = self.of_estimated_prior
        if not estimated:
            return {}
        shared = {p.name: self.sums.ratios[p.name] for p in self.free if p.shape != "unit"}
        self.sums = replace(self.sums, ratios=shared)
        known = Sums({p.name: self._known.ratios[p.name] for p in estimated})
        sums = self._add_up(estimated, values, self._batches(), known, effective=True)
        self.passes += 1
        self._on_pass()
        return {name: page_matrices.of_units(ratio, values[name]) for name, ratio in sums.ratios.items()}

    def estimate_priors(self, counts: Mapping[str, Ratio]) -> bool:
        """Estimate priors from counts of decisions, and say whether that changed them.

        A change is that of the mean, or how far another strength moves a usual parameter, relative to its shrinkage
        s / (s + n), n how often the parameter is decided that a usual decision is about: a prior that is much stronger
        than all data may become stronger still, and nothing changes.
        """
        before, moved = self.priors, 0.0
        self.priors = dict(before)
        for name, ratio in counts.items():
            old, new = before[name], page_matrices.estimate_prior(ratio.favourable, ratio.decided, self._times)
            self.priors[name] = new
            squares, decided = (
                float((values if self._times is None else self._times * values).sum())
                for values in (ratio.decided**2, ratio.decided)
            )
            usual = squares / max(decided, _TINY)
            stronger = abs(np.log(new.strength / old.strength)) * usual / (min(old.strength, new.strength) + usual)
            moved = max(moved, abs(new.mean - old.mean), stronger)
        if moved > _PRIOR_CHANGE:
            self._steps.append({name: _coordinates(self.priors[name]) - _coordinates(before[name]) for name in before})
            if len(self._steps) > 1 and self._leaps < _MOST_LEAPS:
                self._leap()
        return moved > _PRIOR_CHANGE

    def _leap(self) -> None:
        """After two steps of the priors, go to where a geometric series of such steps ends (Aitken), or towards it."""
        first, second = self._steps
        self._steps = []
        self._leaps += 1
        for name, step in second.items():
            shrinks = np.divide(step, first[name], out=np.zeros(2), where=first[name] != 0)
            leap = np.where(shrinks > 0, shrinks / np.maximum(1 - shrinks, 1 / _LONGEST_LEAP), 0.0)
            logit, log_strength = _coordinates(self.priors[name]) + np.minimum(leap, _LONGEST_LEAP) * step
            mean, strength = 1 / (1 + np.exp(-logit)), np.exp(log_strength)
            self.priors[name] = BetaPrior(
                float(np.clip(mean, *page_matrices.MEANS)), float(np.clip(strength, *page_matrices.STRENGTHS))
            )


def _coordinates(prior: BetaPrior) -> Floats:
    """A prior without bounds, shape (2,): the log-odds of its mean, and the logarithm of its strength."""
    return np.array([np.log(prior.mean / (1 - prior.mean)), np.log(prior.strength)])


def _with_prior(ratio: Ratio, prior: BetaPrior | None) -> Ratio:
    """Sums, and what the prior says besides."""
    if prior is None:
        return ratio
    return Ratio(ratio.favourable + prior.pseudo_clicks, ratio.decided + prior.pseudo_clicks + prior.pseudo_skips)


N_GROUPS = 10
"""G: the errors are themselves known to a quarter. Fewer where there are fewer queries."""


def standard_errors(
    model: ClickModel,
    pages: TrainingPages,
    group_of_unit: Integers,
    fitted: ModelEstimate,
    options: EMOptions,
    on_pass: Callable[[], None],
) -> dict[str, Floats]:
    """The standard errors of the parameters that all units share.

    Args:
        model: the model.
        pages: those that it was fitted to; a page shows units of one query.
        group_of_unit: shape (J + 1,), the group of the unit's query, from 0; groups are numbered without gaps.
        fitted: the estimate.
        options: with which it was made.
        on_pass: called after each pass over the pages.

    Returns:
        By parameter, in its shape; nan where nothing decides a value, and where it lies at 0 or 1, the ends that it
        cannot pass. Empty where all queries are in one group, or nothing is shared.
    """
    shared = [p.name for p in model.parameters if p.shape != "unit" and p.name not in options.fixed]
    n_groups = int(group_of_unit.max(initial=0)) + 1
    if n_groups == 1 or not shared:
        return {}
    without = [
        fit(model, pages, replace(options, start=fitted, left_out=group_of_unit == group), on_pass).parameters
        for group in range(n_groups)
    ]
    errors: dict[str, Floats] = {}
    for name in shared:
        values, of_groups = fitted.parameters[name], np.stack([one[name] for one in without])
        spread = np.sqrt((n_groups - 1) / n_groups * ((of_groups - of_groups.mean(axis=0)) ** 2).sum(axis=0))
        inside = np.minimum(values, 1 - values) > 2 * page_matrices.SMALLEST_PROBABILITY
        errors[name] = np.where((fitted.decided[name] > 0) & inside, spread, np.nan)
    return errors


VALUE, STD_ERROR = "value", "std_error"

_SCHEMA = {
    "parameter": pl.String,
    **dict.fromkeys((POSITION, PREVIOUS_CLICK), pl.Int32),
    **dict.fromkeys((VALUE, STD_ERROR, "prior_mean", "prior_strength"), pl.Float64),
}


def parameter_table(
    parameters: tuple[Parameter, ...], fitted: ModelEstimate, std_errors: Mapping[str, Floats] | None = None
) -> pl.DataFrame:
    """The shared parameters; of parameters by unit, the mean and the strength of their prior.

    Columns: `parameter`, `position`, `previous_click`, `value`, `std_error`, `prior_mean`, `prior_strength`; null where
    there is none. What no impression decides has no value: EM would leave it where it began.
    """
    rows: list[dict[str, object]] = []
    for parameter in parameters:
        name = parameter.name
        if parameter.shape == "unit":
            prior = fitted.priors[name]
            rows.append({"parameter": name, "prior_mean": prior.mean, "prior_strength": prior.strength})
            continue
        values = fitted.parameters[name]
        if name in fitted.decided:
            values = np.where(fitted.decided[name] > 0, values, np.nan)
        errors = (std_errors or {}).get(name, np.full(values.shape, np.nan))
        for index in np.ndindex(values.shape):
            position, above = (*index, None, None)[:2]
            if position != 0 and (position is None or above is None or above < position):
                cell = {POSITION: position, PREVIOUS_CLICK: above}
                rows.append({"parameter": name, **cell, VALUE: float(values[index]), STD_ERROR: float(errors[index])})
    table = pl.DataFrame(rows, schema=_SCHEMA)
    return table.with_columns(pl.col(VALUE, STD_ERROR).fill_nan(None))
