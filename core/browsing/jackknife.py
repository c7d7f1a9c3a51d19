"""Standard errors of what all documents share, by the jackknife over groups of queries.

    Var(x) = (G - 1) / G  sum_g (x_(g) - mean of x_(1) .. x_(G))^2

x_(g) is the estimate without the queries of group g. Parameters by unit are found anew each time, so that their errors
are in it; priors stay those of the whole log. It has G - 1 degrees of freedom.

Source: Shao & Tu 1995, The Jackknife and Bootstrap, section 2.3 (delete-d, in groups).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, Integers, PageBatch
from posbias.core.browsing.em import EMOptions, FittedModel, MadeOfRatios, TrainingPages, fit
from posbias.core.browsing.likelihood import SMALLEST_PROBABILITY
from posbias.core.browsing.signatures import Signatures
from posbias.core.browsing.uncertain import Certain

N_GROUPS = 10
"""G: the errors are themselves known to a quarter. Fewer where there are fewer queries."""


def standard_errors(
    model: MadeOfRatios,
    pages: TrainingPages,
    group_of_unit: Integers,
    fitted: FittedModel,
    options: EMOptions,
    on_pass: Callable[[], None],
) -> dict[str, Floats]:
    """The standard errors of the parameters that all units share.

    Args:
        model: it.
        pages: those that it was fitted to; a page shows units of one query.
        group_of_unit: shape (J + 1,), the group of the unit's query, from 0; groups are numbered without gaps.
        fitted: the estimate.
        options: with which it was made.
        on_pass: is called after each pass over the pages.

    Returns:
        By parameter, in its shape; nan where nothing decides a value, and where it lies at 0 or 1, the ends that it
        cannot pass. Empty where all queries are in one group, or nothing is shared.
    """
    shared = [p.name for p in model.parameters if p.shape != "unit" and p.name not in options.fixed]
    n_groups = int(group_of_unit.max(initial=0)) + 1
    if n_groups == 1 or not shared:
        return {}
    further = replace(options, start=fitted)
    without = [fit(model, _Without(pages, group_of_unit, group), further, on_pass) for group in range(n_groups)]
    return {
        name: np.where(
            (fitted.decided[name] > 0) & _inside(fitted.parameters[name]),
            _spread(np.stack([one.parameters[name] for one in without])),
            np.nan,
        )
        for name in shared
    }


def _spread(values: Floats) -> Floats:
    """The error from the values without each group, shape (G, ...)."""
    n_groups = len(values)
    return np.sqrt((n_groups - 1) / n_groups * ((values - values.mean(axis=0)) ** 2).sum(axis=0))


def _inside(values: Floats) -> Flags:
    return (values > 2 * SMALLEST_PROBABILITY) & (values < 1 - 2 * SMALLEST_PROBABILITY)


@dataclass(frozen=True)
class _Without:
    """The pages without those of a group."""

    pages: TrainingPages
    group_of_unit: Integers
    group: int

    @property
    def n_units(self) -> int:
        """J."""
        return self.pages.n_units

    @property
    def n_positions(self) -> int:
        """K."""
        return self.pages.n_positions

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches; pages of the group weigh nothing."""
        for batch in self.pages:
            weight = np.where(self.group_of_unit[batch.unit[:, 0]] == self.group, 0.0, batch.weight)
            yield replace(batch, weight=weight)

    def uncertain(self, certain: Certain) -> "_Without":
        """The pages without the impressions that say the same whatever the parameters."""
        return _Without(self.pages.uncertain(certain), self.group_of_unit, self.group)

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Units with equal rows once; those of the group have none."""
        return self.pages.signatures(columns).without(self.group_of_unit == self.group)
