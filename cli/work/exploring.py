"""What `explore` plans, from a fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import polars as pl

from posbias.cli.options.exploration import ExplorationOptions
from posbias.cli.options.output import OutputOptions
from posbias.cli.report import exploration as report
from posbias.cli.report.result import WITH_DOUBTS, Result, open_result
from posbias.core.errors import UsageError
from posbias.core.exploration.documents import MEAN_RANK, documents_to_show
from posbias.core.exploration.swaps import make_plan
from posbias.core.schema import QUERY
from posbias.io.fits.explore import ExploredFit, open_explored, whole_queries
from posbias.io.places.locations import Location
from posbias.io.progress import Stage
from posbias.io.results.exploration import write_documents, write_plan

SCHEMA = "posbias.exploration"


def explore(fit: Location, exploration: ExplorationOptions, output: OutputOptions) -> int:
    """Say which positions to swap, and which documents to show, to learn most."""
    if exploration.ucb is not None and not 0 <= exploration.ucb < inf:
        raise UsageError(f"--ucb {exploration.ucb:g}: must be at least 0, and finite, e.g. 2.")
    with (
        open_result("explore", output, [fit], [exploration]) as result,
        open_explored(fit) as explored,
    ):
        result.content["schema"] = SCHEMA
        _plan_swaps(explored, exploration.pages, result)
        _choose_documents(explored, exploration, result)
    return result.exit_code


def _plan_swaps(explored: ExploredFit, pages: int, result: Result) -> None:
    """Plan swaps of positions, and say what they are worth."""
    with result.progress.stage("planning swaps"):
        plan = make_plan(explored.known.curves(), pages)
    write_plan(explored.cells, plan, result.folder)
    result.content["swaps"] = report.plan_section(plan)
    result.printed += report.widths_report(explored.cells, plan)
    result.printed += (*report.plan_lines(plan), *report.next_steps(plan, explored.randomized))
    missing = plan.planned.badness[0]
    if missing:
        result.warnings.append(
            f"{missing} of {len(plan.planned.width)} propensities will still have no interval: one swap of the plan "
            "does not reach them. Plan more pages (--pages)."
        )
    if not explored.converged:
        result.exit_code = WITH_DOUBTS
        result.warnings.append("the fit did not converge, so that what it says of further pages may be off.")


@dataclass
class Totals:
    """What has been looked at so far."""

    queries: int = 0
    documents: int = 0
    shown: int = 0
    challengers: int = 0


def _choose_documents(explored: ExploredFit, asked: ExplorationOptions, result: Result) -> None:
    """Choose the documents that may be among the best of their query."""
    totals, top = Totals(), asked.top
    with result.progress.stage("choosing documents", explored.n_documents, unit="documents") as stage:
        for _ in write_documents(_chosen(explored, asked, totals, stage), result.folder):
            pass
    counts = vars(totals)
    result.content["documents"] = {"top": top, "ucb": asked.ucb, **counts}
    result.printed.append(report.documents_line(counts, top))


def _chosen(explored: ExploredFit, asked: ExplorationOptions, totals: Totals, stage: Stage) -> Iterator[pl.DataFrame]:
    for pairs in whole_queries(explored):
        worth = documents_to_show(pairs, explored.context, asked.top, asked.ucb)
        totals.queries += pairs[QUERY].n_unique()
        totals.documents += pairs.height
        totals.shown += worth.height
        totals.challengers += int((worth[MEAN_RANK] > asked.top).sum())
        stage.advance(pairs.height)
        yield worth
