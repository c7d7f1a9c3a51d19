"""Reports: read and validate results, and write an HTML page or a chart about them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from resource import RLIM_INFINITY, RLIMIT_AS, getpagesize, getrlimit
from typing import Any, Literal, TypeAlias

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core import errors
from posbias.core.errors import escape_unseen, mask_secrets, plural, printable
from posbias.core.evaluation.break_even import POWERS
from posbias.core.fit import plot_data
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, PROPENSITY, RELATIVE_RATE
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.core.standard_errors.contrasts import LEVEL
from posbias.io.fits.saved_fit import Number, StoredEstimate, StoredFit, fit_in, fits_of_values
from posbias.io.fits.verdicts import NAMED, pareto_clause
from posbias.io.places.locations import Location
from posbias.io.progress import Progress
from posbias.io.reports import charts, page
from posbias.io.reports.charts import Figure, Interval
from posbias.io.reports.page import Html, Section
from posbias.io.results.conclusions import CAUTION, GOOD, NOTE, STOP, ResultManifest
from posbias.io.results.manifest import json_text, open_stored
from posbias.io.results.outputs import check_file, write_file
from posbias.io.results.tables import ATTRACTIVENESS, FIT_FILES, PROPENSITIES, parquet_errors, read_table
from posbias.io.stores.metadata import Amount, Counted, Position, Segment

_FORMATS: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}
_ADDRESSES = 65 << 30  # bytes of addresses that V8, inside vl-convert, reserves; it aborts the process if it cannot


def check_drawing() -> None:
    """Check that vl-convert is installed and can start.

    Raises:
        EngineError: the limit of the process on addresses is too low.
        MissingExtraError: vl-convert is not installed.
    """
    if find_spec("vl_convert") is None:
        raise errors.MissingExtraError.of("a report", "vl-convert-python")
    most, used = getrlimit(RLIMIT_AS)[0], 0
    with suppress(OSError):  # systems without /proc
        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * getpagesize()
    if most != RLIM_INFINITY and most - used < _ADDRESSES:
        raise errors.EngineError(
            f"charts cannot be drawn: V8, which draws them, reserves {_ADDRESSES >> 30} GiB of addresses (not memory), "
            f"and this process has {max(most - used, 0) >> 30}. Lift its limit (ulimit -v unlimited); `posbias show` "
            "prints a result without charts."
        )


def make_report(places: Sequence[Location], target: Path, chart: str, progress: Progress, *, force: bool) -> str:
    """Write a page about results, or a chart of them; return a description of the file for the user.

    Args:
        places: of the results.
        target: the file; its ending selects a page (.html) or a chart (.svg, .png).
        chart: the name of the chart.
        progress: to report the stage of drawing.
        force: whether to replace an older report.

    Raises:
        EngineError: vl-convert cannot start.
        LogFormatError: a result is damaged.
        MissingExtraError: vl-convert is not installed.
        OutputExistsError: the file exists, and `force` is false.
        OutputError: the file cannot be written, or was not written by posbias.
        UsageError: the file has another ending, a result is named twice, or the results have no such chart.
    """
    form = _FORMATS.get(target.suffix.lower())
    if form is None:
        raise errors.UsageError(
            f"--output {target}: a report is a page or a picture. Name a file that ends in .html, .svg or .png, e.g. "
            "report.html."
        )
    check_drawing()
    repeated = [place for number, place in enumerate(places) if place in places[:number]]
    if repeated:
        raise errors.UsageError(f"{repeated[0]}: is named twice. Name each result once.")
    check_file(target, "report", places, force=force)
    with open_results(places) as results, progress.stage("drawing"):
        if form == "html":
            content = report_html(results).encode()
        else:
            content = charts.picture(figure_by_name(results, chart), report_title(results), form)
    write_file(target, content, "report", places, force=force)
    about = ": it opens in any browser, offline" if form == "html" else ""
    return f"{printable(str(target))}, {len(content) / 1e3:,.0f} kB{about}"


# --- stored results: validated manifests and tables ---

_METRICS = "metrics.parquet"
_FILES = (*FIT_FILES, f"{ATTRACTIVENESS}.parquet", _METRICS)


class ChangedQuery(msgspec.Struct, frozen=True):
    """A query whose clicks a ranking changes, with its old and new order of documents."""

    query: str
    pages: Number
    difference: Number
    before: tuple[str, ...]
    after: tuple[str, ...]


class Row(msgspec.Struct, frozen=True):
    """A row about a ranking, a click model, a ranker, a question or a day, with some of these fields."""

    # its subject
    name: str = ""
    ranking: str = ""
    other: str = ""
    model: str = ""
    question: str = ""
    unit: str = ""
    day: str | None = None
    # a difference of clicks per page, of a measure, or of log-likelihood from the best model
    difference: Number = None
    ci_low: Number = None
    ci_high: Number = None
    difference_std_error: Number = None
    of: Number = None  # the value that it is a difference from
    # a prediction of a ranking
    clicks_per_page: Number = None
    unsupported_share: Number = None
    pages_per_arm: Number = None
    changed_queries: tuple[ChangedQuery, ...] = ()
    # a predicted or evaluated ranking
    smallest_difference: Number = None  # in clicks per page, detected with a power of 80 %
    top_never_shown: Number = None  # share of its first documents
    # a verdict, and the multiples of the estimated position bias beyond which it changes (`break_even_reason`)
    verdict: str = ""
    turns_below: Number = None
    turns_above: Number = None
    # the answer of an interleaving experiment, or a click model on held-out clicks
    winner: str | None = None
    pages: Amount | None = None
    perplexity: Number = None


class ExperimentSection(msgspec.Struct, frozen=True):
    """An interleaving experiment: rankers, answers, and the cumulative difference by day, first minus second."""

    rankers: tuple[str, str]
    clicks_per_page: float  # credited to either ranker
    answers: tuple[Row, ...]
    running: tuple[Row, ...]


class EvaluationSection(msgspec.Struct, frozen=True):
    """The measure and the sample size of an evaluation."""

    cutoff: int
    pages: Amount
    effective_queries: Number


class ChosenLearner(msgspec.Struct, frozen=True):
    """Gains of a ranker by held-out clicks, by name of the baseline."""

    measure: str = ""
    against: dict[str, Row] = {}


class LearnerSection(msgspec.Struct, frozen=True):
    """How a ranker was trained."""

    chosen: ChosenLearner = ChosenLearner()


class DifferenceOfCells(msgspec.Struct, frozen=True):
    """A cell in two fits, or on a day and all other days: the ratio of its propensities, and the p-value of ratio 1.

    Columns of its context are ignored.
    """

    position: Position
    ratio: Number = None
    ratio_ci_low: Number = None
    ratio_ci_high: Number = None
    p_value_joint: Number = None
    previous_click: int | None = None
    day: str | None = None


class ComparisonSection(msgspec.Struct, frozen=True):
    """Differences of two results, or of days."""

    differences: tuple[DifferenceOfCells, ...] = ()


class ReportManifest(ResultManifest, msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a manifest that reports use."""

    counted: Counted | UnsetType = UNSET
    estimate: StoredEstimate | UnsetType = UNSET
    days: dict[str, str | int] = {}
    segments: tuple[Segment, ...] = ()
    totals: dict[str, Amount] = {}
    statistics: dict[str, Amount] = {}
    weights: dict[str, Number] = {}
    predictions: tuple[Row, ...] = ()
    rankings: tuple[Row, ...] = ()
    evaluation: EvaluationSection | UnsetType = UNSET
    verdicts: tuple[Row, ...] = ()
    models: tuple[Row, ...] = ()
    learner: LearnerSection = LearnerSection()
    experiment: ExperimentSection | UnsetType = UNSET
    comparison: ComparisonSection = ComparisonSection()


