"""`interleave`: the verdict of an interleaving experiment, from one log or day by day.

A result holds the sums of each counting by day and query, user, and hour, in `sums`. With --into, a new counting joins
the earlier ones, so that a daily verdict reads only the log of the day.
"""

import math
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, Meta, UnsetType, structs

from posbias.core.choices import Credit
from posbias.core.errors import SchemaError, StatisticsError, UsageError, plural, printable
from posbias.core.evaluation import interleaving as tdi
from posbias.core.evaluation.interleaving import CreditRule, Verdict, add_up, log_e, repeated_coins, rho_for
from posbias.core.fit.propensities import PROPENSITY, choose_propensities
from posbias.core.schema import CLICK, PERIOD, POSITION, QUERY, RESERVED
from posbias.io.engines.engine import Engine, ReadLog, sums_by
from posbias.io.fits.saved_fit import CellPropensities
from posbias.io.fits.verdicts import label_in_words, unweighted_reason
from posbias.io.jobs.fit import Job, name_propensities, read_pages
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, number_in_words
from posbias.io.log.clicks import Rows
from posbias.io.log.faults import Quantity, faults_in
from posbias.io.log.sources import counted_already
from posbias.io.options import InterleavingOptions
from posbias.io.places.temporary import temporary_files, whole_files
from posbias.io.results.conclusions import Reason, has_stops, reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import sink_table, write_small_table

VERDICT, DAYS, SUMS = "verdict", "days", "sums"
TRAFFIC, QUERIES, USERS, HOURS = "traffic", "queries", "users", "hours"
DAY = "day"
_WORDS = {TRAFFIC: "on this traffic", QUERIES: "on queries like these", USERS: "for users like these"}
_PLANNED_SQUARE = {
    False: 0.5,
    True: 2.0,
}  # counting_section V per page, without and with weights, for the choice of rho
_PLANNED_SQUARE_OF_OUTCOMES = 0.05
_ENOUGH = 100  # fewest credited clicks of a day that is compared with another
_MOST_DAYS = 1000  # of the running verdict in the manifest
_MOST_TIMES = 100  # largest multiple of the pages for which a verdict is extrapolated
_MOST_TEAMS_NAMED = 5
_LARGEST_OUTCOME = 1000


def columns_to_read(team: str, given: InterleavingOptions) -> tuple[str, ...]:
    """Columns of the log that the options name.

    Raises:
        UsageError: options conflict, or a column is reserved or named twice.
    """
    if (given.rank_a is None) is not (given.rank_b is None):
        raise UsageError("--rank-a and --rank-b: need each other. Name the columns of both rankers' ranks.")
    if given.credit == "pairs" and given.rank_a is None:
        raise UsageError(
            "--credit pairs: which rounds are a contest cannot be told without the ranks that both rankers give to "
            "each document. Name their columns (--rank-a, --rank-b), or leave out --credit."
        )
    if given.outcome is not None and given.user is None:
        raise UsageError(
            f"--outcome {given.outcome}: what is not on the page is credited by what its user prefers. Name the "
            "column of users (--user COLUMN)."
        )
    columns = [name for name in (team, given.rank_a, given.rank_b, given.user, given.outcome) if name is not None]
    reserved = next((name for name in columns if name in RESERVED), None)
    if reserved is not None:
        raise UsageError(f"column {reserved!r}: this name means something else in posbias. Rename the column.")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise UsageError(f"column {twice[0]!r} is named for two things. Name each column once.")
    return tuple(columns)


class Counting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logs that were counted together."""

    number: Annotated[int, Meta(ge=1, le=10**6)]  # in the names of its files
    days: tuple[str, ...]  # empty if unknown
    sources: dict[str, str]  # path by digest
    rows: Rows


class InterleavingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section of the manifest on a counted experiment; further countings must have equal options."""

    teams: tuple[str | int | float | bool, str | int | float | bool]  # A first
    team: str
    ranks: tuple[str, str] | None
    user: str | None
    outcome: str | None
    credit: Credit
    propensities: dict[str, float] | None  # by position, as text
    expected_pages: Annotated[int, Meta(ge=1)]
    countings: tuple[Counting, ...]


class InterleavingManifest(msgspec.Struct, frozen=True):
    """Fields of the manifest that `earlier_result` reads."""

    interleaving: InterleavingSection | UnsetType = UNSET


