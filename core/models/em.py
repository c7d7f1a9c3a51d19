"""Expectation maximisation of a click model over pages, which ends after one M-step for closed forms.

    parameter = (s v + sum of weight * successes) / (s + sum of weight * trials)

with the expected trials of the parameter in each impression, and their successes; s and v are the strength and the mean
of its prior. Parameters by unit have a prior, given or estimated from the log; shared parameters have none.

Sources: Dempster, Laird & Rubin 1977; Varadhan & Roland 2008 (SQUAREM); Chuklin, Markov & de Rijke 2015, chapter 4.

A pass over the pages sums the expected trials and successes impression by impression, in their order, so that sums by
unit do not depend on the division into batches. A single batch is in memory at a time: threads would gain little, as
most steps are short, and would need several.

Standard errors of shared parameters, by the jackknife over groups of queries:

    Var(x) = (G - 1) / G  sum_g (x_(g) - mean of x_(1) .. x_(G))^2

x_(g) is the estimate without the queries of group g. Parameters by unit are estimated anew each time, so that their
errors are included; priors stay those of the whole log. Var(x) has G - 1 degrees of freedom.

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
_MOST_PRIORS = 41  # estimates of the prior, each after EM has converged
_PRIOR_CHANGE = 0.005  # of the mean, and of the shrinkage of a typical parameter: predictions do not notice less
_LONGEST_LEAP = 8.0  # in steps of a prior
_MOST_LEAPS = 6  # further leaps may oscillate about the fixed point of the steps
_TINY = 1e-300


class TrainingPages(Protocol):
    """Pages of a log in batches, which can be iterated over repeatedly."""

    @property
    def n_units(self) -> int:
        """J: units are numbered from 0 to J - 1 over all batches."""
        ...

    @property
    def n_positions(self) -> int:
        """K, the largest position."""
        ...

    def __iter__(self) -> Iterator[PageBatch]:
        """Iterate over the batches, always in the same order; small batches are faster."""
        ...

    def uncertain(self, certain: Certain) -> "TrainingPages":
        """The pages without their certain impressions; see `ClickModel.certain`."""
        ...

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Group units with equal rows; rows are distinguished by `columns`, of `position` and `previous_click`."""
        ...


@dataclass(frozen=True)
class ModelEstimate:
    """Estimated parameters of a click model."""

    parameters: Parameters
    priors: dict[str, BetaPrior]  # of the parameters by unit
    trials: dict[str, Floats]  # expected trials of the shared parameters, without fixed parameters
    passes: int  # over the pages
    converged: bool


@dataclass(frozen=True)
class EMOptions:
    """Options of the estimation."""

    prior: BetaPrior | None = None  # of parameters by unit; None estimates it from the log
    passes: int = 1000  # over the pages, at most
    tolerance: float = 1e-8  # convergence: gain in log-likelihood per impression over a cycle of three passes
    fixed: Mapping[str, Floats] = field(default_factory=dict[str, Floats])  # known parameters
    start: ModelEstimate | None = None  # start values, and fixed priors
    left_out: Flags | None = None  # shape (J + 1,), units whose pages are left out


@dataclass
class ExpectedTrials:
    """Expected trials over all batches."""

    ratios: dict[str, Ratio]  # by parameter, in its shape
    impressions: float = 0.0  # sum of weights
    log_likelihood: float = 0.0  # of all clicks, if computed

    def add(self, parameter: Parameter, pages: PageBatch, rows: Ratio) -> None:
        """Add the ratios of impressions, shape (N, L), to those of the parameter, by its shape."""
        total = self.ratios[parameter.name]
        for values, sums in ((rows.successes, total.successes), (rows.trials, total.trials)):
            if parameter.shape == "one":
                sums[...] += values.sum()
                continue
            if parameter.shape == "unit":
                index = pages.unit
            elif parameter.shape == "position":
                index = pages.position
            else:
                index = pages.position * sums.shape[1] + pages.previous_click
            np.add.at(sums.reshape(-1), index.ravel(order="F"), values.ravel(order="F"))


