"""`interleave`: the verdict of an interleaving experiment, from a log or day by day.

The directory of a result keeps the sums of each counting by day and query, user, and hour, in `sums`: with --into a
counting is added to those that are there, so that the verdict of today reads today's log alone.
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
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.fits.verdicts import label_in_words, unweighted_reason
from posbias.io.jobs.fit import Job, name_propensities, read_pages
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, number_in_words
from posbias.io.log.clicks import Rows
from posbias.io.log.faults import Quantity, faults_in
from posbias.io.log.sources import file_digest
from posbias.io.options import InterleavingOptions
from posbias.io.places.temporary import temporary_files, whole_files
from posbias.io.results.conclusions import Reason, has_stops, reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import sink_table, write_small_table

VERDICT, DAYS, SUMS = "verdict", "days", "sums"
TRAFFIC, QUERIES, USERS, HOURS = "traffic", "queries", "users", "hours"
DAY = "day"
_WORDS = {TRAFFIC: "on this traffic", QUERIES: "on queries like these", USERS: "for users like these"}
_PLANNED_SQUARE = {False: 0.5, True: 2.0}  # V of a page, of plain and of weighted clicks, by which rho is chosen
_PLANNED_SQUARE_OF_OUTCOMES = 0.05
_ENOUGH = 100  # credited clicks of a day, for two days to be compared
_MOST_DAYS = 1000  # of the running difference, in the manifest
_MOST_TIMES = 100  # times as many pages as there are, up to which it is foretold when there will be a verdict
_MOST_TEAMS_NAMED = 5
_LARGEST_OUTCOME = 1000


def named_columns(team: str, given: InterleavingOptions) -> tuple[str, ...]:
    """The columns of the log that are read.

    Raises:
        UsageError: options do not go together.
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

    number: Annotated[int, Meta(ge=1, le=10**6)]  # of its files
    days: tuple[str, ...]  # none where they are not known
    sources: dict[str, str]  # path by digest
    rows: Rows


class InterleavingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a result was counted; only what was counted alike is added to it."""

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
    """As much of the manifest of a result as is read again."""

    interleaving: InterleavingSection | UnsetType = UNSET


@contextmanager
def earlier_result(place: Path | None) -> Generator[InterleavingSection | None]:
    """How the result in a directory was counted; None where none is named, or there is nothing yet.

    Raises:
        LogFormatError: it is damaged.
        StatisticsError: it is of another kind.
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
    job: Job, team: str, given: InterleavingOptions, fitted: PreviousFit | None, engine: Engine, result: Result
) -> None:
    """Count a log, add it to what was counted before, and draw the verdict.

    Raises:
        SchemaError: a column does not hold what it must.
        StatisticsError: what is there was counted otherwise, or holds these days from other logs.
        UsageError: propensities are not by position alone.
    """
    with earlier_result(given.into) as earlier:
        section, theta = planned(team, given, fitted, earlier)
        if fitted is not None:
            name_propensities(fitted, result)
        read = read_pages(job, engine, result, keep_sessions="unchecked")
        teams = _teams(read, team, given, earlier)
        section = structs.replace(section, teams=teams)
        days = () if read.days is None else tuple(day.isoformat() for day in read.days.in_order)
        kept = () if earlier is None else _kept(earlier, given, days, read.sources)
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
        conclude(folder, section, result, csv=given.csv)
        if earlier is not None:
            before = sorted({day for counting in kept for day in counting.days})
            result.facts.append(f"days before: {plural(len(before), 'days')}, kept in {result.target}")


def planned(
    team: str, given: InterleavingOptions, fitted: PreviousFit | None, earlier: InterleavingSection | None
) -> tuple[InterleavingSection, dict[int, float] | None]:
    """How a log is to be counted, its teams aside, and propensity by position.

    Raises:
        StatisticsError: the result to which it is added was counted otherwise.
        UsageError: propensities are not by position alone.
    """
    theta = None if fitted is None else _weights(fitted)
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
    for name in structs.fields(InterleavingSection):
        if earlier is None:
            break
        ours, theirs = getattr(section, name.name), getattr(earlier, name.name)
        if name.name not in {"countings", "teams"} and ours != theirs:
            before, now = (_chosen(name.name, value) for value in (theirs, ours))
            raise StatisticsError(
                f"{given.into}: was counted {before}, and this is {now if now != before else 'others'}. What was "
                "chosen before the first day must stay: give the same, or name another directory."
            )
    return section, theta


