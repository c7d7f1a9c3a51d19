"""`evaluate --models`: click models judged by held-out clicks, and their tables."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from posbias.cli.options.estimating import CountingOptions, ModelsOptions
from posbias.cli.options.learning import EvaluationOptions
from posbias.cli.options.log import ColumnOptions, ReadingOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.work.carrying_out import carry_out
from posbias.cli.work.requests import resolve
from posbias.core.choices import unknown_name
from posbias.core.errors import SchemaError, UsageError, counted, population
from posbias.core.evaluation.clicked import RANKING, SCORE, ndcg_by_query, ranked
from posbias.core.models import ClickModel, click_model_names, get_click_model
from posbias.core.models import judging as tables
from posbias.core.models.judging import GRADE, JUDGED, PLACE, VALUE, auc, dependence_on_ranker
from posbias.core.models.position_based import TrustBiasModel
from posbias.core.schema import DOC, PAIR, POSITION, QUERY
from posbias.io import clock
from posbias.io.counting.count import read_log
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.jobs.fit import Job, judge_clicks, read_pages
from posbias.io.jobs.held_out import Judged, Side, judge, relevance, share_unseen
from posbias.io.jobs.page_batches import LogPages, all_pages, by_session, by_time, last_share
from posbias.io.jobs.tables import WITH_DOUBTS, Column, Printed, PrintedTable, Result, first
from posbias.io.log.click_log import Log
from posbias.io.log.lists import of_one_type
from posbias.io.rankings import read_judgments
from posbias.io.results.tables import write_small_table

_SURE = 0.05
_MOSTLY = 0.5


def model_tables(models: pl.DataFrame, sessions: int) -> list[Printed]:
    """The models, the best first."""
    rows = models.to_dicts()

    def column(heading: str, name: str, decimals: int = 4, spare: int = 0) -> Column:
        return Column(
            heading, first("-" if row[name] is None else f"{row[name]:.{decimals}f}" for row in rows), "", spare
        )

    def below_best(heading: str, name: str, sign: int) -> Column:
        said = ("-" if row["difference"] == 0 else f"{sign * row[name]:.5f}" for row in rows)
        return Column(heading, first(said))

    columns = [
        Column("model", first(row["model"] for row in rows), label=True, text=True),
        column("log-\nlikelihood", "log_likelihood", 5),
        below_best("below the\nbest", "difference", -1),
        below_best("std.\nerror", "difference_std_error", 1),
        column("perplexity", "perplexity", spare=1),
        column("given\nclicks", "conditional_perplexity", spare=2),
        column("rate\nerror", "rate_error", spare=3),
    ]
    if set(JUDGED) <= set(models.columns):
        columns += [column(heading, name) for heading, name in zip(("NDCG", "AUC"), JUDGED[:2], strict=True)]
    title = f"click models by {counted(sessions, 'held-out sessions')}; log-likelihood per position: more is better"
    return [title, PrintedTable(tuple(columns)), population("more sessions of these queries")]


def verdicts(models: pl.DataFrame) -> list[str]:
    """Which model is best, where that is more than chance; and which of them have propensities."""
    rows = models.to_dicts()
    best, others = rows[0], rows[1:]
    even = [row["model"] for row in others if not row["significant"]]
    if not others:
        said: list[str] = []
    elif even:
        said = [f"{best['model']} is not told from {', '.join(even)} by these sessions: no model is named best."]
    else:
        said = [f"{best['model']} predicts held-out clicks best, by more than chance."]
    if best["examination"] == "row":
        said.append(f"{best['model']} has an examination probability for each row, and no propensity by position.")
    elif best["model"] == TrustBiasModel.name:
        said.append(
            f"{best['model']}: clicks tell trust bias only up to a change of scale, and no propensities. "
            f"`posbias fit LOGS --model {best['model']} --trust FILE` takes trust from FILE."
        )
    elif best["examination"] == "none" and others:
        said.append(f"{best['model']} has no propensities.")
    return said + _of_ranker(rows)


def _of_ranker(rows: Sequence[dict[str, float | str | None]]) -> list[str]:
    """Whose relevance still tells the ranker's places, given the grades."""
    found: list[str] = []
    for row in rows:
        p_value, rho = row.get("dependence_p_value"), row.get("dependence_on_ranker")
        if isinstance(p_value, float) and isinstance(rho, float) and p_value < _SURE:
            higher = "higher" if rho < 0 else "lower"
            found.append(
                f"{row['model']}: of documents of one grade it prefers those that the ranker put {higher} "
                f"(correlation {abs(rho):.2f}, p = {p_value:.2g})."
            )
    return found


