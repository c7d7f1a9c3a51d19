"""One pass over a log: its rows, what its counts and pages say, and what each model can expect of it."""

from dataclasses import dataclass, replace
from pathlib import Path

import narwhals as nw
import polars as pl

from posbias.core.check.counts import LogFacts, PartFacts, add_facts, facts_of
from posbias.core.check.outlook import Movement, Outlook, movement, outlook
from posbias.core.check.pages import PageFacts, page_facts
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import PartStatistics, SufficientStatistics, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.schema import QUERY
from posbias.io.counting.count import Reading
from posbias.io.counting.stored_parts import store_part
from posbias.io.engines.engine import Engine
from posbias.io.log.log import Log
from posbias.io.progress import Progress

PBM, UBM = "pbm", "ubm"

MOST_PARTS = 16
"""Parts whose pairs are looked at: those of a larger log are a sample, as parts hold queries by their hash."""

_MOST_ROWS = 2_000_000  # of pages that are looked at


@dataclass(frozen=True)
class Look:
    """What a log holds."""

    facts: LogFacts  # of its counts
    moved: Movement  # how documents move between positions; an estimate where not all queries were looked at
    pages: PageFacts | None  # facts of its pages; None where it has no sessions
    all_pages: int | None  # how many there are; an estimate where not all were looked at
    outlooks: tuple[Outlook, ...]  # what each model can say, the position-based one first
    why_not: dict[str, str]  # why a model is not among them


def look_at(unjudged: Reading, plan: StatisticsPlan, engine: Engine, progress: Progress) -> Look | None:
    """Look at a log that was read; None where it holds no row that counts.

    Args:
        unjudged: the log.
        plan: what is counted, by the position-based model.
        engine: where that is done.
        progress: where stages are reported.
    """
    if not unjudged.rows.used:
        return None
    counted = _counted(unjudged, plan, engine, progress)
    if counted is None:
        return None
    facts, statistics, found = counted
    outlooks, why_not = [found], _why_no_ubm(plan, unjudged.log)
    with progress.stage("looking at pages"):
        pages = _some_pages(unjudged)
        if pages is not None and not why_not:
            outlooks.append(_of_pages(pages, replace(plan, model=get_model(UBM)), facts.queries, engine.memory))
        of_pages = None if pages is None else page_facts(pages.lazy())
    return Look(
        facts=facts,
        moved=movement(statistics.pair_signatures).in_all(found.share),
        pages=of_pages,
        all_pages=None if of_pages is None else round(of_pages.pages * unjudged.rows.used / max(of_pages.rows, 1)),
        outlooks=tuple(outlooks),
        why_not={UBM: why_not} if why_not else {},
    )


@dataclass(frozen=True)
class _OfPart:
    """What is made of the statistics of a part; it travels."""

    plan: StatisticsPlan  # what they count
    kept_in: Path | None  # the directory for compressed counts; None keeps them in memory
    most: int | None = None  # so many parts, the first ones, are compressed; None for all

    def __call__(self, number: int, statistics: pl.LazyFrame) -> tuple[PartFacts, PartStatistics | None] | None:
        """What the part says, and its counts, where it is one of the sample; None where it is empty."""
        frame = statistics.collect()
        if not frame.height:
            return None
        if self.most is not None and number >= self.most:
            return facts_of(frame), None
        part = compress_part(frame, self.plan).without_pairs()
        stored = part if self.kept_in is None else store_part(part, number, self.kept_in)
        return facts_of(frame), stored


def _counted(
    unjudged: Reading, plan: StatisticsPlan, engine: Engine, progress: Progress
) -> tuple[LogFacts, SufficientStatistics, Outlook] | None:
    """What the counts say, and what the model can expect of them; None where nothing is left to count.

    A sample that cannot be compared says nothing of the whole: then all of it is looked at.
    """
    for most in (MOST_PARTS, None):
        read = unjudged.read.statistics(plan)
        work = _OfPart(plan, None if read.in_memory else engine.scratch, most)
        parts = list[tuple[PartFacts, PartStatistics | None]]()
        with progress.stage("counting", read.number) as stage:
            for of_part in read.map(work):
                stage.advance()
                parts += [] if of_part is None else [of_part]
        if not parts:
            return None
        facts = add_facts([of_part for of_part, _ in parts])
        sample = [counts for _, counts in parts if counts is not None]
        if sample:
            statistics = merge_parts(sample, plan)
            found = outlook(statistics, engine.memory, statistics.n_queries / facts.queries)
            if found.carries or len(sample) == len(parts):
                return facts, statistics, found
    return None


def _some_pages(unjudged: Reading) -> pl.DataFrame | None:
    """Whole pages, of some queries in a large log; None where the log has no sessions."""
    pages = unjudged.read.some_pages
    if pages is None:
        return None
    rows = pages.select(pl.len()).collect(engine="streaming").item()
    one_in = -(-rows // _MOST_ROWS)
    chosen = pages if one_in <= 1 else pages.filter(pl.col(QUERY).hash(1) % one_in == 0)
    return chosen.collect(engine="streaming")


def _why_no_ubm(plan: StatisticsPlan, log: Log) -> str:
    reasons = {
        "it needs whole pages, and the log has no session column": not log.has_sessions,
        "it compares the documents of a page, and without queries each is compared with itself": (
            log.page_rules.several_queries
        ),
        "it takes no --context": bool(plan.context),
        "it takes no --duplicate-docs keep": log.page_rules.docs_repeat,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _of_pages(pages: pl.DataFrame, plan: StatisticsPlan, n_queries: int, memory: int) -> Outlook:
    """What a model that needs whole pages can say, from some of them."""
    in_cells = plan.with_cells_in_memory(pages)
    rows = plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
    statistics: SufficientStatistics = merge_parts([compress_part(rows, plan)], plan)
    return outlook(statistics, memory, share=min(1.0, statistics.n_queries / n_queries))