@contextmanager
def earlier_result(place: Path | None) -> Generator[InterleavingSection | None]:
    """Open the result to extend; None without a directory, or if it is missing or empty.

    Raises:
        LogFormatError: the result is damaged.
        StatisticsError: the directory holds a result of another command.
    """
    if place is None or not place.exists() or (place.is_dir() and not any(place.iterdir())):
        yield None
        return
    with open_stored(place, (SUMS,)) as stored:
        section = stored.typed(InterleavingManifest).interleaving
        if section is UNSET:
            raise StatisticsError(
                f"{stored.folder}: was written by `posbias {stored.command}`. Name a directory that `posbias "
                "interleave` wrote, or one that is not there."
            )
        yield section


def interleave(
    job: Job, team: str, given: InterleavingOptions, fitted: CellPropensities | None, engine: Engine, result: Result
) -> None:
    """Count a log, add it to the earlier countings, and conclude.

    Raises:
        SchemaError: teams, ranks or outcomes have invalid values.
        StatisticsError: earlier countings have other options, or hold these days from other logs.
        UsageError: propensities are not by position alone.
    """
    with earlier_result(given.into) as earlier:
        section, theta = counting_section(team, given, fitted, earlier)
        if fitted is not None:
            name_propensities(fitted, result)
        read = read_pages(job, engine, result, keep_sessions="unchecked")
        teams = _teams(read, team, given, earlier)
        section = structs.replace(section, teams=teams)
        days = () if read.days is None else tuple(day.isoformat() for day in read.days.in_order)
        kept = () if earlier is None else _retained_countings(earlier, given, days, read.sources)
        number = 1 + max((counting.number for counting in kept), default=0)
        rule = CreditRule(teams, section.team, section.ranks, section.user, section.outcome, section.credit, theta)
        folder = result.folder / SUMS
        folder.mkdir()
        for counting in kept:
            for path in sorted(given.into.glob(f"{SUMS}/{counting.number:06d}-*.parquet")) if given.into else ():
                try:
                    os.link(path, folder / path.name)
                except OSError:  # another device, or a file system without links
                    shutil.copyfile(path, folder / path.name)
        _count(read, rule, folder, number, engine, result)
        section = structs.replace(section, countings=(*kept, Counting(number, days, read.sources, read.rows)))
        result.content["interleaving"] = section
        write_verdict(folder, section, result, csv=given.csv)
        if earlier is not None:
            before = sorted({day for counting in kept for day in counting.days})
            result.facts.append(f"days before: {plural(len(before), 'days')}, kept in {result.target}")


def counting_section(
    team: str, given: InterleavingOptions, fitted: CellPropensities | None, earlier: InterleavingSection | None
) -> tuple[InterleavingSection, dict[int, float] | None]:
    """Section of a new counting, without teams, and the propensity by position.

    Raises:
        StatisticsError: the earlier result has other options.
        UsageError: propensities are not by position alone.
    """
    theta = None if fitted is None else _propensity_by_position(fitted)
    section = InterleavingSection(
        ("", ""),
        team,
        None if given.rank_a is None or given.rank_b is None else (given.rank_a, given.rank_b),
        given.user,
        given.outcome,
        given.credit,
        None if theta is None else {str(position): value for position, value in theta.items()},
        given.expected_pages or (10_000 if earlier is None else earlier.expected_pages),
        (),
    )
    for name in InterleavingSection.__struct_fields__ if earlier is not None else ():
        ours, theirs = getattr(section, name), getattr(earlier, name)
        if name not in {"countings", "teams"} and ours != theirs:
            before, now = (_option(name, value) for value in (theirs, ours))
            raise StatisticsError(
                f"{given.into}: was counted {before}, and this is {now if now != before else 'others'}. What was "
                "chosen before the first day must stay: give the same, or name another directory."
            )
    return section, theta


