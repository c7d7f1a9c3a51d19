"""Does the model hold? Tests with power, of what observed against expected clicks per cell cannot see.

The estimate solves nearly the equations observed = expected, so that these agree whatever is wrong. Three tests look
elsewhere, each a `score_test` with one degree of freedom, clustered by query:

attractiveness   whether theta is the same for documents that are clicked more (`attractiveness_test`); from the counts
clicks_above     whether clicks depend on the number of clicks above: none, one, several; from pages
last_click       whether they depend on where the one click above was: directly above, or further up; from pages

The latter two compare a document with itself in the same cell, so that neither the ranker nor what a query's users
share at a position comes in. In the cells of UBM, which hold the last click above, the number of clicks above is left.
They are a family: p-values are adjusted by Holm's method, so that under the model some test rejects in 5 % of logs.

Effect sizes: clicks by number above, over those that the other impressions of the document in the same cell let expect,

    sum_j c_jk / sum_j (n_jk C_j - c_jk) / (n_j - 1),    n_j, C_j of the document in the cell, n_jk, c_jk below k clicks

with the jackknife over queries. What a test that does not reject leaves open of theta is the `detectable` delta times
what delta does to log theta: the mean number of clicks above, where it is largest; for attractiveness see
below.

Whether theta is the same for documents that are clicked more and less: cross-fitted, from the counts alone.

A factorised model says P(click) = theta_e gamma_j, so that theta_e, estimated from any of a query's documents, is the
same. Which documents are attractive must not be read from the clicks that theta is then estimated from. So the
impressions of each (unit, cell) are split at random into two halves A and B, and with them the clicks,

    n_A = n / 2 (an odd one to either half),    c_A ~ Hypergeometric(c of n, n_A drawn),

which gives two independent logs. One half says how attractive each unit is, by its clicks and those that its query's
units together let expect at its cells, E_j = sum_e n_je theta_e,

    s_j = (C_j + k r_q) / (E_j + k) - mean over the query,    r_q = sum C / sum E,    k = mean r / variance of C_j / E_j

(the mean is by clicks of the other half), and units are put into eight groups by s_j, each of the same clicks, scored
by their mean s. In the other half theta of the groups is compared; then the halves change places. Against the model
stands

    log theta_e + b s_g D_e,    D_e = (1 - theta_e) log(theta_K) / (1 - theta_K),    K the cell of the lowest theta

s being scaled so that the units above 0 lie 1 above the others, and b = 0 is tested (`score_test`), clustered by
query, as groups and halves share queries. At K theta of the high ones is theta_K^b times that of the low ones. b < 0:
attractive documents lose less by position, as under trust bias, or where position and attractiveness add up on the
logit scale. D rises where theta falls: such departures are largest between the first positions, where most clicks are.

What b leaves open of theta depends on why attractive documents would lose less. Where users trust high positions,
P(click) = theta_e (gamma_j + t_e (1 - gamma_j)), each document has a theta of its own, to first order log theta_e + t_e
(1 / gamma_j - 1), and their mean is off by as much. With t_e = t_1 + k D_e, b is the slope of k / gamma on s, and at K

    b log(theta_K) (mean of 1 / gamma - 1) var(s) / cov(1 / gamma, s),    1 / gamma_j = E_j / C_j

is the error of log theta, moments being by clicks, so that those of 1 / gamma are sums of E. gamma is no smaller than
where theta is 1 at its largest. Trust that matters is not small, though, and its error is up to 1.5 times what the
first order says: 1.3 times where it is .1 to .3, on simulated logs. So 1.4 times that is taken.

Sources: Agarwal et al. 2019 (trust bias); Tukey 1949 (one degree of freedom for non-additivity); Chernozhukov et al.
2018 (cross-fitting).

Which click model explains pages that contradict the one that was fitted: by held-out clicks of a sample of them.

Every model is fitted to the pages of three sessions in four, and judged by the log-likelihood of the others,

    mean over impressions of log P(c_r | c_1 .. c_(r-1)),

in pairs with the model that was fitted. With the sums d_g of the differences of a query and its n_g impressions, the
standard error of their ratio is the jackknife's over queries, as everywhere: for queries like these.

Source: Chuklin, Markov & de Rijke 2015, chapter 5.
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
from posbias.core.models.page_matrices import MOST_RANKS, UNIT, PagesInMemory, log_of_clicks, page_batches
from posbias.core.models.position_based import ClickRateModel
from posbias.core.schema import PAIR, POSITION, QUERY, SESSION, Length
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import t_quantile
from posbias.core.standard_errors.contrasts import ScoreTest, StrataEstimate
from posbias.core.theta.conditional import UPPER_TAIL

N_GROUPS = 8
"""Groups of units by attractiveness."""

MOST_ENTRIES = 1 << 17
"""Counts that are split; in a larger log those of the queries that were shown most."""

LARGEST_COUNT = 10**9
"""Impressions of a unit in a cell from which on no halves are drawn."""

_LEAST_VARIANCE = 1e-4  # of attractiveness within queries, over its squared mean
_ROUNDING = 1e-12
_BEYOND_FIRST_ORDER = 1.4  # the error of theta under trust bias, to that of the first order
_SEED = 20260101


def attractiveness_test(fitted: StrataEstimate, group_of_cell: Integers) -> tuple[ScoreTest, float] | None:
    """Compare theta of the units that are clicked more with that of the others of their query.

    Args:
        fitted: the estimate from whole counts.
        group_of_cell: shape (K,), the context of each cell: cells of one share a reference.

    Returns:
        The test of b, and how far theta is off per unit of b if users trust high positions (see above); None where the
        log says nothing about it.
    """
    chosen = most_shown(fitted.strata)
    kept = fitted.strata.signatures.only_cells(fitted.fit.linkage.identified).take(chosen.unit.astype(np.int64))
    if kept.impressions.max(initial=0) >= LARGEST_COUNT:
        return None
    theta = np.exp(np.nan_to_num(fitted.fit.log_theta))
    one, other = halves(replace(kept, multiplicity=np.ones(kept.n_units)))
    if not (one.clicks.any() and other.clicks.any()):
        return None
    folds = [_fold(half, by, chosen.cluster, theta) for half, by in ((one, other), (other, one))]
    tables, *of_units = zip(*folds, strict=True)
    both = count_table.concatenate(list(tables))
    queries, attractive, clicks = map(np.concatenate, of_units)
    if not len(attractive):  # no query has two units that differ
        return None
    # The group of each unit, from the least attractive on, of the same clicks each.
    order = np.argsort(attractive, kind="stable")
    middle = np.cumsum(clicks[order]) - clicks[order] / 2
    group = np.empty(len(order), np.int64)
    group[order] = np.minimum(middle / clicks.sum() * N_GROUPS, N_GROUPS - 1).astype(np.int64)
    # The mean of each group by clicks, scaled so that those above 0 lie 1 above the others.
    up, down = (np.average(attractive[of], weights=clicks[of]) for of in (attractive > 0, attractive <= 0))
    total, moved = (count_table.sum_by_number(group, values, N_GROUPS) for values in (clicks, clicks * attractive))
    score = moved / np.maximum(total, 1) / (up - down)
    table = replace(
        both, n_cells=N_GROUPS * both.n_cells, cell=N_GROUPS * both.cell + np.repeat(group, both.entries_of_unit)
    )
    lowest, cell = float(theta.min()), np.repeat(np.arange(len(theta)), N_GROUPS)
    loss = (1 - theta) * (np.log(lowest) / (1 - lowest) if lowest < 1 else -1.0)  # D
    direction = loss[cell] * np.tile(score, len(theta))
    strata = Strata(table, Members(np.arange(len(queries)), queries))
    test = contrasts.score_test(strata, cell, direction, group_of_cell)
    if test is None:
        return None
    # The change of log theta at K by one unit of b under trust bias, infinite where units hardly differ.
    scale = theta / theta.max()
    clicks, expected = (
        count_table.sum_by_number(table.cell % N_GROUPS, values, N_GROUPS)
        for values in (table.clicks, table.impressions * scale[table.cell // N_GROUPS])
    )
    surplus, moves = max(float(expected.sum() / clicks.sum()) - 1, 0.0), abs(float(expected @ score))
    if not moves > 0:
        return test, np.inf
    largest = _BEYOND_FIRST_ORDER * abs(float(np.log(scale.min())))
    return test, largest * surplus * float(clicks @ score**2) / moves


def most_shown(strata: Strata, most: int = MOST_ENTRIES) -> Members:
    """The members of the queries that were shown most, as many as have so many entries together.

    Their order depends on the counts alone, not on how queries are numbered: by impressions of the query, then by a
    hash of its units, then by unit. The same log gives the same order, however it was read.
    """
    members, table = strata.members, strata.signatures
    first = np.flatnonzero(np.diff(members.cluster, prepend=members.cluster[0] - 1))
    unit, start = members.unit.astype(np.int64), np.append(first, len(members.unit))
    entries = count_table.sum_rows(table.entries_of_unit.take(unit), start)
    shown = np.add.reduceat(table.sum_by_unit(table.impressions).take(unit), first)
    mixed = (unit.astype(np.uint64) + np.uint64(1)) * GOLDEN
    mixed ^= mixed >> np.uint64(29)
    key = count_table.sum_rows(mixed * GOLDEN, start)
    queries = np.lexsort((key, -shown))
    before = np.cumsum(entries[queries]) - entries[queries]
    queries = queries[before < most]
    length = np.diff(start)[queries]
    start = count_table.starts(length)
    number = np.repeat(np.arange(len(queries)), length)
    chosen = unit[np.arange(start[-1]) + np.repeat(first[queries] - start[:-1], length)]
    order = np.lexsort((chosen, number))
    return Members(chosen[order], number[order])


def halves(table: CountTable) -> tuple[CountTable, CountTable]:
    """The counts of two random halves of the impressions, with the entries of the table, some of them empty."""
    rng = np.random.default_rng(_SEED)
    impressions, clicks = table.impressions.astype(np.int64), table.clicks.astype(np.int64)
    first = impressions // 2 + (impressions % 2) * rng.integers(0, 2, len(impressions))
    drawn = rng.hypergeometric(clicks, impressions - clicks, first)
    one = replace(table, impressions=first.astype(np.float64), clicks=drawn.astype(np.float64))
    return one, replace(table, impressions=table.impressions - one.impressions, clicks=table.clicks - one.clicks)


def _fold(
    half: CountTable, by: CountTable, query: Numbers, theta: Floats
) -> tuple[CountTable, Numbers, Floats, Floats]:
    """The units of a half that link cells, in queries whose units differ.

    Returns:
        Their counts, the query of each, how attractive the other half says they are, and their clicks.
    """
    n_queries = int(query.max()) + 1

    def of_query(number: Numbers, values: Floats) -> Floats:
        return count_table.sum_by_number(number, values, n_queries)

    # How attractive each unit is, shrunk towards its query.
    clicks, expected = by.sum_by_unit(by.clicks), by.sum_by_unit(by.impressions * theta[by.cell])
    usual = (of_query(query, clicks) / np.maximum(of_query(query, expected), np.finfo(np.float64).tiny))[query]
    mean = clicks.sum() / expected.sum()
    beyond_chance = ((clicks - usual * expected) ** 2 - usual * expected).sum() / (expected**2).sum()
    strength = mean / max(beyond_chance, _LEAST_VARIANCE * mean**2)
    rate = (clicks + strength * usual) / (expected + strength)
    half = half.filter_entries(half.impressions > 0)
    units = np.flatnonzero(half.links)
    clicks, own = half.sum_by_unit(half.clicks)[units], query[units]
    usual = of_query(own, clicks * rate[units]) / np.maximum(of_query(own, clicks), 1)
    attractive = rate[units] - usual[own]
    differ = np.bincount(own, np.abs(attractive) > _ROUNDING, minlength=n_queries)[own] > 0
    return half.take(units[differ]), own[differ], attractive[differ], clicks[differ]


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
    statistics: SufficientStatistics, fitted: StrataEstimate, pages: CountedPages | None, period: Length
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
    above, last = contrasts.units_test(strata, number), contrasts.units_test(one_click, _DIRECTLY)
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
    p_values = np.array([np.nan if one is None else one[0].p_value for one in made])
    level, tests = contrasts.LEVEL / max(int(np.isfinite(p_values).sum()), 1), list[ScoreTest | None]()
    for one, adjusted in zip(made, holm(p_values).tolist(), strict=True):
        if one is None:
            tests.append(None)
            continue
        test, error = one
        missed = contrasts.detectable(test.std_error, test.degrees, level) * error
        least = missed if np.isfinite(missed) else None
        rejected = adjusted < contrasts.LEVEL
        tests.append(replace(test, p_value_adjusted=adjusted, rejected=rejected, largest_missed_error=least))
    return tests


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
    by_number: list[ClicksBelow] = []
    for number, (impressions, clicks, of_query) in enumerate(zip(*sums, strict=True)):
        if not of_query.sum() > 0:
            continue
        # The ratio of the sums by query, with the jackknife's interval of its logarithm.
        ratio, error, degrees, n_queries = contrasts.ratio_of_sums(clicks, of_query)
        interval, observed, total = None, float(clicks.sum()), float(of_query.sum())
        if ratio and n_queries > 1:
            margin = float(np.exp(t_quantile(np.array(degrees)) * error / ratio))
            interval = (ratio / margin, ratio * margin)
        elif n_queries > 1:
            interval = (0.0, float(-np.log(UPPER_TAIL) / total))
        by_number.append(ClicksBelow(number, float(impressions.sum()), observed, total, ratio, interval))
    return tuple(by_number)


_HELD_OUT = 4  # one session in so many
_OTHER_MODELS_SEED = 3
_PASSES = 60  # of EM: enough to tell models apart, in seconds
_LEVEL = 0.01


@dataclass(frozen=True)
class OtherModel:
    """A model beside the one that was fitted."""

    name: str
    gain: float  # of its held-out log-likelihood per impression over that of the fitted one
    std_error: float  # of the gain, by query


@dataclass(frozen=True)
class OtherModels:
    """The other models, the best first."""

    log_likelihood: float  # of the fitted model, per held-out impression
    impressions: int  # that were held out
    queries: int  # of these
    others: tuple[OtherModel, ...]  # there are some

    @property
    def better(self) -> OtherModel | None:
        """The best, where it is better than the fitted one by more than chance, however many were tried."""
        best = self.others[0]
        limit = scipy.special.stdtrit(self.queries - 1.0, 1 - _LEVEL / len(self.others))
        return best if best.gain > limit * best.std_error else None


def can_compare(plan: StatisticsPlan) -> bool:
    """Whether the fitted model is one of those that are judged by pages: by positions, without bins and weights."""
    whole = not (plan.curve or plan.position_bins or plan.weighted or plan.summed)
    return whole and plan.model.name in click_model_names()


def compare_models(pages: pl.DataFrame, fitted: str) -> OtherModels | None:
    """Judge the click models that know examination or trust, beside the one that was fitted.

    Args:
        pages: canonical impressions of whole pages.
        fitted: the name of the model.

    Returns:
        None where no session is left to learn from, or fewer than two queries to judge by, and where pages are too long
        for most models.
    """
    if int(pages.group_by(SESSION).len().select(pl.max("len")).item()) > MOST_RANKS:
        return None
    numbered = pages.with_columns((pl.struct(PAIR).rank("dense").cast(pl.Int64) - 1).alias(UNIT))
    held_out = pl.col(SESSION).hash(_OTHER_MODELS_SEED) % _HELD_OUT == 0
    learnt, judged = numbered.filter(~held_out), numbered.filter(held_out)
    if not learnt.height or judged[QUERY].n_unique() == 1:
        return None
    n_units, n_positions = int(numbered[UNIT].n_unique()), int(numbered.select(pl.max(POSITION)).item())
    training = PagesInMemory(tuple(page_batches(learnt)), n_units, n_positions)
    names = [name for name in click_model_names() if not isinstance(get_click_model(name), ClickRateModel)]
    names = [fitted, *(name for name in names if name != fitted)]
    batches = page_batches(judged)
    of_unit = numbered.unique(UNIT).sort(UNIT)[QUERY].rank("dense").to_numpy()
    _, query = np.unique(of_unit[np.concatenate([batch.unit[:, 0] for batch in batches])], return_inverse=True)
    weight = np.concatenate([batch.weight for batch in batches])
    number = int(query.max()) + 1

    def by_query(of_pages: list[Floats]) -> Floats:
        return count_table.sum_by_number(query, weight * np.concatenate(of_pages), number)

    def of_model(name: str) -> Floats:
        """The log-likelihood of each query under a model."""
        from posbias.core.models.em import EMOptions, fit  # noqa: PLC0415 - only where a test rejects the fitted model

        model = get_click_model(name)
        parameters = fit(model, training, EMOptions(passes=_PASSES), lambda: None).parameters
        return by_query([log_of_clicks(model.given_clicks(parameters, of), of).sum(axis=1) for of in batches])

    shown = by_query([batch.shown.sum(axis=1) for batch in batches])
    own, *theirs = map(of_model, names)
    models = [
        OtherModel(name, *contrasts.ratio_of_sums(of_other - own, shown)[:2])
        for name, of_other in zip(names[1:], theirs, strict=True)
    ]
    return OtherModels(
        log_likelihood=float(own.sum() / shown.sum()),
        impressions=judged.height,
        queries=len(shown),
        others=tuple(sorted(models, key=lambda model: -model.gain)),
    )
