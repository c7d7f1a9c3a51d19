"""Three score tests of the model, effect sizes, and held-out comparison with other click models.

Observed minus expected clicks by cell are nearly 0 by construction, whatever is wrong. The tests, each a `score_test`
with one degree of freedom, clustered by query, are:

attractiveness   whether theta is the same for more and less attractive documents (`attractiveness_test`); from counts
clicks_above     whether clicks depend on the number of clicks above: none, one, several; from pages
last_click       whether clicks depend on the place of the one click above: directly above or further up; from pages

The tests of pages compare a document with itself in the same cell, so that they depend neither on the ranker nor on the
habits of a query's users. The cells of UBM contain the last click above; there the number of clicks above is tested.
P-values are adjusted for the family by Holm's method: under the model, some test rejects in 5 % of logs.

Effect sizes: clicks below k clicks, over those expected by the other impressions of the document in the same cell,

    sum_j c_jk / sum_j (n_jk C_j - c_jk) / (n_j - 1),    n_j, C_j of the document in the cell, n_jk, c_jk below k clicks

with the jackknife over queries. The error of theta that a test may miss is its `detectable` delta times the change of
log theta by delta: the mean number of clicks above, at the position where it is largest; for attractiveness see below.

Test by attractiveness: a factorised model has P(click) = theta_e gamma_j, so that theta_e estimated from any of a
query's documents is the same. Attractiveness must not be estimated from the clicks that theta is then estimated from
(cross-fitting). The n impressions of each (unit, cell), with c clicks, are split at random into halves A and B,

    n_A = n / 2 (an odd one to either half),    c_A ~ Hypergeometric(c of n, n_A drawn),

two independent logs. In one half the attractiveness of a unit of query q is, by its clicks and by those expected in its
cells at the rate of the query, E_j = sum_e n_je theta_e,

    s_j = (C_j + k r_q) / (E_j + k) - mean over the query,    r_q = sum C / sum E,    k = mean r / variance of C_j / E_j

(the mean is by clicks of the other half). Units are put into `N_GROUPS` groups by s_j, of equal clicks, with their mean
s as score. In the other half theta of the groups is compared; then the halves change places. The alternative is

    log theta_e + b s_g D_e,    D_e = (1 - theta_e) log(theta_K) / (1 - theta_K),    K the cell of the lowest theta

with s scaled so that the mean of units above 0 is 1 above that of the others, and b = 0 is tested, clustered by query,
as groups and halves share queries. At K, theta of attractive units is theta_K^b times that of the others. b < 0:
attractive documents lose less by position, as under trust bias, or if position and attractiveness are additive on the
logit scale. D is steep where theta is: such departures are largest between the first positions, with most clicks.

The error of theta for a given b depends on the cause. If users trust high positions, P(click) = theta_e (gamma_j + t_e
(1 - gamma_j)), the log theta of a document is to first order log theta_e + t_e (1 / gamma_j - 1), and its mean has the
same error. With t_e = t_1 + k D_e, b is the slope of k / gamma on s, and at K

    b log(theta_K) (mean of 1 / gamma - 1) var(s) / cov(1 / gamma, s),    1 / gamma_j = E_j / C_j

is the error of log theta, with moments by clicks, so that those of 1 / gamma are sums of E. gamma is at least its value
for a largest theta of 1. Substantial trust is beyond the first order: the error is up to 1.5 times as large, and 1.3
times for trust of .1 to .3 on simulated logs; 1.4 is used.

Other click models are compared with the fitted one on pages that contradict it. Each model is fitted to the pages of
three sessions in four, and evaluated by the log-likelihood of the remaining pages,

    mean over impressions of log P(c_r | c_1 .. c_(r-1)),

paired with the fitted model. The standard error of the ratio of sums over queries, of differences and of impressions,
is that of the jackknife over queries.

Sources: Agarwal et al. 2019 (trust bias); Tukey 1949 (one degree of freedom for non-additivity); Chernozhukov et al.
2018 (cross-fitting); Chuklin, Markov & de Rijke 2015, chapter 5 (evaluation of click models).
"""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays import count_table
from posbias.core.arrays.count_table import GOLDEN, CountTable, Floats, Integers, Members, Numbers
from posbias.core.arrays.tails import holm
from posbias.core.counts.checks import NUMBER_ABOVE, ClicksAbove, CountedPages
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.models import click_model_names, get_click_model
from posbias.core.models.page_matrices import MOST_RANKS, UNIT, PagesInMemory, click_log_likelihood, page_batches
from posbias.core.models.position_based import ClickRateModel
from posbias.core.schema import PAIR, POSITION, QUERY, SESSION, Length
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import t_quantile
from posbias.core.standard_errors.contrasts import ScoreTest, StrataEstimate
from posbias.core.theta.conditional import UPPER_TAIL

