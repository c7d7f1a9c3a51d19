"""Does the model hold? Tests with power, of what observed against expected clicks per cell cannot see.

The estimate solves nearly the equations observed = expected, so that these agree whatever is wrong. Three tests look
elsewhere, each a `score_test` with one degree of freedom, clustered by query:

attractiveness   whether theta is the same for documents that are clicked more (`cross_fitting`); from the counts
clicks_above     whether clicks depend on the number of clicks above: none, one, several; from pages
last_click       whether they depend on where the one click above was: directly above, or further up; from pages

The latter two compare a document with itself at the same position, so that neither the ranker nor what a query's users
share at a position comes in.
They are a family: p-values are adjusted by Holm's method, so that under the model some test rejects in 5 % of logs.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.counts.clicks_above import ClicksAbove, CountedPages
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.fit.cross_fitting import attractiveness_test
from posbias.core.periods import Length
from posbias.core.standard_errors.contrasts import LEVEL, FittedStrata
from posbias.core.standard_errors.score_test import ScoreTest, units_test

TESTS = ATTRACTIVENESS, CLICKS_ABOVE, LAST_CLICK = "attractiveness", "clicks_above", "last_click"
"""The tests by name."""

NO_PAGES = "it needs the pages of a log (--session), and statistics hold none"

_NUMBER = np.array([0.0, 1.0, 1.0, 2.0])
_DIRECTLY = np.array([0.0, 1.0, 0.0, 0.0])
_ONE = np.isin(np.arange(len(ClicksAbove)), (ClicksAbove.ONE_DIRECTLY_ABOVE, ClicksAbove.ONE_FURTHER_UP))

LEVEL_OF_DOUBT = 0.01
"""From here on a rejection makes exit code 1: a job that runs every day meets one of twenty logs by chance."""


@dataclass(frozen=True)
class ModelTests:
    """What the tests found.

    Attributes:
        attractiveness: of theta by attractiveness; None where the log says nothing about it.
        clicks_above: of clicks by the number of clicks above; None likewise, and where there were no pages.
        last_click: of clicks by where the one click above was; None likewise.
        why_no_pages: why there were no pages to look at, in words; empty where there were.
        impressions: of the pages that were looked at.
    """

    attractiveness: ScoreTest | None
    clicks_above: ScoreTest | None = None
    last_click: ScoreTest | None = None
    why_no_pages: str = ""
    impressions: int = 0

    @property
    def found(self) -> dict[str, ScoreTest]:
        """The tests that could be made, by name."""
        all_three = (self.attractiveness, self.clicks_above, self.last_click)
        return {name: found for name, found in zip(TESTS, all_three, strict=True) if found is not None}

    @property
    def adjusted(self) -> dict[str, float]:
        """The p-value of each test that there is, adjusted for their number by Holm's method."""
        found = {
            "attractiveness": self.attractiveness,
            "clicks_above": self.clicks_above,
            "last_click": self.last_click,
        }
        p_values = {name: one.test.p_value for name, one in found.items() if one is not None}
        ascending = sorted(p_values, key=lambda name: p_values[name])
        adjusted, largest = dict[str, float](), 0.0
        for rank, name in enumerate(ascending):
            largest = max(largest, min((len(ascending) - rank) * p_values[name], 1.0))
            adjusted[name] = largest
        return {name: adjusted[name] for name in p_values}

    @property
    def rejected(self) -> frozenset[str]:
        """The tests that reject the model, the family's level being .05."""
        return frozenset(name for name, p_value in self.adjusted.items() if p_value < LEVEL)

    @property
    def depends_on_clicks_above(self) -> frozenset[str]:
        """The tests of pages that reject the model."""
        return self.rejected - {ATTRACTIVENESS}

    @property
    def users_may_differ(self) -> bool:
        """Whether what pages show could come from users or devices that differ, each following the model.

        One who clicked above then clicks more readily, or looks further down. As long as the ranker does not know the
        user, the mean over them is theta all the same. Fewer clicks below clicks cannot come from that.
        """
        fewer = self.clicks_above is not None and self.clicks_above.observed < self.clicks_above.expected
        return bool(self.depends_on_clicks_above) and not (CLICKS_ABOVE in self.rejected and fewer)

    @property
    def doubts(self) -> frozenset[str]:
        """The tests because of which propensities are not to be taken at face value."""
        sure = frozenset(name for name, p_value in self.adjusted.items() if p_value < LEVEL_OF_DOUBT)
        return sure - self.depends_on_clicks_above if self.users_may_differ else sure


def run_model_tests(
    statistics: SufficientStatistics, fitted: FittedStrata, pages: CountedPages | None, period: Length
) -> ModelTests:
    """Test the model that an estimate was made under.

    Args:
        statistics: of the whole log.
        fitted: the estimate.
        pages: a sample of its pages, where there are any.
        period: by which the estimate lets attractiveness differ.
    """
    group, plan = statistics.context_of_cell, statistics.plan
    attractiveness = None if plan.weighted else attractiveness_test(fitted, group)
    why = why_no_pages(plan)
    if why or pages is None:
        return ModelTests(attractiveness, why_no_pages=why or NO_PAGES)
    strata = pages.strata(period)
    one_click = replace(strata, signatures=strata.signatures.only_cells(_ONE))
    return ModelTests(
        attractiveness,
        clicks_above=units_test(strata, _NUMBER),
        last_click=units_test(one_click, _DIRECTLY),
        impressions=pages.impressions,
    )


def why_no_pages(plan: StatisticsPlan) -> str:
    """Why a log that is counted by such a plan needs no look at its pages, in words; empty where it does."""
    if plan.model.beside_position:
        return f"cells of --model {plan.model.name} hold what was clicked above"
    if plan.weighted:
        return "the counts are weighted"
    return ""