def expected_sums(
    model: ClickModel,
    parameters: Sequence[Parameter],
    values: Parameters,
    pages: Iterable[PageBatch],
    known: ExpectedTrials,
    *,
    times: Floats | None = None,
    only_certain: bool = False,
    likelihood: bool = False,
    effective: bool = False,
) -> ExpectedTrials:
    """E-step: `known` plus the expected trials and successes of parameters, given all clicks.

    Args:
        model: the model.
        parameters: of the model, whose sums are computed.
        values: of all parameters of the model.
        pages: batches.
        known: sums to which those of the pages are added.
        times: shape (J + 1,), multiplicity of each unit; None: 1.
        only_certain: whether to sum over certain impressions only; see `ClickModel.certain`.
        likelihood: whether to compute the log-likelihood, which takes half as long again.
        effective: whether to sum `effective_row_counts`, for the priors of parameters by unit.
    """
    ratios = {name: Ratio(ratio.successes.copy(), ratio.trials.copy()) for name, ratio in known.ratios.items()}
    sums = replace(known, ratios=ratios)
    for batch in pages:
        weight = batch.row_weight * model.certain(batch) if only_certain else batch.row_weight
        total_weight = weight if times is None else weight * times[batch.unit]
        if likelihood:
            logs = page_matrices.click_log_likelihood(model.given_clicks(values, batch), batch)
            sums.log_likelihood += float((total_weight * logs).sum())
        expected = model.expected(values, batch)
        for p in parameters:
            rows = expected[p.name]
            if effective:
                rows = page_matrices.effective_row_counts(rows, values[p.name][batch.unit])
            sums.add(p, batch, rows.times(weight if p.shape == "unit" else total_weight))
        sums.impressions += float(total_weight.sum())
    return sums


def fit(model: ClickModel, pages: TrainingPages, options: EMOptions, on_pass: Callable[[], None]) -> ModelEstimate:
    """Estimate the parameters of a model.

    By EM, accelerated (SQUAREM): the change is extrapolated from two steps, unless the objective would fall. Priors are
    estimated each time that EM has converged, until they no longer change.

    Args:
        model: the model.
        pages: to learn from.
        options: of the estimation.
        on_pass: called after each pass over the pages.
    """
    by_unit = [p.name for p in model.parameters if p.shape == "unit"]
    # Iterative EM over independent impressions: units of equal counts keep equal parameters.
    grouped = bool(model.statistics_columns) and not model.closed_form and options.fixed.keys().isdisjoint(by_unit)
    em = _EM(model, pages.signatures(model.statistics_columns) if grouped else pages, options, on_pass)
    free, values = em.free, em.start
    if not free:
        return ModelEstimate(values, {}, {}, 0, converged=True)
    if model.closed_form:
        em.e_step(values)
        em.estimate_priors({p.name: em.sums.ratios[p.name] for p in em.of_estimated_prior})
        values, converged = em.m_step(values), True
    else:
        em.add_certain(values)
        converged = False
        for _ in range(_MOST_PRIORS):
            at_rest = em.climb(values)
            converged = at_rest and not em.estimate_priors(em.effective_counts(values))
            if converged or not at_rest:
                break
    trials = {p.name: em.sums.ratios[p.name].trials for p in free if p.shape != "unit"}
    if isinstance(em.pages, Signatures):
        of_unit = em.pages.of_unit
        values = dict(values) | {p.name: values[p.name][of_unit] for p in free if p.shape == "unit"}
    return ModelEstimate(dict(values), em.priors, trials, em.passes, converged)


