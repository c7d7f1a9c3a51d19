"""Standard errors of what all documents share, by the jackknife over groups of queries.

    Var(x) = (G - 1) / G  sum_g (x_(g) - mean of x_(1) .. x_(G))^2

x_(g) is the estimate without the queries of group g. Parameters by unit are found anew each time, so that their errors
are in it; priors stay those of the whole log. It has G - 1 degrees of freedom.

Source: Shao & Tu 1995, The Jackknife and Bootstrap, section 2.3 (delete-d, in groups).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from posbias.core.browsing.batch import Floats, Integers
from posbias.core.browsing.em import EMOptions, FittedModel, TrainingPages, fit
from posbias.core.browsing.likelihood import SMALLEST_PROBABILITY
from posbias.core.models.click_model import ClickModel

N_GROUPS = 10
"""G: the errors are themselves known to a quarter. Fewer where there are fewer queries."""


def standard_errors(
    model: ClickModel,
    pages: TrainingPages,
    group_of_unit: Integers,
    fitted: FittedModel,
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
        inside = (values > 2 * SMALLEST_PROBABILITY) & (values < 1 - 2 * SMALLEST_PROBABILITY)
        errors[name] = np.where((fitted.decided[name] > 0) & inside, spread, np.nan)
    return errors