N_GROUPS = 8
"""Number of groups of units by attractiveness."""

MOST_ENTRIES = 1 << 17
"""Largest number of entries that are split into halves; in a larger log, those of the queries with most impressions."""

LARGEST_COUNT = 10**9
"""Impressions of a unit in a cell from which on NumPy draws no hypergeometric numbers."""

_LEAST_VARIANCE = 1e-4  # of attractiveness within queries, over its squared mean
_ROUNDING = 1e-12
_BEYOND_FIRST_ORDER = 1.4  # ratio of the error of theta under trust bias to that of the first order
_SEED = 20260101


def attractiveness_test(fitted: StrataEstimate, group_of_cell: Integers) -> tuple[ScoreTest, float] | None:
    """Test whether theta is the same for units that attract more and less than the units of their query on average.

    Args:
        fitted: the estimate from whole counts.
        group_of_cell: context of each cell, shape (K,); each context has a reference.

    Returns:
        The test of b, and the error of log theta per unit of b if users trust high positions (see above); None if the
        log has no information on b, or counts too large to be split.
    """
    sample = most_shown_queries(fitted.strata)
    counts = fitted.strata.signatures.only_cells(fitted.fit.linkage.identified).take(sample.unit.astype(np.int64))
    if counts.impressions.max(initial=0) >= LARGEST_COUNT:
        return None
    theta = np.exp(np.nan_to_num(fitted.fit.log_theta))
    one, other = split_in_halves(replace(counts, multiplicity=np.ones(counts.n_units)))
    if not (one.clicks.any() and other.clicks.any()):
        return None
    folds = [_fold(half, by, sample.cluster, theta) for half, by in ((one, other), (other, one))]
    tables, *by_unit = zip(*folds, strict=True)
    both = count_table.concatenate(list(tables))
    queries, attractive, clicks = map(np.concatenate, by_unit)
    if not len(attractive):  # no query has two units that differ
        return None
    # Groups of equal clicks, the least attractive first
    order = np.argsort(attractive, kind="stable")
    middle = np.cumsum(clicks[order]) - clicks[order] / 2
    group = np.empty(len(order), np.int64)
    group[order] = np.minimum(middle / clicks.sum() * N_GROUPS, N_GROUPS - 1).astype(np.int64)
    # Mean attractiveness of each group by clicks, scaled so that units above 0 are 1 above the others on average
    up, down = (np.average(attractive[units], weights=clicks[units]) for units in (attractive > 0, attractive <= 0))
    total, weighted = (count_table.sum_by_number(group, values, N_GROUPS) for values in (clicks, clicks * attractive))
    score = weighted / np.maximum(total, 1) / (up - down)
    table = replace(
        both, n_cells=N_GROUPS * both.n_cells, cell=N_GROUPS * both.cell + np.repeat(group, both.entries_of_unit)
    )
    cell = np.repeat(np.arange(len(theta)), N_GROUPS)
    direction = loss_by_position(theta)[cell] * np.tile(score, len(theta))
    strata = Strata(table, Members(np.arange(len(queries)), queries))
    test = contrasts.score_test(strata, cell, direction, group_of_cell)
    if test is None:
        return None
    # Error of log theta at K per unit of b under trust bias, infinite if groups hardly differ
    scale = theta / theta.max()
    clicks, expected = (
        count_table.sum_by_number(table.cell % N_GROUPS, values, N_GROUPS)
        for values in (table.clicks, table.impressions * scale[table.cell // N_GROUPS])
    )
    surplus, covariance = max(float(expected.sum() / clicks.sum()) - 1, 0.0), abs(float(expected @ score))
    if not covariance > 0:
        return test, np.inf
    largest = _BEYOND_FIRST_ORDER * abs(float(np.log(scale.min())))
    return test, largest * surplus * float(clicks @ score**2) / covariance


def loss_by_position(theta: Floats) -> Floats:
    """Compute D, shape (K,), from theta, shape (K,): both are NaN where unknown."""
    lowest = float(np.nanmin(theta))
    return (1 - theta) * (np.log(lowest) / (1 - lowest) if lowest < 1 else -1.0)


def most_shown_queries(strata: Strata, most: int = MOST_ENTRIES) -> Members:
    """Return the members of the queries with most impressions, which have about `most` entries together.

    They are sorted by impressions of the query, then by a hash of its units, then by unit: an order that depends on the
    counts alone, and not on the numbers of queries.
    """
    members, table = strata.members, strata.signatures
    first = np.flatnonzero(np.diff(members.cluster, prepend=members.cluster[0] - 1))
    unit, start = members.unit.astype(np.int64), np.append(first, len(members.unit))
    entries = count_table.sum_rows(table.entries_of_unit.take(unit), start)
    impressions = np.add.reduceat(table.sum_by_unit(table.impressions).take(unit), first)
    mixed = (unit.astype(np.uint64) + np.uint64(1)) * GOLDEN
    mixed ^= mixed >> np.uint64(29)
    key = count_table.sum_rows(mixed * GOLDEN, start)
    queries = np.lexsort((key, -impressions))
    before = np.cumsum(entries[queries]) - entries[queries]
    queries = queries[before < most]
    length = np.diff(start)[queries]
    start = count_table.starts(length)
    number = np.repeat(np.arange(len(queries)), length)
    unit = unit[np.arange(start[-1]) + np.repeat(first[queries] - start[:-1], length)]
    order = np.lexsort((unit, number))
    return Members(unit[order], number[order])


def split_in_halves(table: CountTable) -> tuple[CountTable, CountTable]:
    """Split impressions at random into two tables with the same entries, some of which may be 0."""
    rng = np.random.default_rng(_SEED)
    impressions, clicks = table.impressions.astype(np.int64), table.clicks.astype(np.int64)
    first = impressions // 2 + (impressions % 2) * rng.integers(0, 2, len(impressions))
    drawn = rng.hypergeometric(clicks, impressions - clicks, first)
    one = replace(table, impressions=first.astype(np.float64), clicks=drawn.astype(np.float64))
    return one, replace(table, impressions=table.impressions - one.impressions, clicks=table.clicks - one.clicks)


def _fold(
    half: CountTable, other: CountTable, query: Numbers, theta: Floats
) -> tuple[CountTable, Numbers, Floats, Floats]:
    """Return the units of a half that link cells, in queries whose units differ.

    Returns:
        Counts, and for each unit its query, attractiveness s (not scaled) by the other half, and clicks.
    """
    n_queries = int(query.max()) + 1

    def by_query(number: Numbers, values: Floats) -> Floats:
        return count_table.sum_by_number(number, values, n_queries)

    # Attractiveness of each unit, shrunk towards that of its query
    clicks, expected = other.sum_by_unit(other.clicks), other.sum_by_unit(other.impressions * theta[other.cell])
    query_rate = (by_query(query, clicks) / np.maximum(by_query(query, expected), np.finfo(np.float64).tiny))[query]
    mean = clicks.sum() / expected.sum()
    variance = ((clicks - query_rate * expected) ** 2 - query_rate * expected).sum() / (expected**2).sum()
    strength = mean / max(variance, _LEAST_VARIANCE * mean**2)
    rate = (clicks + strength * query_rate) / (expected + strength)
    half = half.filter_entries(half.impressions > 0)
    units = np.flatnonzero(half.links)
    clicks, own = half.sum_by_unit(half.clicks)[units], query[units]
    query_mean = by_query(own, clicks * rate[units]) / np.maximum(by_query(own, clicks), 1)
    attractive = rate[units] - query_mean[own]
    differ = np.bincount(own, np.abs(attractive) > _ROUNDING, minlength=n_queries)[own] > 0
    return half.take(units[differ]), own[differ], attractive[differ], clicks[differ]


TESTS = ATTRACTIVENESS, CLICKS_ABOVE, LAST_CLICK = "attractiveness", "clicks_above", "last_click"
"""Names of the tests."""

NO_PAGES = "it needs the pages of a log (--session), and statistics hold none"
WEIGHTED = "the counts are weighted"

_NUMBER = NUMBER_ABOVE.astype(np.float64)
_NONE_ONE_SEVERAL = np.minimum(_NUMBER, 2)
_ONE = np.isin(np.arange(len(ClicksAbove)), (ClicksAbove.ONE_DIRECTLY_ABOVE, ClicksAbove.ONE_FURTHER_UP))
_DIRECTLY = (np.arange(len(ClicksAbove)) == ClicksAbove.ONE_DIRECTLY_ABOVE).astype(np.float64)

MOST_ABOVE = int(NUMBER_ABOVE.max())
"""Number of clicks above that stands for larger numbers too."""

_LEVELS = MOST_ABOVE + 1

LEVEL_OF_DOUBT = 0.01
"""Level of rejections with exit code 1: at .05 a daily job would fail on one log of twenty by chance."""


@dataclass(frozen=True)
class ClicksBelow:
    """Clicks on results below k clicks, against those expected from the same documents in the same cells."""

    clicks_above: int  # k; 3 stands for three and more
    impressions: float  # of documents that were also shown below another number of clicks
    observed_clicks: float  # on these impressions
    expected_clicks: float  # by the other impressions of each document in the same cell
    ratio: float  # observed over expected
    interval: tuple[float, float] | None  # 95 % interval of the ratio; None with fewer than two queries


@dataclass(frozen=True)
class ModelTests:
    """Results of the tests; None for a test that the log does not allow."""

    attractiveness: ScoreTest | None  # of theta by attractiveness
    clicks_above: ScoreTest | None = None  # of clicks by the number of clicks above
    last_click: ScoreTest | None = None  # of clicks by the place of the one click above
    impressions_of_pages: int = 0  # on the sampled pages, for the latter two tests
    by_clicks_above: tuple[ClicksBelow, ...] = ()  # effect sizes
    why_no_pages: str = ""  # in words; empty if pages were tested
    averages_users: bool = True  # whether propensities are right as means over different users: not in cells of UBM

    @property
    def results(self) -> dict[str, ScoreTest]:
        """Results by name of the test."""
        tests = zip(TESTS, (self.attractiveness, self.clicks_above, self.last_click), strict=True)
        return {name: test for name, test in tests if test is not None}

    @property
    def rejected(self) -> frozenset[str]:
        """Names of the tests that reject the model, at level .05 for the family."""
        return frozenset(name for name, test in self.results.items() if test.rejected)

    @property
    def depends_on_clicks_above(self) -> frozenset[str]:
        """Names of the tests of pages that reject the model."""
        return self.rejected - {ATTRACTIVENESS}

    @property
    def users_may_differ(self) -> bool:
        """Whether differences between users or devices could explain the rejections by pages.

        A user who clicked above may click more readily, or read further down. Theta is then right as the mean over
        users, provided that the ranker does not know the user. Fewer clicks below clicks have other causes.
        """
        above = self.clicks_above
        fewer = above is not None and above.rejected and above.observed_clicks < above.expected_clicks
        return self.averages_users and bool(self.depends_on_clicks_above) and not fewer

    @property
    def doubts(self) -> frozenset[str]:
        """Names of the tests that reject at `LEVEL_OF_DOUBT`, without those that differences between users explain."""
        sure = frozenset(name for name, test in self.results.items() if test.p_value_adjusted < LEVEL_OF_DOUBT)
        return sure - self.depends_on_clicks_above if self.users_may_differ else sure


def run_model_tests(
    statistics: SufficientStatistics, fitted: StrataEstimate, pages: CountedPages | None, period: Length
) -> ModelTests:
    """Test the model of an estimate.

    Args:
        statistics: of the whole log.
        fitted: the estimate.
        pages: a sample of pages, if the log has them.
        period: length of the strata of the estimate.
    """
    plan, averages = statistics.plan, not statistics.plan.model.beside_position
    attractiveness = None if plan.weighted else attractiveness_test(fitted, statistics.context_of_cell)
    if plan.weighted or pages is None:
        why = WEIGHTED if plan.weighted else NO_PAGES
        return ModelTests(_adjusted(attractiveness)[0], why_no_pages=why, averages_users=averages)
    strata = pages.strata(period)
    one_click = replace(strata, signatures=strata.signatures.only_cells(_ONE))
    number = _NONE_ONE_SEVERAL if averages else _NUMBER
    above, last = contrasts.direction_test(strata, number), contrasts.direction_test(one_click, _DIRECTLY)
    by_attractiveness, by_number, by_place = _adjusted(
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


def _adjusted(*family: tuple[ScoreTest, float] | None) -> list[ScoreTest | None]:
    """Adjust the p-values of tests for their number by Holm's method, and add the error of theta that they may miss.

    Args:
        family: each test, and the error of log theta per unit of its delta.
    """
    p_values = np.array([np.nan if member is None else member[0].p_value for member in family])
    level, tests = contrasts.LEVEL / max(int(np.isfinite(p_values).sum()), 1), list[ScoreTest | None]()
    for member, adjusted in zip(family, holm(p_values).tolist(), strict=True):
        if member is None:
            tests.append(None)
            continue
        test, error = member
        missed = contrasts.detectable(test.std_error, test.degrees, level) * error
        largest = missed if np.isfinite(missed) else None
        rejected = adjusted < contrasts.LEVEL
        tests.append(replace(test, p_value_adjusted=adjusted, rejected=rejected, largest_missed_error=largest))
    return tests


def clicks_below(strata: Strata) -> tuple[ClicksBelow, ...]:
    """Compute the effect size of each number of clicks above, over documents shown below several numbers of clicks.

    Args:
        strata: counts by document in a cell (unit) and clicks above (`ClicksAbove`), clustered by query, each unit
            once.
    """
    above = NUMBER_ABOVE[strata.signatures.cell].astype(np.float64)
    differ = strata.signatures.max_by_unit(above) > -strata.signatures.max_by_unit(-above)
    units = np.flatnonzero(strata.signatures.links & differ)
    table, members = strata.signatures.take(units), strata.members.among(units).by_cluster()
    unit_impressions, unit_clicks = (
        table.spread(table.sum_by_unit(counts)) for counts in (table.impressions, table.clicks)
    )
    expected = (table.impressions * unit_clicks - table.clicks) / (unit_impressions - 1)
    query = np.empty(table.n_units, np.int64)
    query[members.unit] = members.cluster
    group = NUMBER_ABOVE[table.cell] + _LEVELS * np.repeat(query, table.entries_of_unit)
    sums = [
        np.bincount(group, values, _LEVELS * (int(query.max(initial=-1)) + 1)).reshape(-1, _LEVELS).T
        for values in (table.impressions, table.clicks, expected)
    ]
    by_number: list[ClicksBelow] = []
    for number, (impressions, clicks, expected_clicks) in enumerate(zip(*sums, strict=True)):
        if not expected_clicks.sum() > 0:
            continue
        # Ratio of sums over queries, with the jackknife interval of its logarithm
        ratio, error, degrees, n_queries = contrasts.jackknife_ratio(clicks, expected_clicks)
        interval, observed, total = None, float(clicks.sum()), float(expected_clicks.sum())
        if ratio and n_queries > 1:
            margin = float(np.exp(t_quantile(np.array(degrees)) * error / ratio))
            interval = (ratio / margin, ratio * margin)
        elif n_queries > 1:
            interval = (0.0, float(-np.log(UPPER_TAIL) / total))
        by_number.append(ClicksBelow(number, float(impressions.sum()), observed, total, ratio, interval))
    return tuple(by_number)


_HELD_OUT = 4  # one session in so many is held out
_OTHER_MODELS_SEED = 3
_PASSES = 60  # of EM: enough to discriminate between models, in seconds
_LEVEL = 0.01


@dataclass(frozen=True)
class OtherModel:
    """A click model compared with the fitted one."""

    name: str
    gain: float  # of held-out log-likelihood per impression over the fitted model
    std_error: float  # of the gain, by query


@dataclass(frozen=True)
class OtherModels:
    """Comparison of other click models with the fitted one."""

    log_likelihood: float  # of the fitted model, per held-out impression
    impressions: int  # held out
    queries: int  # of the held-out impressions
    others: tuple[OtherModel, ...]  # at least one, the best first

    @property
    def better(self) -> OtherModel | None:
        """The best model, if its gain is significant at level .01 over all models (Bonferroni)."""
        best = self.others[0]
        limit = scipy.special.stdtrit(self.queries - 1.0, 1 - _LEVEL / len(self.others))
        return best if best.gain > limit * best.std_error else None


def can_compare(plan: StatisticsPlan) -> bool:
    """Return whether a plan has a click model of pages, by position, without contexts, bins, weights and row sums."""
    by_position = not (plan.curve or plan.position_bins or plan.weighted or plan.summed)
    return by_position and plan.model.name in click_model_names()


def compare_models(pages: pl.DataFrame, fitted: str) -> OtherModels | None:
    """Compare all click models of examination or trust with the fitted one, on held-out pages.

    Args:
        pages: canonical impressions of whole pages.
        fitted: the name of the model.

    Returns:
        The comparison; None without training sessions, with fewer than two held-out queries, or with pages longer than
        `MOST_RANKS`.
    """
    if int(pages.group_by(SESSION).len().select(pl.max("len")).item()) > MOST_RANKS:
        return None
    numbered = pages.with_columns((pl.struct(PAIR).rank("dense").cast(pl.Int64) - 1).alias(UNIT))
    held_out = pl.col(SESSION).hash(_OTHER_MODELS_SEED) % _HELD_OUT == 0
    training, testing = numbered.filter(~held_out), numbered.filter(held_out)
    if not training.height or testing[QUERY].n_unique() == 1:
        return None
    n_units, n_positions = int(numbered[UNIT].n_unique()), int(numbered.select(pl.max(POSITION)).item())
    training_pages = PagesInMemory(tuple(page_batches(training)), n_units, n_positions)
    names = [name for name in click_model_names() if not isinstance(get_click_model(name), ClickRateModel)]
    names = [fitted, *(name for name in names if name != fitted)]
    batches = page_batches(testing)
    query_of_unit = numbered.unique(UNIT).sort(UNIT)[QUERY].rank("dense").to_numpy()
    _, query = np.unique(query_of_unit[np.concatenate([batch.unit[:, 0] for batch in batches])], return_inverse=True)
    weight = np.concatenate([batch.weight for batch in batches])
    n_queries = int(query.max()) + 1

    def by_query(by_page: list[Floats]) -> Floats:
        return count_table.sum_by_number(query, weight * np.concatenate(by_page), n_queries)

    def log_likelihood(name: str) -> Floats:
        """Fit a model and return the held-out log-likelihood of each query."""
        from posbias.core.models.em import EMOptions, fit  # noqa: PLC0415 - only where a test rejects the fitted model

        model = get_click_model(name)
        parameters = fit(model, training_pages, EMOptions(passes=_PASSES), lambda: None).parameters
        return by_query(
            [click_log_likelihood(model.given_clicks(parameters, batch), batch).sum(axis=1) for batch in batches]
        )

    impressions = by_query([batch.shown.sum(axis=1) for batch in batches])
    own, *others = map(log_likelihood, names)
    models = [
        OtherModel(name, *contrasts.jackknife_ratio(other - own, impressions)[:2])
        for name, other in zip(names[1:], others, strict=True)
    ]
    return OtherModels(
        log_likelihood=float(own.sum() / impressions.sum()),
        impressions=testing.height,
        queries=n_queries,
        others=tuple(sorted(models, key=lambda model: -model.gain)),
    )