def _weights(fitted: PreviousFit) -> dict[int, float]:
    """Propensity by position."""
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


def _teams(read: ReadLog, name: str, given: InterleavingOptions, known: InterleavingSection | None) -> tuple[Any, Any]:
    """The two values of the column of teams, in their order.

    Raises:
        SchemaError: there are more or fewer, or ranks or outcomes are no numbers.
    """
    numbers = {flag: of for flag, of in (("--rank-a", given.rank_a), ("--rank-b", given.rank_b)) if of is not None}
    wrong = {of: tdi.no_ranks(pl.col(of)) for of in numbers.values()}
    if given.outcome is not None:
        of = pl.col(given.outcome)
        number = of.cast(pl.Float64, strict=False)
        sound = (number == number.floor()) & number.is_between(0, _LARGEST_OUTCOME)
        numbers["--outcome"] = given.outcome
        wrong[given.outcome] = (of.is_not_null() & ~sound.fill_null(value=False)).sum()
    sums = {"rows": pl.len(), CLICK: pl.col(CLICK).cast(pl.Int64).sum()}
    counts = sums_by(read.pieces, [pl.col(name)], **sums, **{f"wrong {of}": sum_ for of, sum_ in wrong.items()})
    for flag, of in numbers.items():
        rows = int(counts[f"wrong {of}"].sum())
        if rows:
            what = (
                f"a whole number from 0 to {_LARGEST_OUTCOME}, such as orders"
                if flag == "--outcome"
                else "a rank, 1, 2, ... (null where the ranker has none)"
            )
            why = " Of amounts of money, one large one would decide." if flag == "--outcome" else ""
            verb = "holds" if rows == 1 else "hold"
            raise SchemaError(f"column {of!r} ({flag}): {plural(rows, 'rows')} {verb} something else than {what}.{why}")
    teams = sorted(team for team in counts[name].drop_nulls().to_list() if team != "")
    values = list(map(label_in_words, teams))
    of_teams = counts.filter(pl.col(name).is_in(teams))
    if teams and (of_teams["rows"] == of_teams[CLICK]).all():
        raise SchemaError(
            f"column {name!r} (--team): only documents that were clicked have a value, so that nothing shows whether a "
            "coin decided. Log the ranker of each document that was shown (of UBI, with its impression)."
        )
    if known is not None and {*teams} <= {*known.teams}:
        return known.teams
    if len(teams) != 2:  # noqa: PLR2004 - rankers
        some = ", ".join(values[:_MOST_TEAMS_NAMED]) + (", ..." if len(values) > _MOST_TEAMS_NAMED else "")
        without = f"SELECT * REPLACE (NULLIF({name}, 'both') AS {name}) FROM log"  # noqa: S608 - shown
        how = " Leave the cell empty where a document is of neither" if teams[2:] else ""
        how += f', e.g. --sql "{without}".' if how and name.isidentifier() else "." if how else ""
        raise SchemaError(
            f"column {name!r} (--team): holds {plural(len(teams), 'values')} ({some or 'none'}), and two rankers are "
            f"compared.{how}"
        )
    if known is not None:
        before = " and ".join(map(label_in_words, known.teams))
        raise StatisticsError(
            f"column {name!r} (--team): holds {' and '.join(values)}, and the days before {before}: that is another "
            "experiment. Name another directory."
        )
    return teams[0], teams[1]