def _propensity_by_position(fitted: CellPropensities) -> dict[int, float]:
    """Propensities, above 0, by position; raise UsageError if they differ by more than the position."""
    plan = fitted.plan
    if plan.curve or plan.model.needs_session:
        what = "by last click" if plan.model.needs_session else f"by {' and '.join(plan.curve)}"
        raise UsageError(
            f"--propensities {fitted.name}: has propensities {what}, and credit is weighed by position alone. Fit "
            "without it, or leave out --propensities: plain credit is as valid, and has more power."
        )
    chosen = choose_propensities(fitted.theta.propensities, "smooth").table
    known = chosen.filter(pl.col(PROPENSITY) > 0)
    if plan.position_bins:
        raise UsageError(
            f"--propensities {fitted.name}: has propensities of bins of positions. Fit without --position-bins."
        )
    return dict(known.select(pl.col(POSITION).cast(pl.Int64), PROPENSITY).iter_rows())


def _teams(read: ReadLog, team: str, given: InterleavingOptions, known: InterleavingSection | None) -> tuple[Any, Any]:
    """The two values of the team column, sorted, or as in the earlier result.

    Raises:
        SchemaError: the column has another number of values, or ranks or outcomes are not whole numbers.
        StatisticsError: the earlier result has other teams.
    """
    numbers = {flag: name for flag, name in (("--rank-a", given.rank_a), ("--rank-b", given.rank_b)) if name}
    wrong = {column: tdi.count_invalid_ranks(pl.col(column)) for column in numbers.values()}
    if given.outcome is not None:
        outcome = pl.col(given.outcome)
        number = outcome.cast(pl.Float64, strict=False)
        sound = (number == number.floor()) & number.is_between(0, _LARGEST_OUTCOME)
        numbers["--outcome"] = given.outcome
        wrong[given.outcome] = (outcome.is_not_null() & ~sound.fill_null(value=False)).sum()
    sums = {"rows": pl.len(), CLICK: pl.col(CLICK).cast(pl.Int64).sum()}
    counts = sums_by(read.pieces, [pl.col(team)], **sums, **{f"wrong {name}": total for name, total in wrong.items()})
    for flag, column in numbers.items():
        rows = int(counts[f"wrong {column}"].sum())
        if rows:
            what = (
                f"a whole number from 0 to {_LARGEST_OUTCOME}, such as orders"
                if flag == "--outcome"
                else "a rank, 1, 2, ... (null where the ranker has none)"
            )
            why = " Of amounts of money, one large one would decide." if flag == "--outcome" else ""
            verb = "holds" if rows == 1 else "hold"
            raise SchemaError(
                f"column {column!r} ({flag}): {plural(rows, 'rows')} {verb} something else than {what}.{why}"
            )
    teams = sorted(value for value in counts[team].drop_nulls().to_list() if value != "")
    values = list(map(label_in_words, teams))
    team_counts = counts.filter(pl.col(team).is_in(teams))
    if teams and (team_counts["rows"] == team_counts[CLICK]).all():
        raise SchemaError(
            f"column {team!r} (--team): only documents that were clicked have a value, so that nothing shows whether a "
            "coin decided. Log the ranker of each document that was shown (of UBI, with its impression)."
        )
    if known is not None and {*teams} <= {*known.teams}:
        return known.teams
    if len(teams) != 2:  # noqa: PLR2004 - rankers
        some = ", ".join(values[:_MOST_TEAMS_NAMED]) + (", ..." if len(values) > _MOST_TEAMS_NAMED else "")
        without = f"SELECT * REPLACE (NULLIF({team}, 'both') AS {team}) FROM log"  # noqa: S608 - shown
        how = " Leave the cell empty where a document is of neither" if teams[2:] else ""
        how += f', e.g. --sql "{without}".' if how and team.isidentifier() else "." if how else ""
        raise SchemaError(
            f"column {team!r} (--team): holds {plural(len(teams), 'values')} ({some or 'none'}), and two rankers are "
            f"compared.{how}"
        )
    if known is not None:
        before = " and ".join(map(label_in_words, known.teams))
        raise StatisticsError(
            f"column {team!r} (--team): holds {' and '.join(values)}, and the days before {before}: that is another "
            "experiment. Name another directory."
        )
    return teams[0], teams[1]


