"""What is to be counted: the plan that options ask for, and whether it is the one of statistics that are there."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.values import parse_bins
from posbias.core.counts.checks import DEFAULT_MODEL, check_context, check_named_columns, counted_model
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.randomization import RandomizedRows
from posbias.io.fits.read import PreviousFit


def statistics_plan(columns: ColumnOptions, counting: CountingOptions) -> StatisticsPlan:
    """What will be counted."""
    model = counted_model(counting.model or DEFAULT_MODEL)
    version = [] if columns.period_column is None else [columns.period_column]
    clusters = [] if columns.cluster_column is None else [columns.cluster_column]
    named = (
        ("--stratify", columns.stratify or ()),
        ("--period-column", version),
        ("--cluster-column", clusters),
        ("--context", columns.context or ()),
    )
    check_named_columns(model, named)
    both = set(columns.context or ()) & set(columns.stratify or ())
    if both:
        raise UsageError(
            f"--stratify {' '.join(sorted(both))}: --context already lets attractiveness differ by it. Leave it out."
        )
    if not {*version}.isdisjoint([*(columns.context or ()), *(columns.stratify or ())]):
        raise UsageError(
            f"--period-column {version[0]}: --context or --stratify already lets attractiveness differ by it. Leave it "
            "out."
        )
    if not {*clusters}.isdisjoint([*(columns.context or ()), *(columns.stratify or ()), *version]):
        raise UsageError(
            f"--cluster-column {clusters[0]}: attractiveness may already differ by it, so that its values share no "
            "documents. Name it once."
        )
    _check_days(columns, counting)
    # How finely time is kept: to look into periods, `auto` needs parts of an hour; days are enough for weeks.
    period = "day" if columns.timestamp is not None or counting.date is not None else None
    if period is not None and counting.date is None and counting.period in {"auto", "hour", "none"}:
        period = "quarter" if counting.period == "auto" else "hour" if counting.period == "hour" else None
    check_context(model, columns.context or ())
    return StatisticsPlan(
        model=model,
        max_position=counting.max_position,
        position_bins=parse_bins(counting.position_bins),
        context=tuple(columns.context or ()),
        period=period,
        strata=(*(columns.stratify or ()), *version),
        clusters=tuple(clusters),
        randomized=tuple(RandomizedRows.parse(text) for text in columns.randomized_where or ()),
        weighted=columns.weight_column is not None,
        summed=columns.impressions is not None,
    )


def _check_days(columns: ColumnOptions, counting: CountingOptions) -> None:
    day = counting.date
    if day is None:
        if counting.period not in {"auto", "none"} and columns.timestamp is None:
            raise UsageError(f"--period {counting.period} needs a column of dates or times: --timestamp COLUMN.")
        return
    if counting.period == "hour":
        raise UsageError(f"--date {day}: is a day, and --period hour needs times: --timestamp COLUMN.")
    check_day("--date", day)
    if date.fromisoformat(day) > date.today() + timedelta(days=1):  # noqa: DTZ011 - tomorrow has begun somewhere
        raise UsageError(f"--date {day}: is in the future. Give the day that the log is from.")
    if columns.timestamp is not None:
        raise UsageError(
            f"--date {day}: --timestamp {columns.timestamp} already gives the day of each row. Leave one of them out."
        )
    if counting.period == "none":
        raise UsageError(f"--date {day}: --period none keeps no days. Leave one of them out.")


def check_day(flag: str, text: str) -> None:
    """See that a text is a day as it is written everywhere: 2026-01-31.

    Raises:
        UsageError: it is not.
    """
    try:
        is_day = date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_day = False
    if not is_day:
        raise UsageError(f"{flag} {text}: give a day such as 2026-01-31.")


def check_decay(factor: float | None, plan: StatisticsPlan) -> None:
    """Find wrong options before anything is read.

    Raises:
        UsageError: the factor is none, or the days are not known.
    """
    if factor is None:
        return
    if not 0 < factor <= 1:
        raise UsageError(f"--decay {factor:g}: must be above 0 and at most 1.")
    if not plan.period:
        raise UsageError(
            f"--decay {factor:g}: the days are not known. Count the logs with --date or --timestamp (and without "
            "--period none)."
        )


def check_counting(plan: StatisticsPlan, counting: CountingOptions, columns: ColumnOptions) -> None:
    """Raise StatisticsError for an option that asks for something else than statistics were collected with."""
    version = columns.period_column
    strata = [name for name in plan.strata if name != version]  # a ranker's version that is named is no such
    period = None if counting.period in {"auto", "none"} else counting.period
    named: list[tuple[str, object, object]] = [
        ("--model", counting.model, plan.model.name),
        ("--max-position", counting.max_position, plan.max_position),
        ("--position-bins", counting.position_bins, ",".join(map(str, plan.position_bins)) or None),
        ("--context", _words(columns.context), _words(plan.context)),
        ("--stratify", _words(columns.stratify), _words(strata)),
        ("--period-column", version, version if version in plan.strata else None),
        ("--cluster-column", columns.cluster_column, _words(plan.clusters)),
        ("--randomized-where", _words(columns.randomized_where), _words(map(str, plan.randomized))),
        ("--weight-column", columns.weight_column, columns.weight_column if plan.weighted else None),
        ("--timestamp", columns.timestamp, columns.timestamp if plan.period else None),
        ("--period", period, period if period in plan.lengths else plan.period),
    ]
    for flag, wanted, counted in named:
        if wanted not in (None, counted):
            how = f"with {flag} {counted}" if counted is not None else f"without {flag}"
            raise StatisticsError(
                f"{flag} {wanted}: the statistics were collected {how}. "
                "Leave it out, or collect the logs again with it."
            )


def _words(names: Iterable[str] | None) -> str | None:
    return " ".join(names or ()) or None


def like_the_fit(fitted: PreviousFit, columns: ColumnOptions) -> tuple[ColumnOptions, CountingOptions]:
    """The options that count the cells of propensities; what only their estimate depended on is left aside.

    Raises:
        UsageError: other contexts are asked for than the propensities have.
    """
    plan = fitted.plan
    if columns.context and tuple(columns.context) != plan.context:
        raise UsageError(
            f"--context {' '.join(columns.context)}: the propensities in {fitted.name} "
            + (f"differ by {' '.join(plan.context)}." if plan.context else "have no context.")
        )
    bins = ",".join(map(str, plan.position_bins)) or None
    counting = CountingOptions(plan.model.name, plan.max_position, bins, "none")
    of_the_fit = ("timestamp", "period_column", "stratify", "cluster_column", "randomized_where")
    of_cells = replace(columns, context=list(plan.context), **dict.fromkeys(of_the_fit))
    return of_cells, counting


def check_same_cells(plan: StatisticsPlan, fitted: PreviousFit) -> None:
    """Statistics come with cells of their own, which must be those of the propensities.

    Raises:
        StatisticsError: they differ.
    """
    wanted = replace(fitted.plan, max_position=plan.max_position) if fitted.own else fitted.plan
    if _cells(plan) != _cells(wanted):
        raise StatisticsError(
            f"the statistics were collected with {_cells(plan)}; the propensities in {fitted.name} are for "
            f"{_cells(wanted)}. Collect with the same options as the fit."
        )


def _cells(plan: StatisticsPlan) -> str:
    bins, context = ",".join(map(str, plan.position_bins)), ",".join(plan.context)
    return (
        f"model {plan.model.name}, max-position {plan.max_position or 'none'}, position-bins {bins or 'none'}, "
        f"context {context or 'none'}"
    )