def _kept(
    earlier: InterleavingSection, given: InterleavingOptions, days: Sequence[str], sources: Mapping[str, str]
) -> tuple[Counting, ...]:
    """The countings that stay when days are added.

    Raises:
        StatisticsError: they hold these days or logs already.
    """
    place, kept = given.into, list[Counting]()
    for counting in earlier.countings:
        common = sorted({*counting.days} & {*days})
        same = {*counting.sources} == {*sources}
        if not common:
            known = {*counting.sources, *map(file_digest, counting.sources)}
            twice = next((one for one in sources if one in known or file_digest(one) in counting.sources), None)
            if twice is not None:
                raise StatisticsError(
                    f"{place}: has counted {sources[twice]} as {', '.join(counting.days)} already: its clicks would be "
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


def _chosen(name: str, value: Any) -> str:  # noqa: ANN401 - of a field
    """A choice in words, as options."""
    if name == "ranks":
        return "without --rank-a and --rank-b" if value is None else f"with --rank-a {value[0]} --rank-b {value[1]}"
    flag = f"--{name.replace('_', '-')}"
    return f"without {flag}" if value is None else f"with {flag}" + (f" {value}" if name != "propensities" else "")


def _count(read: ReadLog, rule: CreditRule, folder: Path, number: int, engine: Engine, result: Result) -> None:
    """Write the sums of a log by day and query, user, and hour."""
    scratch = engine.scratch / f"interleaving-{number}"
    scratch.mkdir()
    tables = {QUERIES: QUERY} | ({} if rule.user is None else {USERS: tdi.USER})
    tables |= {} if read.plan.period in {None, "day"} else {HOURS: tdi.HOUR}
    with result.progress.stage("crediting clicks", read.buckets.number) as stage, temporary_files(scratch):
        for step in read.buckets.map(partial(_sums_of_part, rule=rule, tables=tables, folder=scratch)):
            stage.advance(step)
        for table, key in tables.items():
            parts = pl.scan_parquet(scratch / f"*-{table}.parquet")
            sink_table(add_up(parts, [DAY, key]).sort(DAY, key), folder / f"{number:06d}-{table}.parquet")


def _sums_of_part(number: int, rows: pl.LazyFrame, rule: CreditRule, tables: Mapping[str, str], folder: Path) -> int:
    """Write the sums of a part, in a process that may be another."""
    pages = rule.of_pages(rows)
    times = {DAY: pl.col(PERIOD).cast(pl.Date) if PERIOD in pages.columns else pl.lit(None, pl.Date)}
    times |= {tdi.HOUR: pl.col(PERIOD).dt.hour()} if HOURS in tables else {}
    with whole_files(folder) as unfinished:
        for table, key in tables.items():
            sums = add_up(pages.lazy().with_columns(**times), [DAY, key]).collect(engine="streaming")
            sums.write_parquet(unfinished / f"{number:06d}-{table}.parquet")
    return 1


def conclude(folder: Path, section: InterleavingSection, result: Result, *, csv: bool) -> None:
    """Write the verdict and the running difference, and say what they mean.

    Args:
        folder: the sums of all countings.
        section: how they were counted.
        result: what is written.
        csv: whether tables are written as CSV as well.
    """
    rho = rho_for(section.expected_pages * _PLANNED_SQUARE[section.propensities is not None])
    rhos: dict[str, float] = {TRAFFIC: rho, QUERIES: rho, USERS: rho}
    queries = add_up(_sums_in(folder, QUERIES), [QUERY]).collect(engine="streaming")
    by_day = add_up(_sums_in(folder, QUERIES), [DAY]).sort(DAY).collect(engine="streaming")
    sums = by_day.select(pl.col(tdi.PAGES, tdi.DIFFERENCE, tdi.SQUARES).cast(pl.Float64).cum_sum()).to_numpy()
    running = [Verdict.of_pages(float(pages), float(total), float(squares), rho) for pages, total, squares in sums]
    verdicts: dict[str, Verdict] = {TRAFFIC: running[-1], QUERIES: _of_clusters(queries, pl.col(tdi.DIFFERENCE), rho)}
    users = None
    if section.user is not None:
        users = add_up(_sums_in(folder, USERS), [tdi.USER]).filter(pl.col(tdi.USER).cast(pl.String) != "")
        users = users.collect(engine="streaming")
        preferred = pl.col(tdi.DIFFERENCE)
        if section.outcome is not None:  # of each user's outcomes, the share of A's clicks minus that of B's
            rhos[USERS] = rho_for(section.expected_pages * _PLANNED_SQUARE_OF_OUTCOMES)
            shares = pl.when(pl.col(tdi.CREDIT) > 0).then(preferred / pl.col(tdi.CREDIT)).otherwise(0.0)
            preferred = shares * pl.col(tdi.OUTCOME)
        verdicts[USERS] = _of_clusters(users, preferred, rhos[USERS])
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
            "question": of,
            "winner": None if refused else names[verdict.winner],
            **_figures(verdict),
            "pages": round(verdict.pages),
        }
        for of, verdict in verdicts.items()
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
    said = [
        _of_question(question, verdict, section, units[question], rhos[question], refused=refused)
        for question, verdict in verdicts.items()
    ]
    result.headline = said[0].sentence.partition(". ")[0].removesuffix(".")
    result.reasons += [*said, *faults]
    if section.ranks is None:
        result.reasons.append(reason("ranks-unknown"))
    result.condition_met = running[-1].winner != 0 and not refused
    result.printed += _table(verdicts, names, units, "none" if refused else "undecided")
    result.facts.append(
        f"with what was predicted in one table: posbias report PREDICTED {result.target} -o report.html"
    )
    result.facts.append(
        f"E >= {tdi.DECIDED:g} decides, at any number of looks; rho is {rho:.3g}, for some "
        f"{section.expected_pages:,} pages (--expected-pages)"
    )
    result.next = f"posbias report {result.target} -o report.html"