def _retained_countings(
    earlier: InterleavingSection, given: InterleavingOptions, days: Sequence[str], sources: Mapping[str, str]
) -> tuple[Counting, ...]:
    """Earlier countings without those that the new days replace.

    Raises:
        StatisticsError: they hold these days from other logs, or these logs as other days.
    """
    place, kept = given.into, list[Counting]()
    for counting in earlier.countings:
        common = sorted({*counting.days} & {*days})
        same = {*counting.sources} == {*sources}
        if not common:
            twice = counted_already(sources, counting.sources)
            if twice is not None:
                raise StatisticsError(
                    f"{place}: has counted {twice} as {', '.join(counting.days)} already: its clicks would be "
                    "counted twice."
                )
            kept.append(counting)
        elif not (same or given.replace_day):
            raise StatisticsError(
                f"{place}: holds {common[0]} already, from other logs than {', '.join(sources.values())}, or before "
                "they changed. To count the day from these, add --replace-day."
            )
        elif not {*counting.days} <= {*days}:
            raise StatisticsError(
                f"{place}: {common[0]} was counted together with other days ({counting.days[0]} to "
                f"{counting.days[-1]}), so that it cannot be replaced by itself. Give the logs of all of them."
            )
    return tuple(kept)


def _option(name: str, value: Any) -> str:  # noqa: ANN401 - of a field
    """Describe the value of a field by its options, e.g. `with --user visitor`."""
    if name == "ranks":
        return "without --rank-a and --rank-b" if value is None else f"with --rank-a {value[0]} --rank-b {value[1]}"
    flag = f"--{name.replace('_', '-')}"
    return f"without {flag}" if value is None else f"with {flag}" + (f" {value}" if name != "propensities" else "")


def _count(read: ReadLog, rule: CreditRule, folder: Path, number: int, engine: Engine, result: Result) -> None:
    """Write the sums of a log by day and query, user, and hour as `{number}-{table}.parquet`."""
    scratch = engine.scratch / f"interleaving-{number}"
    scratch.mkdir()
    tables = {QUERIES: QUERY} | ({} if rule.user is None else {USERS: tdi.USER})
    tables |= {} if read.plan.period in {None, "day"} else {HOURS: tdi.HOUR}
    with result.progress.stage("crediting clicks", read.buckets.number) as stage, temporary_files(scratch):
        for step in read.buckets.map(partial(_write_sums, rule=rule, tables=tables, folder=scratch)):
            stage.advance(step)
        for table, key in tables.items():
            parts = pl.scan_parquet(scratch / f"*-{table}.parquet")
            sink_table(add_up(parts, [DAY, key]).sort(DAY, key), folder / f"{number:06d}-{table}.parquet")


def _write_sums(number: int, rows: pl.LazyFrame, rule: CreditRule, tables: Mapping[str, str], folder: Path) -> int:
    """Write the sums of a part; return 1. Runs in any process."""
    pages = rule.page_sums(rows)
    times = {DAY: pl.col(PERIOD).cast(pl.Date) if PERIOD in pages.columns else pl.lit(None, pl.Date)}
    times |= {tdi.HOUR: pl.col(PERIOD).dt.hour()} if HOURS in tables else {}
    with whole_files(folder) as unfinished:
        for table, key in tables.items():
            sums = add_up(pages.lazy().with_columns(**times), [DAY, key]).collect(engine="streaming")
            sums.write_parquet(unfinished / f"{number:06d}-{table}.parquet")
    return 1


