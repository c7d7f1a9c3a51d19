"""Does the model hold? Tests with power, of what observed against expected clicks per cell cannot see.

The estimate solves nearly the equations observed = expected, so that these agree whatever is wrong. Three tests look
elsewhere, each a `score_test` with one degree of freedom, clustered by query:

attractiveness   whether theta is the same for documents that are clicked more (`cross_fitting`); from the counts
clicks_above     whether clicks depend on the number of clicks above: none, one, several; from pages
last_click       whether they depend on where the one click above was: directly above, or further up; from pages

The latter two compare a document with itself in the same cell, so that neither the ranker nor what a query's users
share at a position comes in. In the cells of UBM, which hold the last click above, the number of clicks above is left.
They are a family: p-values are adjusted by Holm's method, so that under the model some test rejects in 5 % of logs.

Effect sizes: clicks by number above, over those that the other impressions of the document in the same cell let expect,

    sum_j c_jk / sum_j (n_jk C_j - c_jk) / (n_j - 1),    n_j, C_j of the document in the cell, n_jk, c_jk below k clicks

with the jackknife over queries. What a test that does not reject leaves open of theta is the `detectable` delta times
what delta does to log theta: the mean number of clicks above, where it is largest; for attractiveness see
`cross_fitting`.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.clicks_above import NUMBER_ABOVE, ClicksAbove, CountedPages
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.fit.cross_fitting import attractiveness_test
from posbias.core.periods import Length
from posbias.core.standard_errors.contrasts import LEVEL, FittedStrata, detectable
from posbias.core.standard_errors.leave_one_out import t_quantile
from posbias.core.standard_errors.score_test import ScoreTest, ratio_of_sums, units_test
from posbias.core.theta.conditional import UPPER_TAIL

TESTS = ATTRACTIVENESS, CLICKS_ABOVE, LAST_CLICK = "attractiveness", "clicks_above", "last_click"
"""The tests by name."""

NO_PAGES = "it needs the pages of a log (--session), and statistics hold none"
WEIGHTED = "the counts are weighted"

_NUMBER = NUMBER_ABOVE.astype(np.float64)
_NONE_ONE_SEVERAL = np.minimum(_NUMBER, 2)
_ONE = np.isin(np.arange(len(ClicksAbove)), (ClicksAbove.ONE_DIRECTLY_ABOVE, ClicksAbove.ONE_FURTHER_UP))
_DIRECTLY = (np.arange(len(ClicksAbove)) == ClicksAbove.ONE_DIRECTLY_ABOVE).astype(np.float64)

MOST_ABOVE = int(NUMBER_ABOVE.max())
"""Stands for so many clicks above, or more."""

_LEVELS = MOST_ABOVE + 1

LEVEL_OF_DOUBT = 0.01
"""From here on a rejection makes exit code 1: a job that runs every day meets one of twenty logs by chance."""


@dataclass(frozen=True)
class ClicksBelow:
    """Clicks on results below some number of clicks, against those of the same documents in their cells."""

    clicks_above: int  # 3 stands for three and more
    impressions: float  # of documents that were also shown below another number of clicks
    observed_clicks: float  # on these
    expected_clicks: float  # by the other impressions of each document in the same cell
    ratio: float  # observed over expected
    interval: tuple[float, float] | None  # its 95 % interval; None where fewer than two queries say something


@dataclass(frozen=True)
class ModelTests:
    """The results of the tests, as the manifest of a fit holds them; None where a test could not be made."""

    attractiveness: ScoreTest | None  # of theta by attractiveness
    clicks_above: ScoreTest | None = None  # of clicks by the number of clicks above
    last_click: ScoreTest | None = None  # of clicks by where the one click above was
    impressions_of_pages: int = 0  # that the latter two looked at
    by_clicks_above: tuple[ClicksBelow, ...] = ()  # the same as effect sizes
    why_no_pages: str = ""  # in words; empty where there were pages to look at
    averages_users: bool = True  # whether propensities are right as means where users differ: not in cells of clicks

    @property
    def made(self) -> dict[str, ScoreTest]:
        """The tests that could be made, by name."""
        results = zip(TESTS, (self.attractiveness, self.clicks_above, self.last_click), strict=True)
        return {name: test for name, test in results if test is not None}

    @property
    def rejected(self) -> frozenset[str]:
        """The tests that reject the model, the family's level being .05."""
        return frozenset(name for name, test in self.made.items() if test.rejected)

    @property
    def depends_on_clicks_above(self) -> frozenset[str]:
        """The tests of pages that reject the model."""
        return self.rejected - {ATTRACTIVENESS}

    @property
    def users_may_differ(self) -> bool:
        """Whether what pages show could come from users or devices that differ, and leaves propensities right as means.

        One who clicked above then clicks more readily, or looks further down. As long as the ranker does not know the
        user, the mean over them is theta all the same. Fewer clicks below clicks cannot come from that.
        """
        above = self.clicks_above
        fewer = above is not None and above.rejected and above.observed_clicks < above.expected_clicks
        return self.averages_users and bool(self.depends_on_clicks_above) and not fewer

    @property
    def doubts(self) -> frozenset[str]:
        """The tests because of which the model does not hold, and propensities are not to be taken at face value."""
        sure = frozenset(name for name, test in self.made.items() if test.p_value_adjusted < LEVEL_OF_DOUBT)
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
    plan, averages = statistics.plan, not statistics.plan.model.beside_position
    attractiveness = None if plan.weighted else attractiveness_test(fitted, statistics.context_of_cell)
    if plan.weighted or pages is None:
        why = WEIGHTED if plan.weighted else NO_PAGES
        (alone,) = _family(attractiveness)
        return ModelTests(alone, why_no_pages=why, averages_users=averages)
    strata = pages.strata(period)
    one_click = replace(strata, signatures=strata.signatures.only_cells(_ONE))
    number = _NONE_ONE_SEVERAL if averages else _NUMBER
    above, last = units_test(strata, number), units_test(one_click, _DIRECTLY)
    by_attractiveness, by_number, by_place = _family(
        attractiveness,
        None if above is None else (above, pages.largest_mean(number)),
        None if last is None else (last, pages.largest_mean(_DIRECTLY)),
    )
    return ModelTests(
        by_attractiveness,
        by_number,
        by_place,
        impressions_of_pages=pages.impressions,
        by_clicks_above=clicks_below(strata),
        averages_users=averages,
    )