def _sums_in(folder: Path, table: str) -> pl.LazyFrame:
    """The sums of all countings.

    Raises:
        StatisticsError: ids of countings are of different types.
    """
    frames = [pl.scan_parquet(path, glob=False) for path in sorted(folder.glob(f"*-{table}.parquet"))]
    schemas = [frame.collect_schema() for frame in frames]
    for other in schemas:
        if other != schemas[0]:
            (name, ours), theirs = next((of, other[of[0]]) for of in schemas[0].items() if other[of[0]] != of[1])
            raise StatisticsError(
                f"column {name!r} holds {ours} in one log and {theirs} in another. Write the logs with the same type."
            )
    return pl.concat(frames)


def _of_clusters(sums: pl.DataFrame, of: pl.Expr, rho: float) -> Verdict:
    pages, difference = sums[tdi.PAGES].to_numpy().astype(np.float64), sums.select(of).to_series().to_numpy()
    return Verdict.of_clusters(pages, difference, rho)


def _of_question(
    question: str, verdict: Verdict, section: InterleavingSection, unit: str, rho: float, *, refused: bool
) -> Reason:
    """The answer to a question in a sentence; where the experiment is refused, what it would be."""
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
    """Pages, in all, at which E reaches 20 if S and V go on growing as they did; infinite where S does not.

    By then V is N / pages times as large, and log E about (rho S^2 / (1 + rho V) - log(1 + rho V)) / 2.
    """
    for factor in np.geomspace(1, _MOST_TIMES, 200):
        if log_e(factor * verdict.total, factor * verdict.squares, rho) >= math.log(tdi.DECIDED):
            return float(f"{factor * verdict.pages:.1e}")
    return math.inf


