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
from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import student_tail
from posbias.core.arrays.members import Members
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.errors import IdentifiabilityError
from posbias.core.standard_errors.contrasts import LEVEL
from posbias.core.theta.conditional import fit_conditional
from posbias.core.theta.linkage import find_linkage

_NOTHING = 1e-12  # share of the information on a direction that is rounding
_PRECISION = 1e-8  # of theta: it need not be more exact than what is judged
_AGREEMENT = 1e-10  # a standard error that is rounding


@dataclass(frozen=True)
class ScoreTest:
    """The result of a score test, as the manifest of a fit holds it."""

    statistic: float  # |delta| / its standard error
    degrees: float  # of freedom of the error
    difference_of_logs: float  # delta, one step from 0 towards it, so that a large one is only rough
    std_error: float  # of delta
    clusters: int  # G, those that say something about delta
    p_value: float  # of delta = 0, two-sided
    p_value_adjusted: float  # the same, adjusted for the tests of its family
    rejected: bool  # whether the adjusted p-value is below .05
    observed_clicks: float = 0.0  # where z > 0, among those that say something about it; 0 in earlier versions
    expected_clicks: float = 0.0  # by the model, given the clicks on each unit; likewise
    largest_missed_error: float | None = None  # of log theta in any cell, that one such log in five would not show


def score_test(strata: Strata, cell: Integers, direction: Floats, group: Integers) -> ScoreTest | None:
    """Test a model against one direction.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        cell: shape (F,), the model's cell e(f) of each fine cell, ascending.
        direction: shape (F,), z.
        group: shape (K,), the context of each cell of the model; cells of one context are compared with each other.

    Returns:
        The test; None where the log says nothing about the direction.
    """
    try:
        counts = strata.signatures.merged(cell, len(group))
        fit = fit_conditional(counts, find_linkage(counts, group), tolerance=_PRECISION)
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None
    inside = replace(strata, signatures=strata.signatures.only_cells(fit.linkage.identified[cell]))
    units = _Units.of(inside, np.exp(np.nan_to_num(fit.log_theta))[cell])
    slope = units.expected * units.centred(direction)
    of_cell = sum_by_number(cell[units.table.cell], slope, len(group))
    explained = np.zeros(len(group))
    explained[fit.free_cells] = unit_diagonal.solve(fit.information, of_cell[fit.free_cells])
    return units.judged(direction, direction - explained[cell])


def units_test(strata: Strata, direction: Floats) -> ScoreTest | None:
    """The same where each unit lies in one cell of the model, so that its theta drops out and there is none to fit.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        direction: shape (F,), z.
    """
    return _Units.of(strata, np.ones(strata.signatures.n_cells)).judged(direction, direction)


@dataclass(frozen=True)
class _Units:
    """The units that have a click and two fine cells, at the estimate under the model."""

    table: CountTable  # their counts
    share: Floats  # shape (R,), p_jf
    expected: Floats  # shape (R,), C_j p_jf
    members: Members  # each unit with its cluster

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
        delta, std_error, degrees, n_clusters = ratio_of_sums(scores, information)
        if n_clusters <= 1 or std_error <= _AGREEMENT:
            return None
        p_value = min(2 * float(student_tail(np.array(abs(delta) / std_error), np.array(degrees))), 1.0)
        upwards = direction[self.table.cell] > 0
        return ScoreTest(
            statistic=abs(delta) / std_error,
            degrees=degrees,
            difference_of_logs=delta,
            std_error=std_error,
            clusters=n_clusters,
            p_value=p_value,
            p_value_adjusted=p_value,
            rejected=p_value < LEVEL,
            observed_clicks=float(self.table.clicks[upwards].sum()),
            expected_clicks=float(self.expected[upwards].sum()),
        )


def ratio_of_sums(above: Floats, below: Floats) -> tuple[float, float, float, int]:
    """The ratio of two sums over clusters, both of shape (G,), and how far it moves when each cluster is left out.

    Returns:
        The ratio, its standard error, the degrees of freedom of that, and how many clusters count; one has no error.
    """
    total = float(below.sum())
    number = int((below > _NOTHING * total).sum())
    if not number:
        return np.nan, np.nan, np.nan, 0
    ratio, share = float(above.sum()) / total, below / total
    lost = (above / total - share * ratio) / np.maximum(1 - share, _NOTHING)
    std_error = float(np.sqrt((number - 1) / number * (lost**2).sum()))
    return ratio, std_error, max(min(1 / float((share**2).sum()), number - 1.0), 1.0), number
