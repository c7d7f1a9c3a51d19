"""The propensity table: what is known of each cell, how well, and why not where it is not."""

import numpy as np
import polars as pl

from posbias.core.estimators import Estimate
from posbias.core.evidence import Evidence
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.core.signatures import Floats


def propensity_table(evidence: Evidence, estimate: Estimate, joint_propensity: Floats | None) -> pl.DataFrame:
    """One row per cell, sorted by cell; counts are whole numbers unless they are sums of weights.

    Returns:
        The cell columns, `impressions`, `clicks`, `ctr`, `propensity` (relative to the reference cell = 1),
        `examination` (in [0, 1]), `std_error` (of log propensity), `ci_low`, `ci_high`, `identified`, `reason`,
        `linking_pairs`, `linking_clicks`, `joint_propensity`. What is not known is null.
    """
    impressions, clicks = evidence.cell_totals()
    linkage = estimate.linkage
    dtype = pl.Float64 if evidence.plan.weighted else pl.Int64
    return evidence.cells.with_columns(
        pl.Series(IMPRESSIONS, impressions).cast(dtype),
        pl.Series(CLICKS, clicks).cast(dtype),
        pl.Series("ctr", clicks / impressions),
        _known("propensity", estimate.propensity),
        _known("examination", estimate.examination),
        _known("std_error", estimate.std_error),
        _known("ci_low", estimate.ci_low),
        _known("ci_high", estimate.ci_high),
        pl.Series("identified", linkage.identified),
        pl.Series("reason", estimate.reason, dtype=pl.String),
        pl.Series("linking_pairs", linkage.linking_pairs).cast(pl.Int64),
        pl.Series("linking_clicks", linkage.linking_clicks).cast(dtype),
        _known(
            "joint_propensity",
            np.full(evidence.n_cells, np.nan) if joint_propensity is None else joint_propensity,
        ),
    )


def _known(name: str, values: Floats) -> pl.Series:
    return pl.Series(name, np.asarray(values, np.float64), nan_to_null=True)