def write_verdict(folder: Path, section: InterleavingSection, result: Result, *, csv: bool) -> None:
    """Write the verdict and its daily course; add faults, reasons and the headline to the result.

    Args:
        folder: sums of all countings.
        section: their options.
        result: receives tables and reasons.
        csv: whether to write tables as CSV as well.
    """
    rho = rho_for(section.expected_pages * _PLANNED_SQUARE[section.propensities is not None])
    rhos: dict[str, float] = {TRAFFIC: rho, QUERIES: rho, USERS: rho}
    queries = add_up(_sums_in(folder, QUERIES), [QUERY]).collect(engine="streaming")
    by_day = add_up(_sums_in(folder, QUERIES), [DAY]).sort(DAY).collect(engine="streaming")
    sums = by_day.select(pl.col(tdi.PAGES, tdi.DIFFERENCE, tdi.SQUARES).cast(pl.Float64).cum_sum()).to_numpy()
    running = [Verdict.of_pages(float(pages), float(total), float(squares), rho) for pages, total, squares in sums]
    verdicts: dict[str, Verdict] = {
        TRAFFIC: running[-1],
        QUERIES: _cluster_verdict(queries, pl.col(tdi.DIFFERENCE), rho),
    }
    users = None
    if section.user is not None:
        users = add_up(_sums_in(folder, USERS), [tdi.USER]).filter(pl.col(tdi.USER).cast(pl.String) != "")
        users = users.collect(engine="streaming")
        preferred = pl.col(tdi.DIFFERENCE)
        if section.outcome is not None:  # weigh a user's difference in shares of credit by the user's outcomes
            rhos[USERS] = rho_for(section.expected_pages * _PLANNED_SQUARE_OF_OUTCOMES)
            shares = pl.when(pl.col(tdi.CREDIT) > 0).then(preferred / pl.col(tdi.CREDIT)).otherwise(0.0)
            preferred = shares * pl.col(tdi.OUTCOME)
        verdicts[USERS] = _cluster_verdict(users, preferred, rhos[USERS])
    hours = _sums_in(folder, HOURS).collect() if [*folder.glob(f"*-{HOURS}.parquet")] else None
    faults = _faults(queries, users, hours, by_day, section, rho)
    refused = has_stops([*result.all_reasons, *faults])
    names = {1: label_in_words(section.teams[0]), -1: label_in_words(section.teams[1]), 0: None}
    clicks = "clicks" if section.propensities is None else "weighted clicks"
    units: dict[str, str] = dict.fromkeys(verdicts, clicks)
    if section.outcome is not None:
        units[USERS] = printable(section.outcome)
    answers = [
        {
            "question": question,
            "winner": None if refused else names[verdict.winner],
            **_figures(verdict),
            "pages": round(verdict.pages),
        }
        for question, verdict in verdicts.items()
    ]
    table = pl.DataFrame(answers, schema_overrides={"winner": pl.String, **dict.fromkeys(_FIGURES, pl.Float64)})
    write_small_table(table, result.folder, VERDICT, csv=csv)
    course = [
        {"day": day, "pages": pages, "difference_of_day": total / pages, **_figures(verdict)}
        for (day, pages, total), verdict in zip(
            by_day.select(DAY, tdi.PAGES, tdi.DIFFERENCE).iter_rows(), running, strict=True
        )
    ]
    types = {"day": pl.Date, **dict.fromkeys(_FIGURES, pl.Float64)}
    write_small_table(pl.DataFrame(course, schema_overrides=types), result.folder, DAYS, csv=csv)
    result.content["experiment"] = {
        "rankers": [names[1], names[-1]],
        "clicks_per_page": float(queries[tdi.CREDIT].sum()) / running[-1].pages,
        "answers": [answer | {"unit": units[question]} for question, answer in zip(verdicts, answers, strict=True)],
        "running": course[-_MOST_DAYS:],
    }
    reasons = [
        _verdict_reason(question, verdict, section, units[question], rhos[question], refused=refused)
        for question, verdict in verdicts.items()
    ]
    result.headline = reasons[0].sentence.partition(". ")[0].removesuffix(".")
    result.reasons += [*reasons, *faults]
    if section.ranks is None:
        result.reasons.append(reason("ranks-unknown"))
    result.condition_met = running[-1].winner != 0 and not refused
    result.printed += _verdict_table(verdicts, names, units, "none" if refused else "undecided")
    result.facts.append(
        f"with what was predicted in one table: posbias report PREDICTED {result.target} -o report.html"
    )
    result.facts.append(
        f"E >= {tdi.DECIDED:g} decides, at any number of looks; rho is {rho:.3g}, for some "
        f"{section.expected_pages:,} pages (--expected-pages)"
    )
    result.next = f"posbias report {result.target} -o report.html"


def _sums_in(folder: Path, table: str) -> pl.LazyFrame:
    """Scan a table of sums of all countings.

    Raises:
        StatisticsError: a key column has different types.
    """
    frames = [pl.scan_parquet(path, glob=False) for path in sorted(folder.glob(f"*-{table}.parquet"))]
    schemas = [frame.collect_schema() for frame in frames]
    for other in schemas:
        if other != schemas[0]:
            (name, ours), theirs = next(
                (item, other[item[0]]) for item in schemas[0].items() if other[item[0]] != item[1]
            )
            raise StatisticsError(
                f"column {name!r} holds {ours} in one log and {theirs} in another. Write the logs with the same type."
            )
    return pl.concat(frames)