@dataclass(frozen=True)
class ReportedResult:
    """A result in a report."""

    name: str  # on the page
    described: ReportManifest
    manifest: str  # its JSON
    fit: StoredFit | None  # None without propensities
    values: tuple[Interval, ...]  # DCG of each evaluated ranking
    curves: plot_data.PlottedCurves | None = None  # of a fit


@contextmanager
def open_results(places: Sequence[Location]) -> Generator[list[ReportedResult]]:
    """Open results in order, for as long as the block runs; a result by value of a column is one result per value.

    Raises:
        LogFormatError: a result is damaged, or was replaced while it was read.
    """
    single: list[Location] = []
    for place in places:
        if isinstance(place, Path):
            with open_stored(place) as stored:
                single += fits_of_values(stored) or [place]
        else:
            single.append(place)
    # names: the shortest ends of the paths that are distinct
    parts = [str(place).rstrip("/").split("/") for place in single]
    ends = (["/".join(path[-length:]) for path in parts] for length in range(1, max(map(len, parts))))
    names = next((part for part in ends if len(set(part)) == len(part)), [str(place) for place in single])
    with ExitStack() as stack:
        results: list[ReportedResult] = []
        for place, name in zip(single, names, strict=True):
            stored = stack.enter_context(open_stored(place, _FILES))
            folder, described, fit, curves = stored.folder, stored.typed(ReportManifest), None, None
            if described.estimate is not UNSET:
                fit = fit_in(stored, str(folder))
                where = str(folder / f"{PROPENSITIES}.parquet")
                curves = plot_data.plotted_curves(fit.table, fit.plan.context, fit.plan.cell, where=where)
            values = _values_of_rankings(folder / _METRICS) if _METRICS in stored.files else ()
            text = json_text(stored.content)
            results.append(ReportedResult(mask_secrets(escape_unseen(name)), described, text, fit, values, curves))
        yield results