def _family(*made: tuple[ScoreTest, float] | None) -> list[ScoreTest | None]:
    """Tests with p-values adjusted for their number by Holm's method, and what they leave open of theta.

    Args:
        made: each test that could be made, and how far theta is off per unit of delta.
    """
    ascending = sorted(one[0].p_value for one in made if one is not None)
    number = len(ascending)
    of_rank = np.maximum.accumulate([min((number - rank) * p_value, 1.0) for rank, p_value in enumerate(ascending)])

    def of_family(test: ScoreTest, error: float) -> ScoreTest:
        adjusted = float(of_rank[ascending.index(test.p_value)])
        missed = detectable(test.std_error, test.degrees, LEVEL / number) * error
        return replace(
            test,
            p_value_adjusted=adjusted,
            rejected=adjusted < LEVEL,
            largest_missed_error=missed if np.isfinite(missed) else None,
        )

    return [None if one is None else of_family(*one) for one in made]


def clicks_below(strata: Strata) -> tuple[ClicksBelow, ...]:
    """Clicks by the number of clicks above, each over what a document's other impressions in the same cell let expect.

    Args:
        strata: counts by document in a cell and state, clustered by query, each unit once.
    """
    above = NUMBER_ABOVE[strata.signatures.cell].astype(np.float64)
    differ = strata.signatures.max_by_unit(above) > -strata.signatures.max_by_unit(-above)
    units = np.flatnonzero(strata.signatures.links & differ)
    table, members = strata.signatures.take(units), strata.members.among(units).by_cluster()
    shown, clicked = (table.spread(table.sum_by_unit(counts)) for counts in (table.impressions, table.clicks))
    expected = (table.impressions * clicked - table.clicks) / (shown - 1)
    query = np.empty(table.n_units, np.int64)
    query[members.unit] = members.cluster
    group = NUMBER_ABOVE[table.cell] + _LEVELS * np.repeat(query, table.entries_of_unit)
    sums = [
        np.bincount(group, values, _LEVELS * (int(query.max(initial=-1)) + 1)).reshape(-1, _LEVELS).T
        for values in (table.impressions, table.clicks, expected)
    ]
    return tuple(
        _ratio(above, float(impressions.sum()), clicks, of_query)
        for above, (impressions, clicks, of_query) in enumerate(zip(*sums, strict=True))
        if of_query.sum() > 0
    )


def _ratio(above: int, impressions: float, clicks: Floats, expected: Floats) -> ClicksBelow:
    """The ratio of the sums of clicks and expected clicks by query, with the jackknife's interval of its logarithm."""
    ratio, error, degrees, n_queries = ratio_of_sums(clicks, expected)
    interval = None
    if ratio and n_queries > 1:
        margin = float(np.exp(t_quantile(np.array(degrees)) * error / ratio))
        interval = (ratio / margin, ratio * margin)
    elif n_queries > 1:
        interval = (0.0, float(-np.log(UPPER_TAIL) / expected.sum()))
    return ClicksBelow(above, impressions, float(clicks.sum()), float(expected.sum()), ratio, interval)
