"""Click models fitted to some sessions of a log, and judged by others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.models import ClickModel
from posbias.core.models.em import EMOptions, FittedModel, fit
from posbias.core.models.judging import (
    JudgedModel,
    ModelMeasures,
    ModelSums,
    SharedSums,
    add_pages,
    add_rates,
    add_up_rates,
    sample_weights,
)
from posbias.core.models.page_matrices import UNIT, as_batch
from posbias.core.schema import DOC, PAIR, POSITION, QUERY
from posbias.io.engines.engine import Parts
from posbias.io.jobs.page_batches import LogPages, OfPages, Units, number_units, pages_to_judge_by, pages_to_learn_from
from posbias.io.progress import Progress

MOST_POSITIONS, MOST_POSITIONS_IN_PAIRS = 10_000, 1_000
"""More would take gigabytes of memory: a sum by position in each bootstrap sample, or a parameter for each two."""

_BY_PAIR = "position and previous click"


@dataclass(frozen=True)
class Side:
    """The pages to learn from, or those to be judged by.

    Attributes:
        parts: canonical impressions.
        of_pages: which of them.
    """

    parts: Parts
    of_pages: OfPages


@dataclass(frozen=True)
class Judged:
    """What was found.

    Attributes:
        fitted: each model with its parameters.
        measures: of each model.
        shared: sums that are the same for all.
        learnt: the pages learnt from.
        held_out: the pages judged by.
        units: the pairs.
    """

    fitted: tuple[FittedModel, ...]
    measures: tuple[ModelMeasures, ...]
    shared: SharedSums
    learnt: LogPages
    held_out: LogPages
    units: Units


def judge(
    learn: Side,
    held_out: Side,
    models: Sequence[ClickModel],
    samples: int,
    seed: int,
    folder: Path | None,
    progress: Progress,
    *,
    same_parts: bool,
) -> Judged:
    """Fit models, and judge them.

    Args:
        learn: the pages to learn from.
        held_out: the pages to be judged by.
        models: them.
        samples: bootstrap samples of sessions.
        seed: of these.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
        progress: is told.
        same_parts: whether both sides are of one log that was read once.

    Raises:
        SchemaError: one of the sides is empty.
    """
    kinds = tuple(dict.fromkeys([PAIR, *(model.unit_columns for model in models)]))
    with progress.stage("reading pages", len(kinds) + 1) as stage:
        units: list[Units] = []
        learnt: list[LogPages] = []
        for kind in kinds:
            units.append(number_units(learn.parts, kind, learn.of_pages, folder))
            learnt.append(pages_to_learn_from(learn.parts, units[-1], learn.of_pages, folder, f"learnt-{len(kind)}"))
            stage.advance()
        judged_by = pages_to_judge_by(
            held_out.parts, units, held_out.of_pages, folder, "held-out", same_parts=same_parts
        )
        stage.advance()
    of_pairs, held_out_pairs = learnt[0], judged_by[0]  # PAIR is the first kind
    if not of_pairs.n_sessions:
        raise SchemaError("no session is left to fit models to. Hold out less: --test-share.")
    if not held_out_pairs.n_sessions:
        raise SchemaError("no session is held out to judge models by. Hold out more: --test-share.")
    _check_positions(models, max(of_pairs.n_positions, held_out_pairs.n_positions))
    fitted = _fit(dict(zip(kinds, learnt, strict=True)), models, progress)
    judged = [JudgedModel(model, one.parameters) for model, one in zip(models, fitted, strict=True)]
    tests = [judged_by[kinds.index(model.unit_columns)] for model in models]
    with progress.stage("judging", sum(map(len, tests[0].parts))) as stage:
        sums, shared = _add_up(judged, tests, samples, seed, stage.advance)
    return Judged(
        fitted=tuple(fitted),
        measures=tuple(ModelMeasures(one, shared) for one in sums),
        shared=shared,
        learnt=of_pairs,
        held_out=held_out_pairs,
        units=units[0],
    )


def _fit(
    learnt: Mapping[tuple[str, ...], LogPages], models: Sequence[ClickModel], progress: Progress
) -> list[FittedModel]:
    """The models, fitted to copies of the pages: what these know of themselves is needed for the next model only."""
    copies = {kind: replace(pages) for kind, pages in learnt.items()}
    fitted: list[FittedModel] = []
    for model in models:
        with progress.stage(f"fitting {model.name}") as stage:
            fitted.append(fit(model, copies[model.unit_columns], EMOptions(), stage.advance))
    return fitted


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


def _add_up(
    judged: Sequence[JudgedModel], tests: Sequence[LogPages], samples: int, seed: int, advance: Callable[[], None]
) -> tuple[list[ModelSums], SharedSums]:
    """The sums of all models over the pages to be judged by, part by part."""
    n_positions = tests[0].n_positions
    sums = [ModelSums(samples, n_positions) for _ in judged]
    shared = SharedSums(samples, n_positions)
    number = 0
    for frames in zip(*(test.parts for test in tests), strict=True):
        rates: list[pl.DataFrame] = []
        for same_pages in zip(*frames, strict=True):
            batches = [as_batch(frame.load()) for frame in same_pages]
            weights = sample_weights(batches[0], samples, seed, number)
            rates.append(add_pages(judged, batches, weights, sums, shared))
            number += 1
            advance()
        if rates:
            add_rates(add_up_rates(rates), sums)
    return sums, shared


def share_unseen(pages: LogPages) -> float:
    """The share of impressions whose unit has no number: the pages learnt from do not show it."""
    shown = unseen = 0.0
    for batch in pages:
        weight = batch.row_weight
        shown += float(weight.sum())
        unseen += float(weight[batch.unit == pages.n_units].sum())
    return unseen / shown


def relevance(judged: Judged, models: Sequence[ClickModel]) -> pl.DataFrame:
    """What models say of documents.

    Returns:
        `query`, `doc`, `position` (the mean at which the pages learnt from show it) and, named as the model, the
        relevance of each model that tells documents apart.
    """
    shown, places = np.zeros(judged.units.number), np.zeros(judged.units.number)
    for batch in judged.learnt:
        weight = batch.row_weight.ravel()
        shown += np.bincount(batch.unit.ravel(), weight, minlength=len(shown))
        places += np.bincount(batch.unit.ravel(), weight * batch.position.ravel(), minlength=len(shown))
    columns = {POSITION: places / np.maximum(shown, 1e-300)}
    for model, fitted in zip(models, judged.fitted, strict=True):
        values = model.relevance(fitted.parameters)
        if values is not None:
            columns[model.name] = values[:-1]
    return (
        judged.units.scan()
        .sort(UNIT)
        .select(QUERY, DOC)
        .collect()
        .with_columns(**{name: pl.Series(values) for name, values in columns.items()})
    )