def _values_of_rankings(path: Path) -> tuple[Interval, ...]:
    """Read the DCG of each ranking with its interval from a table of metrics.

    Raises:
        LogFormatError: the table is damaged.
    """
    try:
        rows = read_table(path).filter(metric="dcg", estimator="snips")
        rows = rows.select(pl.col("ranking").cast(pl.String), pl.col("value", "ci_low", "ci_high").cast(pl.Float64))
    except pl.exceptions.PolarsError as error:
        raise errors.LogFormatError(f"{path}: is damaged: {error}. Run `posbias evaluate` again.") from error
    return tuple(Interval(*row) for row in rows.filter(pl.col("value").is_finite()).iter_rows())


# --- the page ---

MOST_IN_FULL = 6
"""Results with a part of their own, and curves in one chart; of more results the last ones."""

_ATTENTION = "How much attention each position gets"
_PAGE_KINDS = {
    "fit": _ATTENTION,
    "run": _ATTENTION,
    "collect": "Counts of a log",
    "weight": "Training files, weighted for position",
    "train": "A ranker trained on clicks",
    "score": "Scores of documents",
    "export": "A ranker for a search engine",
    "predict": "The clicks that new rankings would get",
    "evaluate": "Rankings judged by clicks",
    "interleave": "Which of two rankers wins",
    "compare": "What has changed",
    "explore": "What to show next",
    "simulate": "A simulated log",
}