class _EM:
    """EM on the pages of a log, or on its signatures with their multiplicities."""

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
        self._expected_sums = partial(expected_sums, model, times=self._times)
        # Multiplicity of each value
        self._copies = {
            p.name: self._times if p.shape == "unit" and self._times is not None else 1.0 for p in self.free
        }
        shapes = {p.name: p.dimensions(pages.n_units, pages.n_positions) for p in self.free}
        self._known = self.sums = ExpectedTrials({name: Ratio(np.zeros(s), np.zeros(s)) for name, s in shapes.items()})
        self._steps: list[dict[str, Floats]] = []
        self._leaps = 0
        self.start = {p.name: np.full(shapes[p.name], p.start) for p in self.free} | dict(options.fixed)
        if options.start is not None:
            self.priors, self.start = dict(options.start.priors), dict(options.start.parameters)
            if isinstance(pages, Signatures):  # equal units have equal values: those of any unit of each signature
                unit = np.full(pages.n_units + 1, len(pages.of_unit) - 1)
                unit[pages.of_unit] = np.arange(len(pages.of_unit))  # the last signature gets the unit never seen
                self.start |= {p.name: self.start[p.name][unit] for p in by_unit}

    def _batches(self) -> Iterator[PageBatch]:
        """The batches, with weight 0 for pages that are left out."""
        out = self._left_out
        if out is None:
            return iter(self.pages)
        return (replace(batch, weight=np.where(out[batch.unit[:, 0]], 0.0, batch.weight)) for batch in self.pages)

    def add_certain(self, values: Parameters) -> None:
        """Sum over the certain impressions once, and iterate over the others."""
        self._known = self._expected_sums(self.free, values, self._batches(), self._known, only_certain=True)
        self.pages = self.pages.uncertain(self._model.certain)

    def e_step(self, values: Parameters, *, likelihood: bool = False) -> None:
        """Compute the sums at these values."""
        self.sums = self._known  # frees the memory of the last sums
        self.sums = self._expected_sums(self.free, values, self._batches(), self._known, likelihood=likelihood)
        self.passes += 1
        self._on_pass()

    def m_step(self, values: Parameters) -> dict[str, Floats]:
        """Divide successes by trials of the last sums; parameters without trials keep their values."""
        updated: dict[str, Floats] = {}
        for p in self.free:
            ratio, before = _with_prior(self.sums.ratios[p.name], self.priors.get(p.name)), np.array(values[p.name])
            share = np.divide(ratio.successes, ratio.trials, out=before, where=ratio.trials > 0)
            updated[p.name] = np.array(np.clip(share, *page_matrices.BOUNDS))
        return dict(values) | updated

    def climb(self, values: dict[str, Floats]) -> bool:
        """Update the values in place by cycles of SQUAREM, and return whether the objective converged."""

        def step(at: Parameters) -> dict[str, Floats]:
            self.e_step(at)
            return self.m_step(at)

        def step_and_objective(at: Parameters) -> tuple[dict[str, Floats], float]:
            """The step, and the objective before it: log-likelihood of all clicks, plus the log prior."""
            self.e_step(at, likelihood=True)
            total = 0.0
            for p in self.free:
                ratio = _with_prior(self._known.ratios[p.name], self.priors.get(p.name))
                logs = page_matrices.bernoulli_log_likelihood(ratio, at[p.name])
                total += float((self._copies[p.name] * logs).sum())
            return self.m_step(at), self.sums.log_likelihood + total

        before = -np.inf
        while self.passes < self._options.passes:
            objective = squarem_cycle(values, step, step_and_objective, self._copies, page_matrices.BOUNDS)
            if objective - before <= self._options.tolerance * max(self.sums.impressions, 1.0):
                return True
            before = objective
        return False

    def effective_counts(self, values: Parameters) -> dict[str, Ratio]:
        """Effective counts of each parameter whose prior is estimated; see `page_matrices.effective_unit_counts`.

        One more pass. The last sums by unit are dropped, to save memory.
        """
        estimated = self.of_estimated_prior
        if not estimated:
            return {}
        shared = {p.name: self.sums.ratios[p.name] for p in self.free if p.shape != "unit"}
        self.sums = replace(self.sums, ratios=shared)
        known = ExpectedTrials({p.name: self._known.ratios[p.name] for p in estimated})
        sums = self._expected_sums(estimated, values, self._batches(), known, effective=True)
        self.passes += 1
        self._on_pass()
        return {name: page_matrices.effective_unit_counts(ratio, values[name]) for name, ratio in sums.ratios.items()}

    def estimate_priors(self, counts: Mapping[str, Ratio]) -> bool:
        """Estimate priors from effective counts, and return whether they changed.

        The change is that of the mean, or |log s'/s| n / (min(s, s') + n), n the mean over trials of their unit's
        trials: a change of strength matters less where the prior dominates all data.
        """
        before, change = self.priors, 0.0
        self.priors = dict(before)
        for name, ratio in counts.items():
            old, new = before[name], page_matrices.estimate_beta_prior(ratio.successes, ratio.trials, self._times)
            self.priors[name] = new
            squares, trials = (
                float((values if self._times is None else self._times * values).sum())
                for values in (ratio.trials**2, ratio.trials)
            )
            typical = squares / max(trials, _TINY)
            shrinkage = abs(np.log(new.strength / old.strength)) * typical / (min(old.strength, new.strength) + typical)
            change = max(change, abs(new.mean - old.mean), shrinkage)
        if change > _PRIOR_CHANGE:
            self._steps.append({name: _coordinates(self.priors[name]) - _coordinates(before[name]) for name in before})
            if len(self._steps) > 1 and self._leaps < _MOST_LEAPS:
                self._leap()
        return change > _PRIOR_CHANGE

    def _leap(self) -> None:
        """Extrapolate two steps of the priors to the limit of a geometric series (Aitken), at most `_LONGEST_LEAP`."""
        first, second = self._steps
        self._steps = []
        self._leaps += 1
        for name, step in second.items():
            ratio = np.divide(step, first[name], out=np.zeros(2), where=first[name] != 0)
            leap = np.where(ratio > 0, ratio / np.maximum(1 - ratio, 1 / _LONGEST_LEAP), 0.0)
            logit, log_strength = _coordinates(self.priors[name]) + np.minimum(leap, _LONGEST_LEAP) * step
            mean, strength = 1 / (1 + np.exp(-logit)), np.exp(log_strength)
            self.priors[name] = BetaPrior(
                float(np.clip(mean, *page_matrices.MEANS)), float(np.clip(strength, *page_matrices.STRENGTHS))
            )


