"""`evaluate --models`: fit click models to some sessions of a log, and evaluate them on held-out sessions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from posbias.core.choices import unknown_name
from posbias.core.errors import SchemaError, UsageError, plural, population
from posbias.core.evaluation.clicked import RANKING, SCORE, ndcg_by_query, rank_lists
from posbias.core.models import ClickModel, click_model_names, get_click_model, judging, model_names
from posbias.core.models.em import EMOptions, ModelEstimate, fit
from posbias.core.models.page_matrices import UNIT, to_batch
from posbias.core.models.position_based import TrustBiasModel
from posbias.core.schema import DOC, PAIR, QUERY
from posbias.io.counting.count import read_log
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.jobs.fit import Job, lost_click_reasons, read_pages
from posbias.io.jobs.page_batches import (
    LogPages,
    PageFilter,
    Units,
    all_pages,
    by_session,
    by_time,
    last_share,
    number_units,
    numbered_pages,
)
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, number_in_words
from posbias.io.log.lists import are_comparable
from posbias.io.options import EvaluationOptions, ModelsOptions
from posbias.io.progress import Progress
from posbias.io.rankings import read_judgments
from posbias.io.results.conclusions import Reason, reason
from posbias.io.results.tables import write_small_table

MOST_POSITIONS, MOST_POSITIONS_IN_PAIRS = 10_000, 1_000
"""Limits of memory: sums by position for each bootstrap sample, and a parameter for each pair of positions."""

_BY_PAIR = "position and previous click"
_LEVEL = 0.05  # of the test of dependence on the ranker
_MUCH_UNSEEN = 0.5
ALL = "all"


_PagesByKey = dict[tuple[str, ...], LogPages]
"""Pages by key columns of their units; PAIR is a key."""


def models_named(given: ModelsOptions) -> tuple[ClickModel, ...]:
    """Parse a comma-separated list of models, or `all`.

    Raises:
        UsageError: a model is unknown or named twice, or the held-out share is out of range.
    """
    named = given.models or ALL
    words = [word.strip() for word in named.split(",")]
    names = click_model_names() if words == [ALL] else words
    wrong = [name for name in names if name not in click_model_names()]
    if ALL in wrong:
        raise UsageError(f"--models {named}: `{ALL}` stands alone.")
    if "" in wrong:
        raise UsageError(f"--models {named}: a name is missing beside a comma.")
    if wrong:
        raise unknown_name("--models", wrong[0], [*click_model_names(), ALL])
    if len(set(names)) < len(names):
        raise UsageError(f"--models {named}: names a model twice.")
    if not 0 < given.test_share < 1:
        raise UsageError(f"--test-share {given.test_share:g}: must be above 0 and below 1; it is a share of sessions.")
    return tuple(get_click_model(name) for name in names)


def judge_models(
    learn: Job,
    test: Job | None,
    models: Sequence[ClickModel],
    by: ModelsOptions,
    rankings: EvaluationOptions,
    engine: Engine,
    result: Result,
) -> None:
    """Fit click models to some sessions and evaluate them on others; write tables, and add headline and reasons.

    Args:
        learn: log to fit models to.
        test: log to evaluate on; None holds out sessions of `learn`.
        models: click models.
        by: split of sessions, and bootstrap samples.
        rankings: judgments of documents, for NDCG.
        engine: reads logs.
        result: receives tables and reasons.

    Raises:
        PosbiasError: a log cannot be read, or one side of the split is empty.
    """
    log = learn.open_log()
    if rankings.judgments is not None and not (log.raw is not None and log.raw.reads_lines):
        read_judgments(rankings.judgments, log.roles, log.schema)
    read = read_pages(learn, engine, result)
    other = None
    if test is not None:
        test_log = test.open_log()
        same = [path for digest, path in test_log.digests.items() if digest in log.digests]
        if same:
            raise UsageError(
                f"--test {same[0]}: models are fitted to the same file, and would be judged by clicks that they know. "
                "Name another one, or leave out --test: some of the sessions are then held out."
            )
        other = read_log(test_log, test.plan, engine, result.progress, keep_sessions=True)
        result.content["test"] = {"sources": other.sources, "rows": other.rows}
        result.reasons += lost_click_reasons(other.rows, other.clicks, "--test: ")
        # with other types, all held-out documents would count as unseen
        for name, known, own in ((name, read.log.schema[name], other.log.schema[name]) for name in PAIR):
            if not are_comparable(own, known):
                raise SchemaError(
                    f"--test: the ids of the {name} are {own} there, and {known} in the log: none would meet its own. "
                    "Write both with the same type."
                )
    pairs, learnt, held_out = _split_pages(read, other, models, by, engine, result.progress)
    learnt_pages, held_out_pairs = learnt[PAIR], held_out[PAIR]
    # copies of the pages, as their caches serve the next model only
    copies, fitted = {kind: replace(pages) for kind, pages in learnt.items()}, list[ModelEstimate]()
    for model in models:
        with result.progress.stage(f"fitting {model.name}") as stage:
            fitted.append(fit(model, copies[model.unit_columns], EMOptions(), stage.advance))
    del copies
    tests = [held_out[model.unit_columns] for model in models]
    with result.progress.stage("judging", sum(map(len, held_out_pairs.parts))) as stage:
        judged = [(model, estimate.parameters) for model, estimate in zip(models, fitted, strict=True)]
        sums, shared = _sum_pages(judged, tests, by.samples, by.seed, stage.advance)
    measures = [judging.ModelMeasures(model_sums, shared) for model_sums in sums]
    relevance = dict[str, dict[str, float | None]]()
    if rankings.judgments is not None:
        judgments = read_judgments(rankings.judgments, read.log.roles, read.log.schema)
        relevance = _relevance_measures(judged, learnt_pages, pairs, judgments, rankings.cutoff, by.seed)
    table = judging.model_table(models, fitted, measures, relevance)
    written = {
        "models": table,
        "perplexity_by_position": judging.position_table(models, measures, shared),
        "calibration": judging.calibration_table(models, measures),
        "parameters": judging.all_parameters_table(models, fitted),
    }
    for name, frame in written.items():
        write_small_table(frame, result.folder, name, csv=rankings.csv)
    result.content["models"] = [
        {name: value for name, value in row.items() if value is not None and value == value}  # noqa: PLR0124 - NaN
        for row in table.iter_rows(named=True)
    ]
    shown = never_learnt = 0.0
    for batch in held_out_pairs:  # unseen units have the number J
        shown += float(batch.row_weight.sum())
        never_learnt += float(batch.row_weight[batch.unit == held_out_pairs.n_units].sum())
    unseen, clicks = never_learnt / shown, float(measures[0].predicted[1].sum())
    learnt_totals, held_out_totals = (
        {"sessions": pages.n_sessions, "impressions": pages.n_impressions} for pages in (learnt_pages, held_out_pairs)
    )
    result.content["pages"] = {"learnt": learnt_totals, "held_out": {**held_out_totals, "unseen_pairs": unseen}}
    result.printed += _model_tables(table, held_out_pairs.n_sessions)
    result.headline = _headline(table)
    result.reasons += _model_reasons(table)
    result.reasons += _doubts(table, learnt_pages.n_positions, held_out_pairs.n_positions, unseen, clicks)
    best = table["model"][0]
    result.next = f"posbias fit LOGS --model {best} -o fit" if best in model_names() else None


def _split_pages(
    read: ReadLog,
    other: ReadLog | None,
    models: Sequence[ClickModel],
    by: ModelsOptions,
    engine: Engine,
    progress: Progress,
) -> tuple[Units, _PagesByKey, _PagesByKey]:
    """Numbered pairs, pages to fit models to, and pages to evaluate them on.

    Raises:
        SchemaError: a side is empty, or has too many positions.
    """
    parts, folder = read.buckets, None
    if not (parts.in_memory and (other is None or other.buckets.in_memory)):
        folder = engine.scratch / "pages"
        folder.mkdir(mode=0o700)
    learnt_filter: PageFilter = all_pages
    held_out_filter: PageFilter = all_pages
    if other is None:
        by_share = partial(by_session, share=by.test_share)
        if by.split == "time":
            by_share = partial(by_time, start=last_share(parts, by.test_share))
        learnt_filter, held_out_filter = partial(by_share, held_out=False), partial(by_share, held_out=True)
    kinds = tuple(dict.fromkeys([PAIR, *(model.unit_columns for model in models)]))
    with progress.stage("reading pages", len(kinds) + 1) as stage:
        units, learnt = list[Units](), list[LogPages]()
        for kind in kinds:
            units.append(number_units(parts, kind, learnt_filter, folder))
            learnt += numbered_pages(parts, units[-1:], learnt_filter, folder, f"learnt-{len(kind)}")
            stage.advance()
        judged_in = parts if other is None else other.buckets
        how = {"same_parts": other is None, "by_first_unit": False}
        held_out = numbered_pages(judged_in, units, held_out_filter, folder, "held-out", **how)
        stage.advance()
    if not learnt[0].n_sessions:
        raise SchemaError("no session is left to fit models to. Hold out less: --test-share.")
    if not held_out[0].n_sessions:
        raise SchemaError("no session is held out to judge models by. Hold out more: --test-share.")
    _check_positions(models, max(learnt[0].n_positions, held_out[0].n_positions))
    return units[0], dict(zip(kinds, learnt, strict=True)), dict(zip(kinds, held_out, strict=True))


def _check_positions(models: Sequence[ClickModel], n_positions: int) -> None:
    if n_positions > MOST_POSITIONS:
        raise SchemaError(
            f"the largest position is {n_positions:,}, and click models are judged by up to {MOST_POSITIONS:,}, each "
            "for itself. Number the documents of a page from its top, or leave out what stands further down."
        )
    by_pairs = [model.name for model in models if any(p.shape == _BY_PAIR for p in model.parameters)]
    if by_pairs and n_positions > MOST_POSITIONS_IN_PAIRS:
        others = ",".join(model.name for model in models if model.name not in by_pairs)
        raise SchemaError(
            f"{by_pairs[0]} has a parameter for each two positions, of which this log has {n_positions:,}; it takes up "
            f"to {MOST_POSITIONS_IN_PAIRS:,}. {f'Leave it out: --models {others}.' if others else 'Use --models pbm.'}"
        )


def _sum_pages(
    judged: Sequence[judging.JudgedModel],
    tests: Sequence[LogPages],
    samples: int,
    seed: int,
    advance: Callable[[], None],
) -> tuple[list[judging.ModelSums], judging.SharedSums]:
    """Sum log-likelihoods and rates over held-out pages: by model, and shared by all models."""
    n_positions = tests[0].n_positions
    sums, shared = [judging.ModelSums(samples, n_positions) for _ in judged], judging.SharedSums(samples, n_positions)
    number = 0
    for frames in zip(*(test.parts for test in tests), strict=True):
        rates: list[pl.DataFrame] = []
        for same_pages in zip(*frames, strict=True):
            batches = [to_batch(frame.load()) for frame in same_pages]
            weights = judging.sample_weights(batches[0], samples, seed, number)
            rates.append(judging.add_pages(judged, batches, weights, sums, shared))
            number += 1
            advance()
        if rates:
            judging.add_rates(judging.add_up_rates(rates), sums)
    return sums, shared


def _relevance_measures(
    judged: Sequence[judging.JudgedModel],
    learnt: LogPages,
    units: Units,
    judgments: pl.DataFrame,
    cutoff: int,
    seed: int,
) -> dict[str, dict[str, float | None]]:
    """Compute NDCG, AUC and dependence on the ranker of each model that estimates relevance.

    Args:
        judged: fitted models.
        learnt: pages that they were fitted to; the mean position of a pair stands for the ranker.
        units: numbered pairs.
        judgments: as from `read_judgments`.
        cutoff: of NDCG.
        seed: of the test of dependence.
    """
    shown, places = np.zeros(units.number), np.zeros(units.number)
    for batch in learnt:
        weight = batch.row_weight.ravel()
        shown += np.bincount(batch.unit.ravel(), weight, minlength=len(shown))
        places += np.bincount(batch.unit.ravel(), weight * batch.position.ravel(), minlength=len(shown))
    pairs = units.scan().sort(UNIT).select(QUERY, DOC).collect()
    pairs = pairs.with_columns(pl.Series(judging.PLACE, places / np.maximum(shown, 1e-300)))
    measures = dict[str, dict[str, float | None]]()
    for model, parameters in judged:
        relevance = model.relevance(parameters)
        if relevance is None:
            continue
        own = pairs.with_columns(pl.Series(judging.VALUE, relevance[:-1]))
        lists = rank_lists(own.select(pl.lit(1).alias(RANKING), QUERY, DOC, pl.col(judging.VALUE).alias(SCORE)))
        mean = ndcg_by_query(lists, judgments, 2, cutoff)["1"].mean()
        joined = own.join(judgments, on=[QUERY, DOC], nulls_equal=True).rename({"relevance": judging.GRADE})
        dependence = judging.dependence_on_ranker(joined, seed)
        ndcg, area = mean if isinstance(mean, float) else None, judging.auc(joined) if joined.height else None
        measures[model.name] = judging.judgment_columns(ndcg, area, dependence)
    return measures


def _model_tables(models: pl.DataFrame, sessions: int) -> list[Printed]:
    """Print the models, best first."""
    rows = models.to_dicts()

    def column(heading: str, name: str, form: str = ".4f", spare: int = 0) -> Column:
        return Column(heading, first(number_in_words(row[name], form) for row in rows), "", spare)

    def below_best(heading: str, name: str, sign: int) -> Column:
        cells = ("-" if row["difference"] == 0 else f"{sign * row[name]:.5f}" for row in rows)
        return Column(heading, first(cells))

    columns = [
        Column("model", first(row["model"] for row in rows), label=True, text=True),
        column("log-\nlikelihood", "log_likelihood", ".5f"),
        below_best("below the\nbest", "difference", -1),
        below_best("std.\nerror", "difference_std_error", 1),
        column("perplexity", "perplexity", spare=1),
        column("given\nclicks", "conditional_perplexity", spare=2),
        column("rate\nerror", "rate_error", spare=3),
    ]
    if set(judging.JUDGED) <= set(models.columns):
        columns += [column(heading, name) for heading, name in zip(("NDCG", "AUC"), judging.JUDGED[:2], strict=True)]
    title = f"click models by {plural(sessions, 'held-out sessions')}; log-likelihood per position: more is better"
    return [title, PrintedTable(tuple(columns)), population("more sessions of these queries")]


def _headline(models: pl.DataFrame) -> str:
    """Sentence on the model that predicts held-out clicks best, if significantly."""
    best, others = models["model"][0], models.slice(1)
    even = others.filter(~pl.col("significant"))["model"].to_list()
    if not others.height:
        return f"{best} is judged by held-out clicks; name others to compare it with"
    if even:
        return f"no click model is clearly best: these sessions do not tell {best} from {', '.join(even)}"
    return f"{best} predicts held-out clicks best, by more than chance"


def _model_reasons(models: pl.DataFrame) -> list[Reason]:
    """Reasons on a best model without propensities, and on relevance that depends on the ranker given the grades."""
    rows, reasons = models.to_dicts(), list[Reason]()
    best, name = rows[0], rows[0]["model"]
    if best["examination"] == "row":
        reasons.append(reason("no-propensity-by-position.by-row", model=name))
    elif name == TrustBiasModel.name:
        reasons.append(reason("no-propensity-by-position.up-to-scale", model=name))
    elif best["examination"] == "none" and len(rows) > 1:
        reasons.append(reason("no-propensity-by-position.none", model=name))
    for row in rows:
        p_value, rho = row.get("dependence_p_value"), row.get("dependence_on_ranker")
        if isinstance(p_value, float) and isinstance(rho, float) and p_value < _LEVEL:
            details = f"correlation {abs(rho):.2f}, p = {p_value:.2g}"
            figures = {"correlation": rho}
            reasons.append(reason("follows-the-ranker", figures, details, model=row["model"], higher=rho < 0))
    return reasons


def _doubts(models: pl.DataFrame, deepest: int, held_out: int, unseen: float, clicks: float) -> Iterator[Reason]:
    """Reasons against the measures.

    Args:
        models: table of models.
        deepest: last position of the pages that models were fitted to.
        held_out: last position of the held-out pages.
        unseen: share of held-out impressions with unseen pairs.
        clicks: held-out clicks.
    """
    if unseen > _MUCH_UNSEEN:
        yield reason("documents-not-seen", {"share": unseen})
    if held_out > deepest:
        yield reason("positions-not-seen", {"position": deepest}, held_out=held_out)
    if not clicks:
        yield reason("no-clicks-held-out")
    for row in models.iter_rows(named=True):
        if row["impossible_clicks"]:
            yield reason("clicks-impossible", {"model": row["model"], "share": row["impossible_clicks"] / clicks})
        if not row["converged"]:
            yield reason("not-converged.judged", {"model": row["model"], "passes": row["passes"]})