def report_html(results: Sequence[ReportedResult]) -> str:
    """Return the page about one result, or about several side by side."""
    title = report_title(results)
    if len(results) == 1:
        described = results[0].described
        kind = _PAGE_KINDS.get(described.command, f"posbias {described.command}")
        kind = "Click models judged by clicks" if described.models else kind
        return page.page_html(kind, title, _sections(results[0]))
    rows = [_overview_row(result) for result in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    overview = [page.table(names, [[row.get(name, "-") for name in names] for row in rows])]
    if len(results) > MOST_IN_FULL:
        overview.insert(0, page.paragraph(f"Of {len(results):,} results, the last {MOST_IN_FULL} are shown in full."))
    drawn = _shared_charts(results)
    compared = _predictions_and_experiments(results)
    sections = [Section("All results", overview), *([Section("Pictures", drawn)] if drawn else [])]
    sections += [Section("What was predicted, and what came out", [compared])] if compared else []
    parts = [(result.name, _sections(result)) for result in results[-MOST_IN_FULL:]]
    return page.page_html("Results side by side", title, sections, parts)


def _predictions_and_experiments(results: Sequence[ReportedResult]) -> Html | None:
    """Return a table of predictions beside interleaving experiments; None if either is missing."""
    predicted = [
        (result.name, f"predicted: {row.ranking} against the log's own order", gain, "")
        for result in results
        for gain, row, _ in _predicted_gains(result)
    ]
    observed = list[tuple[str, str, Interval, str]]()
    for name, experiment in ((result.name, result.described.experiment) for result in results):
        if experiment is not UNSET and experiment.answers:
            answer, what = experiment.answers[0], "came out: {} against {}, interleaved".format(*experiment.rankers)
            gain = _relative_interval("", experiment.clicks_per_page or 1.0, answer)
            observed.append((name, what, gain, f"{answer.winner} wins" if answer.winner else "undecided"))
    if not predicted or not observed:
        return None
    rows = [
        (name, what, _signed(gain.value), _interval_text(gain).removeprefix("95 % interval "), verdict)
        for name, what, gain, verdict in (*predicted, *observed)
    ]
    return page.table(["result", "what", "of the clicks", "95 % interval", "verdict"], rows)


def figure_by_name(results: Sequence[ReportedResult], name: str) -> Figure:
    """Return the first chart of a name that a page about the results would have.

    Raises:
        UsageError: there is no such chart.
    """
    figures = _shared_charts(results) if len(results) > 1 else []
    figures += [figure for result in results[-MOST_IN_FULL:] for figure in _highlights(result)[1]]
    figure = next((figure for figure in figures if figure.name == name), None)
    if figure is None:
        known = ", ".join(dict.fromkeys(figure.name for figure in figures)) or "none"
        raise errors.UsageError(f"--chart {name}: these results have no such chart. Charts of them: {known}.")
    return figure


def report_title(results: Sequence[ReportedResult]) -> str:
    """Return the title of a page or a chart, from the inputs and their days: `web_search, 5 to 11 January 2026`."""
    if len(results) != 1:
        return f"{len(results):,} results"
    (result,) = results
    inputs = [PurePosixPath(name.rstrip("/")) for name in result.described.inputs]
    stems = [path.name.partition(".")[0] or path.name for path in inputs]
    folders = {path.parent.name for path in inputs}
    if len(stems) > 1 and len(folders) == 1 and result.described.command != "compare":
        stems = [name for name in folders if name] or stems
    joint = " against " if result.described.command == "compare" else " and "
    name = joint.join(stems) if len(stems) <= 2 else f"{stems[0]} and {len(stems) - 1:,} more"  # noqa: PLR2004
    days = _days(result)
    return ", ".join(filter(None, [escape_unseen(name) or result.name, days]))


def _days(result: ReportedResult) -> str:
    """Return the days of a log in words; empty if they are not known."""
    days = result.described.days
    known = [str(days[end]) for end in ("first", "last") if end in days]
    known = known or sorted({day for segment in result.described.segments for day in segment.days})
    if not known:
        return ""
    try:
        first, last = date.fromisoformat(known[0]), date.fromisoformat(known[-1])
    except ValueError:
        return escape_unseen(known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}")
    end = f"{last.day} {last:%B %Y}"
    if first == last:
        return end
    if first.year != last.year:
        return f"{first.day} {first:%B %Y} to {end}"
    return f"{first.day}{f' {first:%B}' if first.month != last.month else ''} to {end}"


# --- one result ---

_ORDER = (STOP, CAUTION, GOOD, NOTE)
_LONGEST_MANIFEST = 200_000  # characters
_MOST_RANKINGS = 3
"""Rankings whose queries are listed."""


def _sections(result: ReportedResult) -> list[Section]:
    described = result.described
    figures, drawn = _highlights(result)
    verdict = [page.banner(described.verdict, described.conclusion)] if described.verdict else []
    verdict += [page.key_figures(figures)] if figures else []
    weighed = sorted(described.reasons, key=lambda reason: _ORDER.index(reason.severity))
    reasons = [page.reason_list(weighed)] if weighed else []
    changed: list[Section] = []  # queries that rankings change most, with the old and the new order of documents
    for row in described.predictions[:_MOST_RANKINGS]:
        folds: list[Html] = []
        for number, query in enumerate(row.changed_queries):
            if query.difference is not None and query.pages is not None:
                about = f"{query.query}: {query.difference:+.2f} clicks per page, {plural(query.pages, 'pages')}"
                orders = page.orders(("shown most now", f"by {row.ranking}"), query.before, query.after)
                folds.append(page.fold(about, [orders], is_open=not number, paper="line" if number else "open"))
        changed.append(Section(f"Queries that {row.ranking} changes most", folds))
    sections = (
        Section("In short", verdict),
        Section(drawn[0].title if drawn else "", drawn),
        Section("What to do next", [] if described.next is None else [page.code(described.next)]),
        Section("For and against", reasons),
        *changed,
        Section("Details", _details(result, numbers_are_open=not drawn)),
    )
    return [section for section in sections if section.blocks]


def _details(result: ReportedResult, *, numbers_are_open: bool) -> list[Html]:
    """Return the printed tables, underrated documents, the origin of the result, and its manifest."""
    described, numbers = result.described, list[Html]()
    for entry in described.printed:
        if isinstance(entry, str):
            numbers.append(page.paragraph(entry))
        else:
            rows = list(zip(*(column.cells for column in entry.columns), strict=True))
            numbers.append(page.table([column.name for column in entry.columns], rows))
            numbers += [page.paragraph(entry.more)] if entry.more else []
    folds = [page.fold("The numbers", numbers, is_open=numbers_are_open, paper="open")] if numbers else []
    folds += [] if result.fit is None else _documents(result.fit.documents)
    facts: dict[str, object] = {"made by": f"posbias {described.command}", "from": ", ".join(described.inputs)}
    if described.counted is not UNSET:
        facts["click model"] = described.counted.model
    if described.estimate is not UNSET:
        estimate = described.estimate
        facts["method"] = estimate.method if estimate.shape is UNSET else f"{estimate.method}, shape {estimate.shape}"
        facts |= {} if estimate.cell_form is UNSET else {"form of cells": estimate.cell_form}
        facts["propensities"] = f"{estimate.cells_identified:,} of {estimate.cells:,} can be estimated"
        if estimate.errors_by is not UNSET:
            facts["errors allow for"] = f"what a {estimate.errors_by} shares ({estimate.clusters:,})"
    counts = described.totals or described.statistics
    facts |= {name: f"{counts[name]:,.0f}" for name in ("impressions", "clicks", "queries", "pairs") if name in counts}
    at_a_glance = page.table((), [(name, escape_unseen(str(fact))) for name, fact in facts.items()])
    folds.append(page.fold("How it was made", [at_a_glance, *map(page.paragraph, described.facts)]))
    text, manifest = result.manifest, list[Html]()
    if len(text) > _LONGEST_MANIFEST:
        manifest.append(page.paragraph(f"The first {_LONGEST_MANIFEST:,} of {len(text):,} characters."))
    manifest.append(page.code(text[:_LONGEST_MANIFEST]))
    return [*folds, page.fold("Everything, as in manifest.json", manifest)]


_NAMED_DOCUMENTS = 10


def _documents(path: Path) -> list[Html]:
    """Return documents whose click rates underrate them, from the table of attractiveness at `path`.

    Raises:
        LogFormatError: the table is damaged.
    """
    if not path.is_file():
        return []
    with parquet_errors(path):
        scanned = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = scanned.collect_schema().names()
        missing = [name for name in plot_data.COLUMNS if name not in names]
        if missing:
            raise errors.LogFormatError(f"{path}: has no column {missing[0]!r}. Run `posbias fit` again.")
        keys = [name for name in names if name not in plot_data.COLUMNS]
        documents, outside, underrated = plot_data.document_differences(scanned, keys, _NAMED_DOCUMENTS)
    if not documents:
        return []
    about = (
        f"Of {documents:,} documents with at least {plot_data.FEWEST_IMPRESSIONS} impressions, the click rates of "
        f"{outside / documents:.0%} mislead by more than chance. Attractiveness is how often a document is clicked "
        "once it is looked at."
    )
    columns = (*keys, "impressions", "clicks", "click rate", "attractiveness")
    rows = [
        (
            *(plot_data.short_label([row[key]]) for key in keys),
            *(f"{row[name]:,.0f}" for name in (IMPRESSIONS, CLICKS)),
            *(f"{row[name]:.0%}" for name in ("click_rate", "attractiveness")),
        )
        for row in underrated.iter_rows(named=True)
    ]
    blocks = [page.paragraph(about)]
    blocks += [page.table(columns, rows, "Clicked less than they attract: the surest ones")] if rows else []
    return [page.fold("Documents that click rates sell short", blocks)]


# --- highlights: key figures and charts, by kind of result ---

_KeyFigures: TypeAlias = list[tuple[str, ...]]
"""Tuples of a value, its label, and perhaps notes."""

_Highlights: TypeAlias = tuple[_KeyFigures, list[Figure]]


def _highlights(result: ReportedResult) -> _Highlights:
    """Return the key figures and charts of a result, by the first function of `_HIGHLIGHTS` that applies to it."""
    for function in _HIGHLIGHTS:
        if (highlights := function(result)) is not None:
            return highlights
    return [], []


def _fit_highlights(result: ReportedResult) -> _Highlights | None:
    fit, curves = result.fit, result.curves
    if fit is None or curves is None:
        return None
    cell = headline_cell(curves)
    contexts, across = escape_unseen(curves.by), escape_unseen(curves.across)
    reference = None if cell is None else f"{across} {cell['reference']}"
    if reference and fit.plan.cell:
        parts = [reference, f"{contexts} {curves.contexts[0]}"]
        reference = ", ".join(parts if across == POSITION else parts[::-1])
    if curves.grid:
        drawn = [charts.heat_map(curves, contexts, reference)]
    else:
        heat_maps = [charts.heat_map(curves, contexts)] if curves.browsing else []
        drawn = [charts.curve_figure(curves, contexts, reference), *heat_maps]
    if cell is None:
        return [], drawn
    position, share = cell[POSITION], cell[PROPENSITY]
    where = f" for {contexts} {cell[CONTEXT]}" if contexts else ""
    if curves.browsing:
        where += ", if nothing above was clicked"
    interval = "" if cell[LOW] is None else f"95 % interval {cell[LOW]:.0%} to {cell[HIGH]:.0%}"
    what = f"of the attention of {across} {cell['reference']} goes to {across} {position}{where}"
    figures: _KeyFigures = [(f"{share:.0%}", what, interval)]
    clicks, linking = curves.clicks, cell["linking_clicks"] or 0
    if linking and clicks:
        note = f"{linking:,.0f} of {clicks:,.0f}: clicks on what was shown at {across} {position} and elsewhere"
        figures.append((f"{linking / clicks:.0%}", "of the clicks are evidence for that", note))
    else:
        identified = fit.estimate.click_share_identified
        figures.append((f"{identified:.0%}", "of the clicks are where attention is known"))
    rate = cell[RELATIVE_RATE]
    if rate is not None:
        error, direction = abs(rate / share - 1), "low" if rate < share else "high"
        what = f"is what raw click rates would give {across} {position}"
        figures.append((f"{error:.0%} too {direction}", what, f"{rate:.0%} instead of {share:.0%}"))
    return figures, drawn


def headline_cell(curves: plot_data.PlottedCurves) -> dict[str, Any] | None:
    """Return the cell that summarises a fit: the last identified one up to position `NAMED`, else the first below.

    It has the position of the reference cell as `reference`. None without a reference or a second identified cell.
    """
    lines = curves.first.filter(pl.col(PROPENSITY).is_not_null()).sort(POSITION)
    references = lines.filter(pl.col(PROPENSITY) == 1)[POSITION]
    if not len(references):
        return None
    compared = lines.filter(pl.col(POSITION) != references[0])
    if not compared.height:
        return None
    above = compared.filter(pl.col(POSITION) <= NAMED)
    cell = above.row(-1, named=True) if above.height else compared.row(0, named=True)
    return {**cell, "reference": references[0]}


def _relative_interval(label: str, base: float, row: Row) -> Interval:
    """Return the difference of a row with its interval, divided by `base`."""
    low, high = (None if end is None else end / base for end in (row.ci_low, row.ci_high))
    return Interval(label, (row.difference or 0.0) / base, low, high)


def _signed(value: float, form: str = "+.1%") -> str:
    """Format with a sign; zero has none."""
    text = f"{value:{form}}"
    return text if text.strip("+-0.%") else text.lstrip("+-")


def _interval_text(interval: Interval, form: str = "+.1%") -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"95 % interval {_signed(interval.low, form)} to {_signed(interval.high, form)}"


def _robustness(result: ReportedResult, ranking: str) -> _KeyFigures:
    """Return the range of position bias in which the verdict on a ranking holds; empty for an unclear verdict."""
    for verdict in result.described.verdicts:
        if ranking in (verdict.ranking, verdict.other) and verdict.verdict in ("better", "worse"):
            low, high = verdict.turns_below or 0.0, verdict.turns_above or max(POWERS)
            pair = (verdict.ranking, verdict.other)
            both = pair if verdict.verdict == "better" else pair[::-1]
            what = f"the estimated position bias: so far {' stays ahead of '.join(both)}"
            return [(f"{low:.2g} to {high:.2g} times", what)]
    return []


def _predicted_gains(result: ReportedResult) -> list[tuple[Interval, Row, float]]:
    """Return, for each ranking, its gain relative to the observed clicks per page, its row, and these clicks."""
    rows = [(row, (row.clicks_per_page or 0.0) - (row.difference or 0.0)) for row in result.described.predictions]
    return [(_relative_interval(row.ranking, observed, row), row, observed) for row, observed in rows if observed > 0]


def _prediction_highlights(result: ReportedResult) -> _Highlights | None:
    gains = _predicted_gains(result)
    if not gains:
        return None
    gain, row, observed = max(gains, key=lambda triple: triple[0].value)
    figures: _KeyFigures = [(_signed(gain.value), f"clicks per page with {gain.label}", _interval_text(gain))]
    if row.unsupported_share is not None:
        what = f"of what {gain.label} shows was never shown for its query"
        figures.append((f"{row.unsupported_share:.1%}", what, "its worth is not known from clicks"))
    smallest = {entry.name: entry.smallest_difference for entry in result.described.rankings}.get(row.ranking)
    if (gain.low or 0.0) * (gain.high or 0.0) > 0 and row.pages_per_arm is not None:
        figures.append((f"{row.pages_per_arm:,.0f}", "pages per arm, for an A/B test to confirm it"))
    elif smallest is not None:
        what = "is the smallest difference that this log can tell"
        figures.append((f"{smallest / observed:.1%}", what, "in four of five cases"))
    figures += _robustness(result, row.ranking)
    about = "Difference from the log's own order."
    return figures, [charts.interval_figure([interval for interval, _, _ in gains], "Clicks per page", about)]


def _experiment_highlights(result: ReportedResult) -> _Highlights | None:
    experiment = result.described.experiment
    if experiment is UNSET or not experiment.answers:
        return None
    first = experiment.answers[0]
    one, other = experiment.rankers
    interval = Interval("", first.difference or 0.0, first.ci_low, first.ci_high)
    figures: _KeyFigures = [
        (first.winner or "undecided", "wins on this traffic" if first.winner else f"between {one} and {other}", ""),
        (
            _signed(interval.value, "+.4f"),
            f"{first.unit} a page, {one} minus {other}",
            _interval_text(interval, "+.4f"),
        ),
        (f"{first.pages or 0:,.0f}", "pages, and looks as often as you like"),
    ]
    days = [(row.day, row.difference, row.ci_low, row.ci_high) for row in experiment.running if row.day is not None]
    schema = {"day": pl.String, "difference": pl.Float64, LOW: pl.Float64, HIGH: pl.Float64}
    frame = pl.DataFrame(days, schema, orient="row")
    drawn = [charts.running_difference(frame, f"{one} minus {other}")] if days else []
    gains = [
        Interval(row.question, row.difference, row.ci_low, row.ci_high)
        for row in experiment.answers
        if row.difference is not None and row.ci_low is not None
    ]
    about = f"{one} minus {other}, a page."
    return figures, [*drawn, *([charts.interval_figure(gains, "Answers", about, form="+.3f")] if gains else [])]


def _evaluation_highlights(result: ReportedResult) -> _Highlights | None:
    evaluation, values = result.described.evaluation, result.values
    if evaluation is UNSET or not values:
        return None
    measure = f"DCG@{evaluation.cutoff}"
    best = max(values, key=lambda value: value.value)
    number = evaluation.effective_queries
    worth = "" if number is None else f"worth {number:,.0f} equally frequent queries"
    figures: _KeyFigures = [
        (f"{best.value:.3f}", f"is the {measure} of {best.label}, the highest", _interval_text(best, ".3f")),
        (f"{evaluation.pages:,.0f}", "pages judge", worth),
    ]
    never_shown = [(entry.top_never_shown or 0.0, entry.name) for entry in result.described.rankings]
    share, name = max(never_shown, default=(0.0, ""))
    if share:
        what = f"of the first {evaluation.cutoff} of {name} was never shown for its query"
        figures.append((f"{share:.1%}", what, "its worth is not known from clicks"))
    figures += _robustness(result, best.label)
    about = f"{measure} by clicks corrected for position: more is better."
    return figures, [charts.interval_figure(values, "What each ranking is worth", about, form=".3f", zero=False)]


def _model_highlights(result: ReportedResult) -> _Highlights | None:
    models = [model for model in result.described.models if model.difference is not None]
    if not models:
        return None
    best, *others = sorted(models, key=lambda model: -(model.difference or 0.0))
    perplexity = f"perplexity {best.perplexity:.4f}" if best.perplexity else ""
    figures: _KeyFigures = [(best.model, "predicts held-out clicks best", perplexity)]
    if others:
        what = f"is how far {others[0].model}, the next one, falls behind"
        figures.append((f"{-(others[0].difference or 0.0):.4f}", what, "log-likelihood per position"))
    rows = [(each.model, each.difference or 0.0, 1.96 * (each.difference_std_error or 0.0)) for each in models]
    intervals = [Interval(name, value, value - width, value + width) for name, value, width in rows]
    about = "Log-likelihood per position, relative to the best: more is better."
    return figures, [charts.interval_figure(intervals, "How well clicks are predicted", about, form="+.3f")]


_AGAINST = {"naive": "training on raw clicks"}


def _training_highlights(result: ReportedResult) -> _Highlights | None:
    chosen = result.described.learner.chosen
    gains = [
        _relative_interval(_AGAINST.get(name, f"the {name}"), gain.of, gain)
        for name, gain in chosen.against.items()
        if gain.of and gain.difference is not None
    ]
    if not gains:
        return None
    figures: _KeyFigures = [(_signed(gain.value), f"against {gain.label}", _interval_text(gain)) for gain in gains]
    about = f"Difference in {chosen.measure}, by clicks held out."
    return figures, [charts.interval_figure(gains, "What the ranker gains", about, form="+.1%")]


_MOST_CELLS = 40


def _comparison_highlights(result: ReportedResult) -> _Highlights | None:
    changes, significant = list[Interval](), 0
    for cell in result.described.comparison.differences:
        ratio, low, high = cell.ratio, cell.ratio_ci_low, cell.ratio_ci_high
        if ratio is not None and low is not None and high is not None and low < high:
            click = f", last click {cell.previous_click}" if cell.previous_click else ""
            label = f"{'' if cell.day is None else f'{cell.day}, '}position {cell.position}{click}"
            changes.append(Interval(label, ratio - 1, low - 1, high - 1))
            significant += cell.p_value_joint is not None and cell.p_value_joint < LEVEL
    if not changes:
        return None
    largest = max(changes, key=lambda change: abs(change.value))
    most, where = max((max(abs(change.low or 0), abs(change.high or 0)), change.label) for change in changes)
    figures: _KeyFigures = [
        (_signed(largest.value, "+.0%"), f"is the largest change, at {largest.label}", _interval_text(largest, "+.0%")),
        (f"{significant:,} of {len(changes):,}", "changes are more than chance"),
        (f"{most:.0%}", "is the largest change that cannot be excluded", f"at {where}"),
    ]
    about = "Relative change of the propensity."
    return figures, [charts.interval_figure(changes[:_MOST_CELLS], "Change of attention", about)]


_MOST_DAYS = 400


def _count_highlights(result: ReportedResult) -> _Highlights | None:
    described = result.described
    if described.weights:
        weights = described.weights
        size, weighted = weights.get("effective_sample_size"), weights.get("clicks_weighted") or 0.0
        figures: _KeyFigures = [(f"{weighted:,.0f}", "clicks are weighted for position")]
        if size is not None:
            note = pareto_clause(weights.get("pareto_k"), weights.get("pareto_k_at_most")).removeprefix("; ")
            figures.append((f"{size:,.0f}", "clicks of equal weight would say as much", note))
        share = (weights.get("clicks_clipped") or 0.0) / weighted if weighted else 0.0
        cut = "of them have a weight that was cut", "to limit the noise of large weights"
        return [*figures, (f"{share:.1%}", *cut)], []
    counts = described.statistics
    if not counts:
        return None
    figures: _KeyFigures = [(f"{counts[name]:,.0f}", name) for name in (IMPRESSIONS, CLICKS) if name in counts]
    rows = [
        (counting.days[0], float(counting.totals[IMPRESSIONS]), float(counting.totals.get(CLICKS, 0)))
        for segment in described.segments
        for counting in segment.countings
        if len(counting.days) == 1 and counting.totals.get(IMPRESSIONS, 0) > 0
    ]
    days = pl.DataFrame(rows, {"day": pl.String, IMPRESSIONS: pl.Float64, CLICKS: pl.Float64}, orient="row")
    is_day = pl.col("day").str.to_date("%Y-%m-%d", strict=False).is_not_null()
    days = days.filter(is_day).group_by("day").sum().sort("day")
    if days.height < 2:  # noqa: PLR2004 - one day is no course
        return figures, []
    figures.append((f"{days.height:,}", "days"))
    note = f"The last {_MOST_DAYS} of {days.height:,} days are drawn." if days.height > _MOST_DAYS else ""
    return figures, [charts.click_rate_by_day(days.tail(_MOST_DAYS), note)]


_HIGHLIGHTS: tuple[Callable[[ReportedResult], _Highlights | None], ...] = (
    *(_fit_highlights, _prediction_highlights, _experiment_highlights, _evaluation_highlights),
    *(_model_highlights, _training_highlights, _comparison_highlights, _count_highlights),
)

# --- several results side by side: days, logs or methods ---

_COURSE_POSITIONS = (2, 3, 5, 10, 20)
_MOST_RESULTS, _MIN_COURSE = 366, 3  # results in a chart over results


def _overview_row(result: ReportedResult) -> dict[str, str]:
    """Return the entries of a result in the overview, by column."""
    described = result.described
    row = {"result": result.name} | ({"verdict": described.verdict} if described.verdict else {})
    cell = None if result.curves is None else headline_cell(result.curves)
    if cell is not None:
        interval = "" if cell[LOW] is None else f" ({cell[LOW]:.0%} to {cell[HIGH]:.0%})"
        row[f"attention of position {cell[POSITION]}"] = f"{cell[PROPENSITY]:.0%}{interval}"
    counts = described.totals or described.statistics
    row |= {name: f"{counts[name]:,.0f}" for name in (IMPRESSIONS, CLICKS) if name in counts}
    days = _days(result)
    return row | ({"days": days} if days else {})


def _shared_charts(results: Sequence[ReportedResult]) -> list[Figure]:
    """Return charts of several results: their curves, and propensities of selected positions over results."""
    fits = [(result.name, result.curves) for result in results if result.curves is not None]
    if len(fits) <= 1:
        return []

    def omission(most: int) -> str:
        return f"Of {len(fits):,} results, the last {most} are drawn." if len(fits) > most else ""

    last = fits[-MOST_IN_FULL:]
    contexts = "; ".join(f"{name}: {curves.contexts[0]}" for name, curves in last if curves.by)
    note = f"Of each, the most frequent context: {contexts}." if contexts else ""
    lines = pl.concat([curves.first.with_columns(line=pl.lit(name)) for name, curves in last], how="diagonal")
    drawn = [charts.curves_of_results(lines, " ".join(filter(None, [omission(MOST_IN_FULL), note])))]
    last = fits[-_MOST_RESULTS:]
    rows = pl.concat(
        curves.first.select(pl.lit(name).alias("result"), POSITION, PROPENSITY, LOW, HIGH) for name, curves in last
    )
    rows = rows.filter(pl.col(POSITION).is_in(_COURSE_POSITIONS) & pl.col(PROPENSITY).is_not_null())
    if len(fits) >= _MIN_COURSE and rows.height:
        drawn.append(charts.course(rows, [name for name, _ in last], omission(_MOST_RESULTS)))
    return drawn