def _coordinates(prior: BetaPrior) -> Floats:
    """Unbounded coordinates of a prior, shape (2,): the log-odds of its mean, and the logarithm of its strength."""
    return np.array([np.log(prior.mean / (1 - prior.mean)), np.log(prior.strength)])


def _with_prior(ratio: Ratio, prior: BetaPrior | None) -> Ratio:
    """Add the pseudo-counts of a prior."""
    if prior is None:
        return ratio
    return Ratio(ratio.successes + prior.pseudo_clicks, ratio.trials + prior.pseudo_clicks + prior.pseudo_skips)


N_GROUPS = 10
"""G, at most the number of queries: the errors themselves are exact to about a quarter."""


def standard_errors(
    model: ClickModel,
    pages: TrainingPages,
    group_of_unit: Integers,
    fitted: ModelEstimate,
    options: EMOptions,
    on_pass: Callable[[], None],
) -> dict[str, Floats]:
    """Jackknife standard errors of the shared parameters.

    Args:
        model: the model.
        pages: to which it was fitted; a page shows units of one query.
        group_of_unit: shape (J + 1,), the group of the unit's query, from 0 to G - 1.
        fitted: the estimate.
        options: of the estimate.
        on_pass: called after each pass over the pages.

    Returns:
        By parameter, in its shape; NaN without trials, and at the bounds 0 and 1. Empty if G = 1, or if all parameters
        are by unit or fixed.
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
        values, by_group = fitted.parameters[name], np.stack([parameters[name] for parameters in without])
        spread = np.sqrt((n_groups - 1) / n_groups * ((by_group - by_group.mean(axis=0)) ** 2).sum(axis=0))
        inside = np.minimum(values, 1 - values) > 2 * page_matrices.SMALLEST_PROBABILITY
        errors[name] = np.where((fitted.trials[name] > 0) & inside, spread, np.nan)
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
    """Table of the shared parameters, and of the priors of parameters by unit.

    Columns: `parameter`, `position`, `previous_click`, `value`, `std_error`, `prior_mean`, `prior_strength`; null where
    not applicable. Parameters without trials have no value.
    """
    rows: list[dict[str, object]] = []
    for parameter in parameters:
        name = parameter.name
        if parameter.shape == "unit":
            prior = fitted.priors[name]
            rows.append({"parameter": name, "prior_mean": prior.mean, "prior_strength": prior.strength})
            continue
        values = fitted.parameters[name]
        if name in fitted.trials:
            values = np.where(fitted.trials[name] > 0, values, np.nan)
        errors = (std_errors or {}).get(name, np.full(values.shape, np.nan))
        for index in np.ndindex(values.shape):
            position, above = (*index, None, None)[:2]
            if position != 0 and (position is None or above is None or above < position):
                cell = {POSITION: position, PREVIOUS_CLICK: above}
                rows.append({"parameter": name, **cell, VALUE: float(values[index]), STD_ERROR: float(errors[index])})
    table = pl.DataFrame(rows, schema=_SCHEMA)
    return table.with_columns(pl.col(VALUE, STD_ERROR).fill_nan(None))