def warnings(models: pl.DataFrame, found: Judged, unseen: float) -> list[str]:
    """What a reader must know before believing a value.

    Args:
        models: the table.
        found: what was found.
        unseen: the share of held-out impressions whose document was not learnt for that query.
    """
    said: list[str] = []
    if unseen > _MOSTLY:
        said.append(
            f"{unseen:.0%} of the held-out impressions show documents that models did not learn for that query: of "
            "these they know the mean alone."
        )
    deepest = found.learnt.n_positions
    if found.held_out.n_positions > deepest:
        said.append(
            f"held-out sessions go down to position {found.held_out.n_positions}, those learnt from to {deepest}: "
            f"below it models take what they know of position {deepest}."
        )
    clicks = float(found.measures[0].sums.predicted[1].sum())
    if not clicks:
        said.append("the held-out sessions have no click: nothing tells these models apart.")
    for row in models.iter_rows(named=True):
        if row["impossible_clicks"]:
            said.append(
                f"{row['model']} holds {row['impossible_clicks'] / clicks:.1%} of the held-out clicks impossible: each "
                "counts as one of probability 0.000001, and its log-likelihood says little else."
            )
        if not row["converged"]:
            said.append(f"{row['model']} did not converge in {row['passes']:,} passes over the log.")
    return said


ALL = "all"


