"""The difference of another ranking's clicks under the user browsing model, beside that of the position-based model.

A document at rank r is examined with theta_rl, l the rank of the last click above it, 0 for none (Dupret & Piwowarski
2008). With counts by rank and last click, and the equations of `prediction`,

    e_d = sum_rl n_drl theta_rl              exposure that the log gave
    w_d = N_q sum_l P(l) theta_rl            exposure that the ranking gives, from the top down:
                                             a document d at rank r is clicked with P(l) theta_rl g_d, and then l is r
    D   = (1 / N) sum_d (w_d - e_d) g_d

Attractiveness g is shrunk as there. What stands on top changes how often what is below it is examined, which the
position-based model does not know.
"""

import numpy as np

from posbias.core.evaluation.prediction import CONTEXT, PairAttractiveness
from posbias.core.schema import PREVIOUS_CLICK


def browsing_difference(posterior: PairAttractiveness) -> float:
    """The clicks that a ranking gains under the user browsing model, N D.

    Args:
        posterior: pairs of whole queries, with counts by position and last click above.
    """
    placed, value = posterior.placed, posterior.value
    part, by, there = placed.part, placed.part.by, placed.exposure_there > 0
    n_contexts, n_ranks, n_groups = int(by.context.max()) + 1, int(by.position.max()) + 1, len(part.pages)
    theta = np.zeros((n_contexts, n_ranks, n_ranks))
    theta[by.context, by.position, by.cells[PREVIOUS_CLICK].to_numpy()] = np.nan_to_num(by.theta)
    group, rank = placed.group[there], placed.rank[there]
    pages = placed.exposure_there[there] / by.theta[placed.cell[there]]  # that have this rank
    attraction = np.zeros((n_groups, n_ranks))
    attraction[group, rank] = value[there] * pages / part.pages[group]
    context = part.groups[CONTEXT].to_numpy()
    clicks, last = np.zeros(n_groups), np.zeros((n_groups, n_ranks))  # probability of each rank of the last click
    last[:, 0] = 1.0
    for at in range(1, n_ranks):
        clicked = last[:, :at] * np.minimum(theta[context, at, :at] * attraction[:, at, np.newaxis], 1.0)
        last[:, :at] -= clicked
        last[:, at] = clicked.sum(axis=1)
        clicks += last[:, at]
    of_log = placed.used
    return float(clicks @ (part.pages * placed.ranked) - placed.exposure[of_log] @ value[of_log])
