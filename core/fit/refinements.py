"""What further assumptions make of the free conditional estimate: a shape over positions, contexts that are alike."""

from dataclasses import replace

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.choices import LARGEST_ERROR, Cluster
from posbias.core.estimators.estimate import Estimate, FittedCurve, relative_to_largest
from posbias.core.shapes import get_shape
from posbias.core.shapes.contexts import ShrunkContexts, shrink_contexts
from posbias.core.shapes.shape import ShapedEstimate
from posbias.core.standard_errors.cluster import ClusterErrors
from posbias.core.standard_errors.contrasts import FittedStrata

OF_OTHERS = "its number is that of the other contexts, without an interval for this one"


def with_errors(estimate: Estimate, fitted: FittedStrata, errors: ClusterErrors, by: Cluster) -> Estimate:
    """The estimate with other errors of the same conditional fit.

    The upper limit of a cell without clicks stays: it is no matter of clusters.
    """
    without_error = (in_terms_of(by, reason) for reason in errors.reason)
    reason = tuple(unlinked or alone for unlinked, alone in zip(fitted.fit.linkage.reason, without_error, strict=True))
    high = np.where(fitted.fit.linkage.identified, errors.high, estimate.intervals.high)
    return replace(
        estimate,
        intervals=replace(errors, high=high, reason=reason),
        fitted=replace(fitted, errors=errors),
        errors_by=by,
        n_clusters=errors.n_clusters,
    )


_NAMES: dict[Cluster, tuple[str, str]] = {
    "pair": ("pairs", "pair"),
    "session": ("sessions", "session"),
    "column": ("values of the cluster column", "value of the cluster column"),
    "two-way": ("queries or values of the cluster column", "query or value of the cluster column"),
}


def in_terms_of(by: Cluster, reason: str | None) -> str | None:
    """Why there is no error, said of what the errors are clustered by; e.g. `one query alone` -> `one pair alone`."""
    if reason is None or by == "query":
        return reason
    many, one = _NAMES[by]
    return reason.replace("queries", many).replace("query", one)


def with_shape(
    estimate: Estimate, fitted: FittedStrata, shape: str, position_of_cell: Integers
) -> tuple[Estimate, ShapedEstimate]:
    """The estimate under a shape other than `free`, and the shape's own findings."""
    shaped = get_shape(shape).fit(fitted, position_of_cell)
    propensity = shaped.theta
    high = np.where(np.isfinite(propensity), shaped.intervals.high, estimate.intervals.high)
    return (
        replace(
            estimate,
            propensity=propensity,
            examination=relative_to_largest(propensity, fitted.fit.linkage),
            intervals=replace(shaped.intervals, high=high),
            converged=estimate.converged and shaped.converged,
        ),
        shaped,
    )


def is_thin(propensity: Floats, std_error: Floats) -> Flags:
    """Cells with a propensity whose relative standard error is beyond `LARGEST_ERROR`, or which have none."""
    return np.isfinite(propensity) & ~(std_error <= LARGEST_ERROR)


def with_shrinkage(
    estimate: Estimate, fitted: FittedStrata | FittedCurve, position_of_cell: Integers
) -> tuple[Estimate, ShrunkContexts]:
    """The estimate with each context shrunk towards the curve that they share, and how far.

    A cell for which no context has an error stays as it is. One whose own context has none has the others' number, and
    no interval: these say nothing of how far it may be from them.
    """
    shrunk = shrink_contexts(fitted.fit, fitted.errors, position_of_cell)
    known = np.isfinite(shrunk.log_theta)
    propensity = np.where(known, np.exp(shrunk.log_theta), estimate.propensity)
    intervals = shrunk.intervals.or_else(estimate.intervals)
    alone = known & np.isnan(intervals.std_error)
    reason = (
        f"{why}; {OF_OTHERS}" if of_others and why else why
        for why, of_others in zip(intervals.reason, alone, strict=True)
    )
    estimate = replace(
        estimate,
        propensity=propensity,
        examination=relative_to_largest(propensity, fitted.fit.linkage),
        intervals=replace(intervals, reason=tuple(reason)),
    )
    return estimate, shrunk
