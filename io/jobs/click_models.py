"""A click model that has no propensity by cell: fitted to pages or to counts of them, and weights by it row by row."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError, plural, population
from posbias.core.models import ClickModel, ExaminationModel
from posbias.core.models.em import STD_ERROR, VALUE, EMOptions
from posbias.core.schema import POSITION
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages, RowsOfPairs
from posbias.core.training.weights import WeightOptions, weighed_rows
from posbias.io.counting.count import CountedLog, compress
from posbias.io.engines.engine import Engine
from posbias.io.jobs.click_model_fits import (
    CLICK_MODEL,
    ClickModelFit,
    ClickModelSection,
    FittedToLog,
    as_read,
    check_positions,
    fit_model,
    write_click_model,
)
from posbias.io.jobs.fit import Data, Job, Weighed, WeightRequest, count, read_pages
from posbias.io.jobs.page_batches import (
    all_pages,
    bring_counts,
    number_units,
    pages_to_learn_from,
    rows_of_counts,
    up_to_position,
)
from posbias.io.jobs.tables import MOST_ROWS, Column, Printed, PrintedTable, Result
from posbias.io.jobs.weighing import check_can_weigh, no_weight_of_rows, weigh_documents, weigh_rows
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason, reason
from posbias.io.training.feature_parts import FeaturesRequest
from posbias.io.training.laid_out import PairsOfParts, check_unidentified


@dataclass(frozen=True)
class PageFit:
    """A request for a click model without propensities by cell."""

    model: ClickModel
    em: EMOptions
    trust: str | None = None  # the table that trust bias is given in
    csv: bool = False

    @property
    def sessions_for(self) -> str:
        """It needs whole pages, or statistics that hold all that the model looks at."""
        return f"--model {self.model.name}"

    @property
    def features(self) -> FeaturesRequest:
        """None: it looks at clicks and positions alone."""
        return FeaturesRequest()

    @property
    def also_read(self) -> list[str]:
        """The table of trust bias, where there is one."""
        return [] if self.trust is None else [self.trust]

    def check(self, job: Job) -> None:
        """Raise StatisticsError if statistics do not hold all that the model looks at."""
        if not job.statistics:
            return
        needed, held, path = set(self.model.statistics_columns), job.plan.cell_columns, job.statistics[0].path
        if not needed or not needed <= set(held):
            advice = "Collect them with --model ubm, or give the logs" if len(needed) > 1 else "Give the logs"
            raise StatisticsError(
                f"{self.sessions_for}: needs whole pages, and {path} holds counts by {' and '.join(held)}. {advice}."
            )
        if job.plan.position_bins:
            raise StatisticsError(
                f"{self.sessions_for}: {path} holds counts by bins of positions. Collect them without "
                "--position-bins, or give the logs."
            )

    def check_weights(self, layout: LayoutOfPages | LayoutOfCounts, options: WeightOptions) -> None:
        """Raise UsageError, before anything is read, if the model cannot make the weights of a layout."""
        model, name = self.model, self.model.name
        check_can_weigh(model)
        if not isinstance(model, ExaminationModel):
            if isinstance(layout, LayoutOfPages):
                raise no_weight_of_rows(f"--layout {layout.name}")
            if options.self_normalize:
                raise UsageError("--self-normalize: is not defined under trust bias (--model tpbm). Leave it out.")
        if isinstance(layout, LayoutOfCounts) and type(layout).by_document is LayoutOfCounts.by_document:
            raise UsageError(f"--layout {layout.name}: is made from counts by cell, and --model {name} has no cells.")
        if options.replicates:
            raise UsageError(
                f"--layout-options replicates={options.replicates}: the errors of the examination of --model {name} "
                "are not known row by row. Leave it out."
            )
        if "negatives" in layout.takes and options.negatives == "posterior":
            raise UsageError(f"--layout-options negatives=posterior: is not known under --model {name}. Use clamp.")

    def fit(self, job: Job, engine: Engine, result: Result) -> tuple[Data, "FittedPages"]:
        """Read, fit, write the tables and say how sure the parameters are."""
        model, plan, progress = self.model, job.plan, result.progress
        if job.statistics:
            data = count(job, engine, result)
            check_no_silent_position(data.statistics)
            folder, of_pages = engine.scratch / "counts", all_pages
            folder.mkdir(mode=0o700)
            parts = engine.parts_of([rows.scan() for rows in rows_of_counts(data, folder)])
            units = number_units(parts, model.unit_columns, of_pages, folder)
            pages = bring_counts(parts, units, model.statistics_columns, folder)
        else:
            data = read_pages(job, engine, result)
            check_no_silent_position(compress(data.statistics(plan), plan, engine, progress)[0])
            parts = data.buckets
            of_pages = all_pages if plan.max_position is None else partial(up_to_position, deepest=plan.max_position)
            folder = None if parts.in_memory else engine.scratch / "pages"
            if folder is not None:
                folder.mkdir(mode=0o700)
            with progress.stage("reading pages", parts.number):
                units = number_units(parts, model.unit_columns, of_pages, folder)
                pages = pages_to_learn_from(parts, units, of_pages, folder, "pages")
        if self.trust is not None:
            shown = {int(k) for batch in pages for k in np.unique(batch.position[batch.shown])}
            check_positions(self.em.fixed, sorted(shown), self.trust)
        fit = fit_model(model, units, pages, self.em, progress)
        write_click_model(fit, engine, result.folder, progress, csv=self.csv)
        groups, fitted = fit.n_groups if fit.std_errors else None, fit.fitted
        result.content[CLICK_MODEL] = ClickModelSection(model.name, fitted.passes, fitted.converged, groups, self.trust)
        result.headline = f"{model.name} is fitted to {plural(fit.units.number, 'documents')}"
        judge = f"posbias evaluate LOGS --models {','.join(dict.fromkeys((model.name, 'pbm', 'ubm')))} -o judged"
        result.next = result.next_if_refused = judge
        result.printed += _tables(fit)
        result.reasons += _reasons(fit)
        return data, FittedPages(as_read(fit, plan, result.folder))


@dataclass(frozen=True)
class FittedPages:
    """A click model that was fitted."""

    fit: ClickModelFit

    def weigh(
        self, data: Data, plan: StatisticsPlan, request: WeightRequest, engine: Engine, progress: Progress
    ) -> Weighed:
        """Weigh a log by the examination of each row given the clicks above it; see `posbias.io.jobs.fit.Fitted`."""
        del plan
        if isinstance(data, CountedLog):
            raise TypeError("the impressions of pages are weighed, not counts")
        log = weigh_rows(data.buckets, self.fit, request.options, engine, progress)
        check_unidentified(log.weights.summary, stop=request.stop)

        def documents(layout: LayoutOfCounts) -> tuple[PairsOfParts, Floats, RowsOfPairs, int]:
            pairs = weigh_documents(log, request.options, engine, progress, whole=not data.log.roles.weight)
            return pairs, *layout.by_document(pairs.documents), pairs.number

        weigh = partial(weighed_rows, options=request.options, factor=log.weights.factor)
        section = {"examination": "row", "model": self.fit.model.name}
        return Weighed(log.weights, engine.parts_of([part.scan() for part in log.parts]), weigh, documents, section)


def _tables(fit: FittedToLog) -> list[Printed]:
    """The parameters that all documents share."""
    shared = fit.parameters.filter(pl.col(VALUE).is_not_null())
    about: list[Printed] = [f"{fit.model.name}: {fit.model.about}"]
    if not shared.height:
        return about
    rows = shared.head(MOST_ROWS).to_dicts()
    columns = [Column("parameter", tuple(row["parameter"] for row in rows), label=True, text=True)]
    if shared[POSITION].is_not_null().any():
        columns.append(Column("position", tuple(str(row[POSITION]) for row in rows), label=True))
    columns.append(Column("value", tuple(f"{row[VALUE]:.4f}" for row in rows)))
    errors = ("-" if row[STD_ERROR] is None else f"{row[STD_ERROR]:.4f}" for row in rows)
    columns.append(Column("std. error", tuple(errors), folded="std.\nerror"))
    left = shared.height - MOST_ROWS
    more = f"and {plural(left, 'more')} in parameters.parquet" if left > 0 else ""
    whom = [population()] if shared[STD_ERROR].is_not_null().any() else []
    return [*about, PrintedTable(tuple(columns), more), *whom]


def _reasons(fit: FittedToLog) -> list[Reason]:
    """Whether the fit is finished, and what it can be used for."""
    reasons, passes = list[Reason](), fit.fitted.passes
    if not fit.fitted.converged:
        reasons.append(reason("not-converged.of-pages", {"passes": passes}))
    priors = "; ".join(
        f"prior of {name}: mean {prior.mean:.3f}, worth {prior.strength:.3g} impressions"
        for name, prior in fit.fitted.priors.items()
    )
    case = ".trust" if fit.model.name == "tpbm" else ".click-rate"
    case = "" if isinstance(fit.model, ExaminationModel) else case
    return [*reasons, reason(f"no-propensity-by-position{case}", {}, priors, model=fit.model.name)]
