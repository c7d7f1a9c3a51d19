"""Whether documents were placed at random among the positions of the randomised rows: a test, and who is refused.

The sum of w_d (`counts.placements`) has mean 0 under randomisation, and is positive where a document tends to stand
at the same position each time: where only one arm of a swap is marked, or rows that the ranker placed. With V its
variance, estimated from the queries within the limits that any randomisation keeps, and its skewness chi-square's,

    V = min(max(sum_q w_q^2, lowest), highest),    c = V / lowest,    nu = V / (2 c^2)
    p = P(chi-square with nu degrees > (sum w + c nu) / c)

Rows are refused at the level .001, and where the correlation of a document's positions is notable as well: users who
reload a page raise it a little.
"""

from dataclasses import dataclass

from posbias.core.arrays.linalg import chi_square_tail
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import POSITION, RANDOMIZED

REFUSED_BELOW = 0.001
"""The p-value below which rows are refused: one honest log in a thousand."""

NOTABLE_CORRELATION = 0.02
"""Correlation of the positions of one document from which on rows are refused: one arm of a swap has .1 to 1."""

_ONE_ARM = 0.99


@dataclass(frozen=True)
class PlacementTest:
    """What one description of randomised rows says about itself."""

    rows: RandomizedRows  # the description
    p_value: float  # of such an excess if documents were placed at random; 1 where nothing can be compared
    correlation: float  # of the positions of a document from one of its rows to another, 0 under randomisation
    documents: int  # (query, document) shown more than once among these rows; 0: nothing can be compared
    queries: int  # how many queries they belong to

    @property
    def refused(self) -> bool:
        """Whether the rows cannot have been placed at random."""
        return self.p_value < REFUSED_BELOW and self.correlation >= NOTABLE_CORRELATION


def placement_tests(statistics: SufficientStatistics) -> tuple[PlacementTest, ...]:
    """A test for each description that some row fits; none where rows carry weights."""
    if statistics.placements is None:
        return ()
    sums = {row[RANDOMIZED]: row for row in statistics.placements.sums.iter_rows(named=True)}
    shown = set(statistics.placements.shown[RANDOMIZED].to_list())
    descriptions = enumerate(statistics.plan.randomized, start=1)
    return tuple(_test(rows, sums.get(number)) for number, rows in descriptions if number in shown)


def _test(rows: RandomizedRows, sums: dict[str, float] | None) -> PlacementTest:
    if sums is None:
        return PlacementTest(rows, 1.0, 0.0, 0, 0)
    lowest = sums["lowest_variance"]
    variance = min(max(sums["excess_squared"], lowest), sums["highest_variance"])
    scale = variance / lowest
    degrees = variance / (2 * scale**2)
    return PlacementTest(
        rows,
        p_value=chi_square_tail(sums["excess"] / scale + degrees, degrees),
        correlation=sums["together"] / sums["pairs"],
        documents=int(sums["documents"]),
        queries=int(sums["queries"]),
    )


def check_placements(statistics: SufficientStatistics) -> None:
    """See that what is called randomised can have been.

    Raises:
        IdentifiabilityError: a position that was named has no row, or documents stand where they stood before.
    """
    if statistics.placements is None:
        return
    shown = set(statistics.placements.shown.select(RANDOMIZED, POSITION).iter_rows())
    bins = statistics.plan.position_bins
    for number, rows in enumerate(statistics.plan.randomized, start=1):
        binned = {at: max((first for first in bins if first <= at), default=at) for at in rows.positions}
        missing = [at for at in rows.positions if (number, binned[at]) not in shown]
        if missing and len(missing) < len(rows.positions):
            listed = ", ".join(map(str, missing))
            raise IdentifiabilityError(
                f"Of the rows with {rows} (--randomized-where), none is at position {listed}: documents cannot have "
                "been exchanged with it. Name the positions between which they were."
            )
    for test in placement_tests(statistics):
        if test.refused:
            raise IdentifiabilityError(_why_refused(test))


def _why_refused(test: PlacementTest) -> str:
    found = (
        f"The rows with {test.rows} (--randomized-where) were not placed at random: of {test.documents:,} documents "
        f"that are shown there more than once, in {test.queries:,} queries,"
    )
    if test.correlation >= _ONE_ARM:
        return (
            f"{found} each stands at the same position every time. Only one arm of the experiment is marked, or no row "
            "was moved. Mark all rows that took part: those that were moved and those that were not."
        )
    return (
        f"{found} many stand at the same position time and again (correlation {test.correlation:.2f}, p = "
        f"{test.p_value:.1g}). Mark all rows that took part in the experiment, moved or not, and no others; and name "
        "the positions among which documents were exchanged (COLUMN=VALUE@1,5) unless it was the whole page."
    )
