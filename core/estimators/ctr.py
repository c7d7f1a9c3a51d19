"""The naive click rate: what people often take for a propensity. For comparison only, so it reports no errors."""

from collections.abc import Callable

import numpy as np

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.estimate import Estimate, EstimationOptions, cells_like, relative_to_largest
from posbias.core.estimators.estimator import Estimator
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.theta.linkage import NO_CLICKS, NO_REFERENCE, Linkage


class ClickRateEstimator(Estimator):
    """theta_e / theta_ref = click rate in e / click rate in the reference: right only if documents stand at random."""

    name = "ctr"
    rank = 5
    reference = "Craswell et al. 2008 (the baseline)"
    uses_strata = False

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,  # noqa: ARG002 - every estimator takes the same
        options: EstimationOptions,
        on_iteration: Callable[[str], None],  # noqa: ARG002
    ) -> Estimate:
        """Click rates relative to that of the reference, the first cell with a click.

        Raises:
            IdentifiabilityError: there is no click, or none in the reference that was asked for.
            UsageError: there is no such reference cell.
        """
        impressions, clicks = statistics.cell_totals
        rate = clicks / impressions
        asked = cells_like(statistics, options.reference) if options.reference else np.arange(statistics.n_cells)
        reference_of = _references(statistics.context_of_cell, asked[clicks[asked] > 0])
        known = (clicks > 0) & (reference_of >= 0)
        if not known.any():
            raise IdentifiabilityError(
                "no cell (position) that could be the reference has a click, so there is no click rate to compare with."
            )
        reasons = np.select([known, clicks == 0], ["", NO_CLICKS], default=NO_REFERENCE)
        linkage = Linkage(
            reference_of=np.where(reference_of >= 0, reference_of, 0),
            identified=known,
            reason=tuple(str(reason) or None for reason in reasons),
            linking_pairs=np.zeros(statistics.n_cells),
            linking_clicks=np.zeros(statistics.n_cells),
            component=reference_of,
        )
        of_reference = np.where(known, rate[linkage.reference_of], 1.0)
        propensity = np.where(known, rate / of_reference, np.nan)
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=propensity,
            examination=relative_to_largest(propensity, linkage),
            intervals=Intervals.unknown(linkage.reason),
            converged=True,
            iterations=0,
        )


def _references(context: Integers, candidates: Integers) -> Integers:
    """The first candidate of each cell's context, -1 where it has none, shape (K,)."""
    first = {int(context[cell]): int(cell) for cell in candidates[::-1]}
    return np.array([first.get(int(number), -1) for number in context], np.int64)