def _cluster_verdict(sums: pl.DataFrame, difference: pl.Expr, rho: float) -> Verdict:
    pages = sums[tdi.PAGES].to_numpy().astype(np.float64)
    return Verdict.of_clusters(pages, sums.select(difference).to_series().to_numpy(), rho)


def _verdict_reason(
    question: str, verdict: Verdict, section: InterleavingSection, unit: str, rho: float, *, refused: bool
) -> Reason:
    """Answer to a question, as a reason; with `refused`, as the answer that would have been given."""
    low, high = verdict.interval
    a, b = map(label_in_words, section.teams)
    figures = {"question": question, "pages": verdict.pages, **_figures(verdict)}
    where = _WORDS[question][:1].upper() + _WORDS[question][1:]
    if math.isnan(verdict.e_value):
        worth = plural(verdict.effective, question)
        return reason("interleaving-open.too-few", figures, where=where, worth=worth)
    if not verdict.winner:
        more = _pages_needed(verdict, rho)
        words: dict[str, Any] = {"a": a, "b": b, "interval": _interval(verdict.interval)}
        return reason(
            "interleaving-open", figures, where=where, unit=unit, **words, known=math.isfinite(more), more=more
        )
    winner, other, ends = (a, b, (low, high)) if verdict.winner > 0 else (b, a, (-high, -low))
    values: dict[str, Any] = {"size": abs(verdict.difference), "least": ends[0], "most": ends[1]}
    case = "interleaving-verdict.refused" if refused else "interleaving-verdict"
    return reason(case, figures, where=where, unit=unit, winner=winner, other=other, **values)


def _pages_needed(verdict: Verdict, rho: float) -> float:
    """Extrapolate the number of pages N at which E reaches 20, if S and V keep growing in proportion to pages.

    log E is about (rho S^2 / (1 + rho V) - log(1 + rho V)) / 2. Infinite beyond `_MOST_TIMES` times the pages.
    """
    for factor in np.geomspace(1, _MOST_TIMES, 200):
        if log_e(factor * verdict.total, factor * verdict.squares, rho) >= math.log(tdi.DECIDED):
            return float(f"{factor * verdict.pages:.1e}")
    return math.inf


def _faults(
    queries: pl.DataFrame,
    users: pl.DataFrame | None,
    hours: pl.DataFrame | None,
    days: pl.DataFrame,
    section: InterleavingSection,
    rho: float,
) -> list[Reason]:
    """Faults of the experiment: unfair or repeated coins, and verdicts that one user, page or day decides.

    Conditions are in `faults.toml`; quantities `..._off` are in standard deviations of fair coins.

    Args:
        queries: sums by query.
        users: sums by user; None without a user column.
        hours: sums by day and hour; None without times.
        days: sums by day.
        section: options of the countings.
        rho: parameter of the e-value.
    """
    total = queries.select(pl.col(tdi.SUMS).sum(), pl.col(tdi.LARGEST).max()).row(0, named=True)
    (a, b), ones, others = map(label_in_words, section.teams), total[tdi.FIRST_A], total[tdi.FIRST_B]
    pages, heads, credited = total[tdi.PAGES], ones + others, total[tdi.CREDIT]
    names: dict[str, Quantity] = {"a": a, "b": b, "team": section.team, "first_a": ones, "first_b": others}
    always_first = None if ones and others else a if ones else b
    coin = {"coin_off": _off(ones - others, heads), "share_first_a": _share(ones, heads)}
    reasons = faults_in(names | coin | {"always_first": always_first})
    units = {"query": queries, "user": users, "day": days if len(days) > 1 else None, "hour": hours}
    for unit, sums in units.items() if always_first is None else ():
        if sums is not None:
            heads_a = sums[tdi.FIRST_A].to_numpy().astype(np.float64)
            z, factor = repeated_coins(heads_a + sums[tdi.FIRST_B].to_numpy(), heads_a)
            reasons += faults_in({"unit": unit, "repeated_off": z, "variance_of_heads": factor})
    lead, longer = total[tdi.LEAD], total[tdi.LONGER_A] - total[tdi.LONGER_B]
    counts = total | {"longer": total[tdi.LONGER_A] + total[tdi.LONGER_B], "without_team": pages - heads}
    counts["of_one_page"] = 0 if users is None or len(users) != users[tdi.PAGES].sum() else len(users)
    shares: dict[str, Quantity] = {
        "share_without_team": _share(counts["without_team"], pages),
        "share_longer": _share(counts["longer"], pages),
        "longer_off": _off(longer, counts["longer"]),
        "share_alone": _share(total[tdi.ALONE], pages),
        "share_misranked": _share(total[tdi.MISRANKED], heads),
        "share_credited": _share(credited, total[tdi.CLICKS]),
    }
    z = _share(lead, math.sqrt(total[tdi.LEAD_SQUARES]))
    shares |= {"lead_z": z, "lead_off": 0.0 if reasons else abs(z)}
    names |= {"leading": a if lead > 0 else b, "trailing": b if lead > 0 else a, "user": section.user}
    names |= {"more": a if longer > 0 else b, "less": b if longer > 0 else a, "outcome_column": section.outcome}
    reasons += faults_in(counts | shares | names | _days_in_doubt(days, rho))
    if total[tdi.UNWEIGHTED]:
        what = "they are credited to neither ranker"
        reasons.append(unweighted_reason(total[tdi.UNWEIGHTED], total[tdi.CLICKS], what))
    largest_user = 0.0 if users is None or not len(users) else float(users[tdi.CREDIT].to_numpy().max())
    for unit, clicks in (("page", math.sqrt(total[tdi.LARGEST])), ("user", largest_user)):
        share = _share(clicks, credited)
        reasons += faults_in({"one": unit, "clicks_of_one": clicks, "share_of_one": share, "credited": credited})
    return reasons


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _off(difference: float, variance: float) -> float:
    """Absolute difference in standard deviations; 0 if the variance is 0."""
    return _share(abs(difference), math.sqrt(variance))