def evaluate_models(
    inputs: Sequence[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    asked: ModelsOptions,
    output: ResultOptions,
) -> int:
    """Judge click models by clicks that they were not fitted to."""
    models = _chosen_models(asked)
    learn, test = _jobs(inputs, columns, reading, asked)
    also_read = [*(asked.test or ()), *([] if rankings.judgments is None else [rankings.judgments])]
    work = partial(_evaluate, learn, test, models, asked, rankings)
    return carry_out("evaluate", learn, reading, output, [columns, reading, asked], also_read, work)


def _chosen_models(asked: ModelsOptions) -> tuple[ClickModel, ...]:
    """The models to judge, in the order in which they were named.

    Raises:
        UsageError: a model is unknown or named twice, or a value is out of range.
    """
    words = [word.strip() for word in (asked.models or ALL).split(",")]
    names = click_model_names() if words == [ALL] else words
    wrong = [name for name in names if name not in click_model_names()]
    if ALL in wrong:
        raise UsageError(f"--models {asked.models}: `{ALL}` stands alone.")
    if "" in wrong:
        raise UsageError(f"--models {asked.models}: a name is missing beside a comma.")
    if wrong:
        raise unknown_name("--models", wrong[0], [*click_model_names(), ALL])
    if len(set(names)) < len(names):
        raise UsageError(f"--models {asked.models}: names a model twice.")
    if not 0 < asked.test_share < 1:
        raise UsageError(f"--test-share {asked.test_share:g}: must be above 0 and below 1; it is a share of sessions.")
    return tuple(get_click_model(name) for name in names)


def _jobs(
    inputs: Sequence[str], columns: ColumnOptions, reading: ReadingOptions, asked: ModelsOptions
) -> tuple[Job, Job | None]:
    """The log to learn from, and that to judge by where it is another one.

    Raises:
        UsageError: options do not go together.
    """
    if asked.test and reading.clicks:
        raise UsageError("--test: clicks in a table of their own (--clicks) belong to one log. Use --split instead.")
    by_time = asked.split == "time" and not asked.test
    if by_time and columns.timestamp is None:
        raise UsageError("--split time needs a column of dates or times: --timestamp COLUMN.")
    of_the_fit = ("context", "period_column", "stratify", "cluster_column", "randomized_where")
    of_pages = replace(columns, timestamp=columns.timestamp if by_time else None, **dict.fromkeys(of_the_fit))
    counting = CountingOptions(period="auto" if by_time else "none")
    first, *rest = (
        resolve(named, of_pages, reading, counting, statistics=(), sessions_for="posbias evaluate --models")
        for named in (inputs, *([asked.test] if asked.test else []))
    )
    return first, rest[0] if rest else None


def _evaluate(
    learn: Job,
    test: Job | None,
    models: tuple[ClickModel, ...],
    asked: ModelsOptions,
    rankings: EvaluationOptions,
    engine: Engine,
    result: Result,
) -> None:
    """Fit the models, judge them, write the tables and say what they show."""
    log = learn.open_log()
    if rankings.judgments is not None and not (log.raw is not None and log.raw.of_lines):
        read_judgments(rankings.judgments, log.roles, log.schema)
    read = read_pages(learn, engine, result)
    other = None if test is None else _read_test(test, log, engine, result)
    if other is not None:  # else all that is judged would count as never seen
        for name, known, own in ((name, read.log.schema[name], other.log.schema[name]) for name in PAIR):
            if not of_one_type(own, known):
                raise SchemaError(
                    f"--test: the ids of the {name} are {own} there, and {known} in the log: none would meet its own. "
                    "Write both with the same type."
                )
    sides = _sides(read, other, asked)
    in_memory = read.buckets.in_memory and (other is None or other.buckets.in_memory)
    folder = engine.scratch / "pages"
    folder.mkdir(mode=0o700)
    kept_in = None if in_memory else folder
    same = other is None
    found = judge(*sides, models, asked.samples, asked.seed, kept_in, result.progress, same_parts=same)
    of_judgments = _of_judgments(found, models, asked.seed, rankings, read.log)
    table = tables.model_table(models, found.fitted, found.measures, of_judgments)
    written = {
        "models": table,
        "perplexity_by_position": tables.position_table(models, found.measures, found.shared),
        "calibration": tables.calibration_table(models, found.measures),
        "parameters": tables.parameters_table(models, found.fitted),
    }
    for name, frame in written.items():
        write_small_table(frame, result.folder, name, csv=rankings.csv)
    result.content["models"] = [
        {name: value for name, value in row.items() if value is not None and value == value}  # noqa: PLR0124 - NaN
        for row in table.iter_rows(named=True)
    ]
    unseen = share_unseen(found.held_out)
    result.content["pages"] = {
        "learnt": _size(found.learnt),
        "held_out": _size(found.held_out) | {"unseen_pairs": unseen},
    }
    result.printed += model_tables(table, found.held_out.n_sessions)
    said = verdicts(table)
    result.printed += said
    result.content["verdicts"] = said
    result.warnings += warnings(table, found, unseen)
    if not all(one.converged for one in found.fitted):
        result.exit_code = WITH_DOUBTS


def _size(pages: LogPages) -> dict[str, float]:
    return {"sessions": pages.n_sessions, "impressions": pages.n_impressions}


def _read_test(test: Job, learnt: Log, engine: Engine, result: Result) -> ReadLog:
    log: Log = test.open_log()
    same = [path for digest, path in log.digests.items() if digest in learnt.digests]
    if same:
        raise UsageError(
            f"--test {same[0]}: models are fitted to the same file, and would be judged by clicks that they know. "
            "Name another one, or leave out --test: some of the sessions are then held out."
        )
    found = read_log(log, test.plan, engine, result.progress, clock.today(), keep_sessions=True)
    result.content["test"] = {"sources": found.sources, "rows": found.rows}
    judge_clicks(found.rows, found.clicks, result, "--test: ")
    return found.read


def _sides(read: ReadLog, other: ReadLog | None, asked: ModelsOptions) -> tuple[Side, Side]:
    parts = read.buckets
    if other is not None:
        return Side(parts, all_pages), Side(other.buckets, all_pages)
    if asked.split == "session":
        of_pages = partial(by_session, share=asked.test_share)
    else:
        of_pages = partial(by_time, start=last_share(parts, asked.test_share))
    return Side(parts, partial(of_pages, held_out=False)), Side(parts, partial(of_pages, held_out=True))


def _of_judgments(
    found: Judged, models: Sequence[ClickModel], seed: int, rankings: EvaluationOptions, log: Log
) -> dict[str, dict[str, float | None]]:
    """NDCG, AUC and dependence on the ranker of each model that tells documents apart; nothing without judgments."""
    if rankings.judgments is None:
        return {}
    judgments = read_judgments(rankings.judgments, log.roles, log.schema)
    values = relevance(found, models)
    said: dict[str, dict[str, float | None]] = {}
    for model in models:
        if model.name not in values.columns:
            continue
        own = values.select(QUERY, DOC, pl.col(model.name).alias(VALUE), pl.col(POSITION).alias(PLACE))
        lists = ranked(own.select(pl.lit(1).alias(RANKING), QUERY, DOC, pl.col(VALUE).alias(SCORE)))
        by_query = ndcg_by_query(lists, judgments, 2, rankings.cutoff)
        joined = own.join(judgments, on=[QUERY, DOC], nulls_equal=True).rename({"relevance": GRADE})
        dependence = dependence_on_ranker(joined, seed)
        mean = by_query["1"].mean()
        said[model.name] = tables.of_relevance(
            float(mean) if isinstance(mean, float) else None, auc(joined) if joined.height else None, dependence
        )
    return said