def _faults(
    queries: pl.DataFrame,
    users: pl.DataFrame | None,
    hours: pl.DataFrame | None,  # hours of a day, where logs say them
    days: pl.DataFrame,
    section: InterleavingSection,
    rho: float,
) -> list[Reason]:
    """What speaks against a draft by fair coins, and what one user, one page or one day decides.

    The conditions and words are those of `faults.toml`; `off` is in standard deviations of fair coins.
    """
    total = queries.select(pl.col(tdi.SUMS).sum(), pl.col(tdi.LARGEST).max()).row(0, named=True)
    (a, b), ones, others = map(label_in_words, section.teams), total[tdi.FIRST_A], total[tdi.FIRST_B]
    pages, heads, credited = total[tdi.PAGES], ones + others, total[tdi.CREDIT]
    names: dict[str, Quantity] = {"a": a, "b": b, "team": section.team, "first_a": ones, "first_b": others}
    always_first = None if ones and others else a if ones else b
    of_coin = {"coin_off": _off(ones - others, heads), "share_first_a": _share(ones, heads)}
    reasons = faults_in(names | of_coin | {"always_first": always_first})
    units = {"query": queries, "user": users, "day": days if len(days) > 1 else None, "hour": hours}
    for unit, sums in units.items() if always_first is None else ():
        if sums is not None:
            of_a = sums[tdi.FIRST_A].to_numpy().astype(np.float64)
            z, factor = repeated_coins(of_a + sums[tdi.FIRST_B].to_numpy(), of_a)
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
    of_user = 0.0 if users is None or not len(users) else float(users[tdi.CREDIT].to_numpy().max())
    for one, clicks in (("page", math.sqrt(total[tdi.LARGEST])), ("user", of_user)):
        share = _share(clicks, credited)
        reasons += faults_in({"one": one, "clicks_of_one": clicks, "share_of_one": share, "credited": credited})
    return reasons


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _off(difference: float, variance: float) -> float:
    """Standard deviations that a sum of fair coins is off."""
    return _share(abs(difference), math.sqrt(variance))


def _days_in_doubt(days: pl.DataFrame, rho: float) -> dict[str, Quantity]:
    """Two days that are the same, and two that contradict each other, each with its own look."""
    enough = days.filter(pl.col(tdi.CREDIT) >= _ENOUGH)
    twice = enough.filter(pl.struct(tdi.SUMS).is_duplicated()).sort(*tdi.SUMS, DAY)
    found: dict[str, Quantity] = {"day_once": str(twice[DAY][0]), "day_again": str(twice[DAY][1])} if len(twice) else {}
    for day, pages, total, squares in days.select(DAY, tdi.PAGES, tdi.DIFFERENCE, tdi.SQUARES).iter_rows():
        verdict = Verdict.of_pages(float(pages), float(total), float(squares), rho)
        if verdict.winner and verdict.e_value >= tdi.DECIDED * len(days):
            found.setdefault("day_of_a" if verdict.winner > 0 else "day_of_b", str(day))
    return found


def _table(
    verdicts: Mapping[str, Verdict], names: Mapping[int, str | None], units: Mapping[str, str], no_winner: str
) -> list[Printed]:
    """The table of answers."""
    winners = [None if no_winner == "none" else names[verdict.winner] for verdict in verdicts.values()]
    columns = (
        Column("question", tuple(_WORDS[question] for question in verdicts), label=True, text=True),
        Column("winner", tuple(winner or no_winner for winner in winners), text=True),
        Column("E", tuple(number_in_words(of.e_value, ".3g") for of in verdicts.values())),
        Column("difference\na page", tuple(number_in_words(of.difference, "+.4f") for of in verdicts.values())),
        Column(
            "95 % interval,\nat any look",
            tuple(_interval(verdict.interval) for verdict in verdicts.values()),
            beside=True,
        ),
        Column("pages", tuple(f"{verdict.pages:,.0f}" for verdict in verdicts.values())),
        Column("of", tuple(units[question] for question in verdicts), text=True, spare=1),
    )
    return [f"difference: {names[1]} minus {names[-1]}", PrintedTable(columns)]


_FIGURES = ("e_value", "difference", "ci_low", "ci_high")


def _figures(verdict: Verdict) -> dict[str, float | None]:
    """The numbers of a verdict by name; None for what is no number."""
    values = verdict.e_value, verdict.difference, *verdict.interval
    return {name: value if math.isfinite(value) else None for name, value in zip(_FIGURES, values, strict=True)}


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}" if math.isfinite(ends[0] + ends[1]) else "unknown"
