"""Score tests of a factorised model: whether theta differs within the cells that the model takes for one.

Cells f are finer than the model's own, e = e(f). The model says that theta is the same in all f of one e; against it
stands theta_f = theta_e exp(delta z_f). With p_jf = n_jf theta_e(f) / sum and C_j the clicks of unit j, at the estimate
of theta under the model,

    s_g = sum_{j in g} (c_j - C_j p_j),    H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'),    H = sum_g H_g
    z* = z - D (D'H D)^-1 D'H z            D the model's cells: that theta is estimated no longer matters
    a_g = z*'H_g z*,    A = sum_g a_g,     delta = sum_g z*'s_g / A
    V(delta) = (G - 1) / G sum_g u_g^2 / A^2,    u_g = (z*'s_g - a_g delta) / (1 - a_g / A)

u_g / A is what leaving cluster g out changes in delta. It is judged by Student's t with min(G*, G - 1) degrees of
freedom, G* = A^2 / sum_g a_g^2. Only the model itself is fitted, so that cells without any click say as much as others.

Sources: Rao 1948 (score test); Neyman 1959 (z*); Bell & McCaffrey 2002, MacKinnon, Nielsen & Webb 2023 (jackknife).
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays import unit_diagonal
from posbias.core.arrays.count_table import CountTable, Floats, Integers, starts, sum_by_number
from posbias.core.arrays.linalg import student_tail
from posbias.core.arrays.members import Members
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.errors import IdentifiabilityError
from posbias.core.standard_errors.contrasts import LEVEL
from posbias.core.theta.conditional import ConditionalFit, fit_conditional
from posbias.core.theta.linkage import find_linkage

_NOTHING = 1e-12  # share of the information on a direction that is rounding
_PRECISION = 1e-8  # of theta: it need not be more exact than what is judged
_AGREEMENT = 1e-10  # a standard error that is rounding


@dataclass(frozen=True)
class ScoreTest:
    """The result of a score test, as the manifest of a fit holds it.

    Attributes:
        statistic: |delta| / its standard error.
        degrees: degrees of freedom of the error.
        difference_of_logs: delta, one step from 0 towards it, so that a large one is only rough.
        std_error: of delta.
        clusters: G, those that say something about delta.
        p_value: of delta = 0, two-sided.
        p_value_adjusted: the same, adjusted for the tests of its family.
        rejected: whether the adjusted p-value is below .05.
        observed_clicks: where z > 0, among those that say something about it; 0 where earlier versions kept none.
        expected_clicks: what the model expects there, given the clicks on each unit; likewise.
        largest_missed_error: of log theta in any cell, that one such log in five would not show; None where it is not
            known how delta moves theta.
    """

    statistic: float
    degrees: float
    difference_of_logs: float
    std_error: float
    clusters: int
    p_value: float
    p_value_adjusted: float
    rejected: bool
    observed_clicks: float = 0.0
    expected_clicks: float = 0.0
    largest_missed_error: float | None = None


@dataclass(frozen=True)
class FinerCells:
    """Cells f that divide those of a model.

    Attributes:
        cell: shape (F,), the model's cell e(f) of each, ascending.
        direction: shape (F,), z.
        group: shape (K,), the context of each cell of the model; cells of one context are compared with each other.
    """

    cell: Integers
    direction: Floats
    group: Integers


def score_test(strata: Strata, finer: FinerCells) -> ScoreTest | None:
    """Test a model against one direction.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        finer: the fine cells.

    Returns:
        The test; None where the log says nothing about the direction.
    """
    try:
        fit = _fit(strata.signatures, finer)
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None
    inside = replace(strata, signatures=strata.signatures.only_cells(fit.linkage.identified[finer.cell]))
    units = _Units.of(inside, np.exp(np.nan_to_num(fit.log_theta))[finer.cell])
    return units.judged(finer.direction, _orthogonal(units, finer, fit))


def units_test(strata: Strata, direction: Floats) -> ScoreTest | None:
    """The same where each unit lies in one cell of the model, so that its theta drops out and there is none to fit.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        direction: shape (F,), z.
    """
    return _Units.of(strata, np.ones(strata.signatures.n_cells)).judged(direction, direction)


@dataclass(frozen=True)
class _Units:
    """The units that have a click and two fine cells, at the estimate under the model.

    Attributes:
        table: their counts.
        share: shape (R,), p_jf.
        expected: shape (R,), C_j p_jf.
        members: each unit with its cluster.
    """

    table: CountTable
    share: Floats
    expected: Floats
    members: Members

    @classmethod
    def of(cls, strata: Strata, theta: Floats) -> "_Units":
        """The units at theta, shape (F,)."""
        units = np.flatnonzero(strata.signatures.links)
        table = strata.signatures.take(units)
        share = table.impressions * theta[table.cell]
        share /= table.spread(table.sum_by_unit(share))
        expected = table.spread(table.sum_by_unit(table.clicks)) * share
        return cls(table, share, expected, strata.members.among(units).by_cluster())

    def centred(self, values: Floats) -> Floats:
        """Values of the fine cells, shape (F,), by entry, less their mean over p_j, shape (R,)."""
        of_entry = values[self.table.cell]
        return of_entry - self.table.spread(self.table.sum_by_unit(self.share * of_entry))

    def judged(self, direction: Floats, along: Floats) -> ScoreTest | None:
        """The test of z, with z* = `along`, both of shape (F,)."""
        distance, number = self.centred(along), self.members.cluster.astype(np.int64)
        scores, information = (
            sum_by_number(number, self.table.sum_by_unit(of_entry)[self.members.unit], int(number.max(initial=-1)) + 1)
            for of_entry in (self.table.clicks * distance, self.expected * distance**2)
        )
        upwards = direction[self.table.cell] > 0
        observed, expected = (float(clicks[upwards].sum()) for clicks in (self.table.clicks, self.expected))
        return _judged(scores, information, observed, expected)


def _fit(table: CountTable, finer: FinerCells) -> ConditionalFit:
    """The estimate of theta under the model.

    Raises:
        IdentifiabilityError: nothing links two cells of the model.
        numpy.linalg.LinAlgError: the counts are too unequal.
    """
    cell, unit = finer.cell[table.cell], table.unit_of_entry
    first = np.flatnonzero((np.diff(cell, prepend=-1) != 0) | (np.diff(unit, prepend=-1) != 0))
    impressions, clicks = (
        np.add.reduceat(counts, first) if len(first) else counts for counts in (table.impressions, table.clicks)
    )
    entries = np.bincount(unit[first], minlength=table.n_units)
    merged = CountTable(len(finer.group), starts(entries), cell[first], impressions, clicks, table.multiplicity)
    return fit_conditional(merged, find_linkage(merged, finer.group), tolerance=_PRECISION)


def _orthogonal(units: _Units, finer: FinerCells, fit: ConditionalFit) -> Floats:
    """Z*, shape (F,)."""
    slope = units.expected * units.centred(finer.direction)
    of_cell = sum_by_number(finer.cell[units.table.cell], slope, len(finer.group))
    explained = np.zeros(len(finer.group))
    explained[fit.free_cells] = unit_diagonal.solve(fit.information, of_cell[fit.free_cells])
    return finer.direction - explained[finer.cell]


def _judged(scores: Floats, information: Floats, observed: float, expected: float) -> ScoreTest | None:
    """The test from each cluster's score and information, both of shape (G,)."""
    total = float(information.sum())
    counts = information > _NOTHING * total
    n_clusters = int(counts.sum())
    if n_clusters <= 1:
        return None
    delta = float(scores.sum()) / total
    leverage = information[counts] / total
    lost = (scores[counts] / total - leverage * delta) / np.maximum(1 - leverage, _NOTHING)
    std_error = float(np.sqrt((n_clusters - 1) / n_clusters * (lost**2).sum()))
    if std_error <= _AGREEMENT:
        return None
    degrees = max(min(1 / float((leverage**2).sum()), n_clusters - 1.0), 1.0)
    p_value = min(2 * float(student_tail(np.array(abs(delta) / std_error), np.array(degrees))), 1.0)
    return ScoreTest(
        statistic=abs(delta) / std_error,
        degrees=degrees,
        difference_of_logs=delta,
        std_error=std_error,
        clusters=n_clusters,
        p_value=p_value,
        p_value_adjusted=p_value,
        rejected=p_value < LEVEL,
        observed_clicks=observed,
        expected_clicks=expected,
    )