def _days_in_doubt(days: pl.DataFrame, rho: float) -> dict[str, Quantity]:
    """Name two days with equal sums, and a significant day for each ranker (E >= 20 x number of days)."""
    enough = days.filter(pl.col(tdi.CREDIT) >= _ENOUGH)
    twice = enough.filter(pl.struct(tdi.SUMS).is_duplicated()).sort(*tdi.SUMS, DAY)
    named: dict[str, Quantity] = {"day_once": str(twice[DAY][0]), "day_again": str(twice[DAY][1])} if len(twice) else {}
    for day, pages, total, squares in days.select(DAY, tdi.PAGES, tdi.DIFFERENCE, tdi.SQUARES).iter_rows():
        verdict = Verdict.of_pages(float(pages), float(total), float(squares), rho)
        if verdict.winner and verdict.e_value >= tdi.DECIDED * len(days):
            named.setdefault("day_of_a" if verdict.winner > 0 else "day_of_b", str(day))
    return named


def _verdict_table(
    verdicts: Mapping[str, Verdict], names: Mapping[int, str | None], units: Mapping[str, str], no_winner: str
) -> list[Printed]:
    """Print the answers."""
    winners = [None if no_winner == "none" else names[verdict.winner] for verdict in verdicts.values()]
    differences = (number_in_words(verdict.difference, "+.4f") for verdict in verdicts.values())
    intervals = (_interval(verdict.interval) for verdict in verdicts.values())
    columns = (
        Column("question", tuple(_WORDS[question] for question in verdicts), label=True, text=True),
        Column("winner", tuple(winner or no_winner for winner in winners), text=True),
        Column("E", tuple(number_in_words(verdict.e_value, ".3g") for verdict in verdicts.values())),
        Column("difference\na page", tuple(differences)),
        Column("95 % interval,\nat any look", tuple(intervals), beside=True),
        Column("pages", tuple(f"{verdict.pages:,.0f}" for verdict in verdicts.values())),
        Column("of", tuple(units[question] for question in verdicts), text=True, spare=1),
    )
    return [f"difference: {names[1]} minus {names[-1]}", PrintedTable(columns)]


_FIGURES = ("e_value", "difference", "ci_low", "ci_high")


def _figures(verdict: Verdict) -> dict[str, float | None]:
    """Figures of a verdict by name; None for NaN and infinities."""
    values = verdict.e_value, verdict.difference, *verdict.interval
    return {name: value if math.isfinite(value) else None for name, value in zip(_FIGURES, values, strict=True)}


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}" if math.isfinite(ends[0] + ends[1]) else "unknown"
