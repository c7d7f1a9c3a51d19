"""What stands on the page of results: the conclusion first, then what it rests on."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import PurePosixPath
from typing import Any

import polars as pl
from msgspec import UNSET

from posbias.core.errors import LogFormatError, UsageError, escaped, plural
from posbias.core.fit.plot_data import (
    COLUMNS,
    CONTEXT,
    FEWEST_IMPRESSIONS,
    HIGH,
    LOW,
    PROPENSITY,
    RELATIVE_RATE,
    document_differences,
    label_of,
)
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.core.standard_errors.contrasts import LEVEL
from posbias.io.fits.verdicts import NAMED
from posbias.io.reports import charts
from posbias.io.reports.charts import Figure
from posbias.io.reports.page import Banner, Block, Code, Fold, KeyFigure, Orders, Page, Section, Table
from posbias.io.reports.reported import (
    DaysSection,
    GainSection,
    Interval,
    PredictedRanking,
    ReportedFit,
    ReportedResult,
)
from posbias.io.results.conclusions import CAUTION, GOOD, NOTE, STOP
from posbias.io.results.tables import reading_parquet

MOST_IN_FULL = 6
"""Results that have a part of their own, and curves in one chart; of more, the last ones."""

_LONGEST_MANIFEST = 200_000  # characters
_ATTENTION = "How much attention each position gets"
_KINDS = {
    "fit": _ATTENTION,
    "run": _ATTENTION,
    "collect": "Counts of a log",
    "weight": "Training files, weighted for position",
    "train": "A ranker trained on clicks",
    "score": "Scores of documents",
    "predict": "The clicks that new rankings would get",
    "evaluate": "Rankings judged by clicks",
    "compare": "What has changed",
    "explore": "What to show next",
    "simulate": "A simulated log",
}


def page_about(results: Sequence[ReportedResult]) -> Page:
    """The page about one result, or about several side by side."""
    title = title_about(results)
    if len(results) == 1:
        described = results[0].described
        kind = _KINDS.get(described.command, f"posbias {described.command}")
        return Page("Click models judged by clicks" if described.models else kind, title, _sections(results[0]))
    parts = tuple((result.name, _sections(result)) for result in results[-MOST_IN_FULL:])
    return Page("Results side by side", title, tuple(_side_by_side(results)), parts)


def title_about(results: Sequence[ReportedResult]) -> str:
    """The title of a page or a chart."""
    return title_of(results[0]) if len(results) == 1 else f"{len(results):,} results"


def figure_named(results: Sequence[ReportedResult], name: str) -> Figure:
    """The first chart of a kind on the page about results; nothing else of the page is made.

    Raises:
        UsageError: the page has none.
    """
    drawn = _pictures(results) if len(results) > 1 else []
    drawn += [block for result in results[-MOST_IN_FULL:] for block in _highlights(result)[1]]
    figures = [block for block in drawn if isinstance(block, Figure)]
    figure = next((figure for figure in figures if figure.name == name), None)
    if figure is None:
        known = ", ".join(dict.fromkeys(figure.name for figure in figures)) or "none"
        raise UsageError(f"--chart {name}: these results have no such chart. Charts of them: {known}.")
    return figure


def title_of(result: ReportedResult) -> str:
    """The name of what was read, and its days: `web_search, 5 to 11 January 2026`."""
    inputs = [PurePosixPath(name.rstrip("/")) for name in result.described.inputs]
    stems = [path.name.partition(".")[0] or path.name for path in inputs]
    folders = {path.parent.name for path in inputs}
    if len(stems) > 1 and len(folders) == 1 and result.described.command != "compare":
        stems = [name for name in folders if name] or stems
    joint = " against " if result.described.command == "compare" else " and "
    name = joint.join(stems) if len(stems) <= 2 else f"{stems[0]} and {len(stems) - 1:,} more"  # noqa: PLR2004
    days = _days(result)
    return ", ".join(filter(None, [escaped(name) or result.name, days]))


def _days(result: ReportedResult) -> str:
    """The days of a log in words; nothing where they are not known."""
    days = result.described.days
    if days is UNSET:
        of_segments = sorted({day for segment in result.described.segments for day in segment.days})
        if not of_segments:
            return ""
        days = DaysSection(of_segments[0], of_segments[-1])
    try:
        first, last = date.fromisoformat(days.first), date.fromisoformat(days.last)
    except ValueError:
        return escaped(days.first if days.first == days.last else f"{days.first} to {days.last}")
    end = f"{last.day} {last:%B %Y}"
    if first == last:
        return end
    if first.year != last.year:
        return f"{first.day} {first:%B %Y} to {end}"
    return f"{first.day}{f' {first:%B}' if first.month != last.month else ''} to {end}"


# --- one result ---

_ORDER = (STOP, CAUTION, GOOD, NOTE)


def _highlights(result: ReportedResult) -> "_Highlights":
    return next(filter(None, (of_kind(result) for of_kind in _OF_KINDS)), ((), ()))


def _sections(result: ReportedResult) -> tuple[Section, ...]:
    described, fit = result.described, result.fit
    figures, drawn = _highlights(result)
    verdict: list[Block] = []
    if described.verdict:
        verdict.append(Banner(described.verdict, described.conclusion))
    if figures:
        verdict.append(figures)
    following: list[Block] = [] if described.next is None else [Code(described.next)]
    weighed = tuple(sorted(described.reasons, key=lambda reason: _ORDER.index(reason.severity)))
    reasons: list[Block] = [weighed] if weighed else []
    numbers: list[Block] = []
    for entry in described.printed:
        if isinstance(entry, str):
            numbers.append(entry)
        else:
            rows = tuple(zip(*(column.cells for column in entry.columns), strict=True))
            numbers.append(Table("", tuple(column.name for column in entry.columns), rows))
            numbers += [entry.more] if entry.more else []
    folds = [Fold("The numbers", tuple(numbers), is_open=not drawn, paper="open")] if numbers else []
    folds += [] if fit is None else _documents(fit)
    text = result.manifest
    cut = [f"The first {_LONGEST_MANIFEST:,} of {len(text):,} characters."] if len(text) > _LONGEST_MANIFEST else []
    folds.append(Fold("How it was made", (_facts(result), *described.facts)))
    folds.append(Fold("Everything, as in manifest.json", (*cut, Code(text[:_LONGEST_MANIFEST]))))
    sections = (
        Section("In short", tuple(verdict)),
        Section(drawn[0].title if drawn else "", drawn),
        Section("What to do next", tuple(following)),
        Section("For and against", tuple(reasons)),
        *_changed_queries(result),
        Section("Details", tuple(folds)),
    )
    return tuple(section for section in sections if section.blocks)


def _facts(result: ReportedResult) -> Table:
    """How a result was made, at a glance."""
    described = result.described
    facts: dict[str, object] = {"made by": f"posbias {described.command}", "from": ", ".join(described.inputs)}
    if described.counted is not UNSET:
        facts["click model"] = described.counted.model
    if described.estimate is not UNSET:
        estimate = described.estimate
        facts["method"] = estimate.method if estimate.shape is UNSET else f"{estimate.method}, shape {estimate.shape}"
        facts["propensities"] = f"{estimate.cells_identified:,} of {estimate.cells:,} can be estimated"
        if estimate.errors_by is not UNSET:
            facts["errors allow for"] = f"what a {estimate.errors_by} shares ({estimate.clusters:,})"
    counts = described.totals or described.statistics
    facts |= {name: f"{counts[name]:,.0f}" for name in ("impressions", "clicks", "queries", "pairs") if name in counts}
    return Table("", (), tuple((name, escaped(str(fact))) for name, fact in facts.items()))


# --- propensities ---

_Highlights = tuple[tuple[KeyFigure, ...], tuple[Figure, ...]]
"""The numbers that a reader should take away, and the charts."""


def _of_fit(result: ReportedResult) -> _Highlights | None:
    if result.fit is None:
        return None
    curves = result.fit.curves
    cell = named_cell(result.fit)
    contexts = escaped(", ".join(result.fit.fit.plan.context))
    drawn = [charts.curve(curves, contexts, None if cell is None else cell["reference"])]
    drawn += [charts.browsing(curves, contexts)] if curves.browsing else []
    if cell is None:
        return (), tuple(drawn)
    position, share = cell[POSITION], cell[PROPENSITY]
    where = f" for {contexts} {cell[CONTEXT]}" if contexts else ""
    if curves.browsing:
        where += ", if nothing above was clicked"
    below = cell["reference"]
    interval = "" if cell[LOW] is None else f"95 % interval {cell[LOW]:.0%} to {cell[HIGH]:.0%}"
    figures = [
        KeyFigure(f"{share:.0%}", f"of the attention of position {below} goes to position {position}{where}", interval)
    ]
    clicks, linking = curves.clicks, cell["linking_clicks"] or 0
    if linking and clicks:
        note = f"{linking:,.0f} of {clicks:,.0f}: clicks on what was shown at position {position} and elsewhere"
        figures.append(KeyFigure(f"{linking / clicks:.0%}", "of the clicks are evidence for that", note))
    else:
        known = result.fit.fit.estimate.click_share_identified
        figures.append(KeyFigure(f"{known:.0%}", "of the clicks are where attention is known", ""))
    rate = cell[RELATIVE_RATE]
    if rate is not None:
        error, direction = abs(rate / share - 1), "low" if rate < share else "high"
        what = f"is what raw click rates would give position {position}"
        figures.append(KeyFigure(f"{error:.0%} too {direction}", what, f"{rate:.0%} instead of {share:.0%}"))
    return tuple(figures), tuple(drawn)


def named_cell(fit: ReportedFit) -> dict[str, Any] | None:
    """The cell that stands for a fit, with its `reference`: position 5, or the nearest before it that is known."""
    lines = fit.curves.lines.filter((pl.col(CONTEXT) == fit.curves.contexts[0]) & pl.col(PROPENSITY).is_not_null())
    lines, references = lines.sort(POSITION), lines.filter(pl.col(PROPENSITY) == 1)[POSITION]
    if not len(references):
        return None
    compared = lines.filter(pl.col(POSITION) != references[0])
    if not compared.height:
        return None
    above = compared.filter(pl.col(POSITION) <= NAMED)
    cell = above.row(-1, named=True) if above.height else compared.row(0, named=True)
    return {**cell, "reference": references[0]}


_NAMED_DOCUMENTS = 10


def _documents(fit: ReportedFit) -> list[Fold]:
    """Documents that their click rates sell short.

    Raises:
        LogFormatError: the table of attractiveness is damaged.
    """
    path = fit.fit.documents
    if not path.is_file():
        return []
    with reading_parquet(path):
        rows = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = rows.collect_schema().names()
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise LogFormatError(f"{path}: has no column {missing[0]!r}. Run `posbias fit` again.")
        keys = [name for name in names if name not in COLUMNS]
        documents, outside, underrated = document_differences(rows, keys, _NAMED_DOCUMENTS)
    if not documents:
        return []
    about = (
        f"Of {documents:,} documents with at least {FEWEST_IMPRESSIONS} impressions, the click rates of "
        f"{outside / documents:.0%} mislead by more than chance. Attractiveness is how often a document is clicked "
        "once it is looked at."
    )
    columns = (*keys, "impressions", "clicks", "click rate", "attractiveness")
    table = [
        (
            *(label_of([row[key]]) for key in keys),
            *(f"{row[name]:,.0f}" for name in (IMPRESSIONS, CLICKS)),
            *(f"{row[name]:.0%}" for name in ("click_rate", "attractiveness")),
        )
        for row in underrated.iter_rows(named=True)
    ]
    tables = [Table("Clicked less than they attract: the surest ones", columns, tuple(table))] if table else []
    return [Fold("Documents that click rates sell short", (about, *tables))]


# --- rankings, rankers, click models, comparisons, counts ---


def _relative(label: str, of: float, row: PredictedRanking | GainSection) -> Interval:
    """A difference as a share of what it is a difference from."""
    low, high = (None if end is None else end / of for end in (row.ci_low, row.ci_high))
    return Interval(label, (row.difference or 0.0) / of, low, high)


def _signed(value: float, form: str = "+.1%") -> str:
    """A difference with its sign, which nothing has none of."""
    text = f"{value:{form}}"
    return text if text.strip("+-0.%") else text.lstrip("+-")


def _from_to(interval: Interval, form: str = "+.1%") -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"95 % interval {_signed(interval.low, form)} to {_signed(interval.high, form)}"


def _of_prediction(result: ReportedResult) -> _Highlights | None:
    gains = [
        (_relative(row.ranking, observed, row), row, observed)
        for row in result.described.predictions
        for observed in [(row.clicks_per_page or 0.0) - (row.difference or 0.0)]
        if observed > 0
    ]
    if not gains:
        return None
    gain, row, observed = max(gains, key=lambda entry: entry[0].value)
    figures = [KeyFigure(_signed(gain.value), f"clicks per page with {gain.label}", _from_to(gain))]
    if row.unsupported_share is not None:
        what = f"of what {gain.label} shows was never shown for its query"
        figures.append(KeyFigure(f"{row.unsupported_share:.1%}", what, "its worth is not known from clicks"))
    smallest = next(
        (entry.smallest_difference for entry in result.described.rankings if entry.name == row.ranking), None
    )
    if (gain.low or 0.0) * (gain.high or 0.0) > 0 and row.pages_per_arm is not None:
        figures.append(KeyFigure(f"{row.pages_per_arm:,.0f}", "pages per arm, for an A/B test to confirm it", ""))
    elif smallest is not None:
        what = "is the smallest difference that this log can tell"
        figures.append(KeyFigure(f"{smallest / observed:.1%}", what, "in four of five cases"))
    intervals = [entry[0] for entry in gains]
    chart = charts.differences(intervals, "Clicks per page", "Difference from the log's own order.")
    return tuple(figures), (chart,)


def _of_evaluation(result: ReportedResult) -> _Highlights | None:
    evaluation, values = result.described.evaluation, result.values
    if evaluation is UNSET or not values:
        return None
    measure = f"DCG@{evaluation.cutoff}"
    best = max(values, key=lambda value: value.value)
    figures = [KeyFigure(f"{best.value:.3f}", f"is the {measure} of {best.label}, the highest", _from_to(best, ".3f"))]
    worth = (
        ""
        if evaluation.effective_queries is None
        else f"worth {evaluation.effective_queries:,.0f} equally frequent queries"
    )
    figures.append(KeyFigure(f"{evaluation.pages:,.0f}", "pages judge", worth))
    shares = [
        (ranking.top_never_shown, ranking.name) for ranking in result.described.rankings if ranking.top_never_shown
    ]
    if shares:
        share, name = max(shares)
        what = f"of the first {evaluation.cutoff} of {name} was never shown for its query"
        figures.append(KeyFigure(f"{share:.1%}", what, "its worth is not known from clicks"))
    about = f"{measure} by clicks corrected for position: more is better."
    return tuple(figures), (charts.differences(values, "What each ranking is worth", about, form=".3f", zero=False),)


def _of_models(result: ReportedResult) -> _Highlights | None:
    models = [model for model in result.described.models if model.difference is not None]
    if not models:
        return None
    best, *others = sorted(models, key=lambda model: -(model.difference or 0.0))
    figures = [
        KeyFigure(
            best.model, "predicts held-out clicks best", f"perplexity {best.perplexity:.4f}" if best.perplexity else ""
        )
    ]
    if others:
        behind = -(others[0].difference or 0.0)
        figures.append(
            KeyFigure(
                f"{behind:.4f}",
                f"is how far {others[0].model}, the next one, falls behind",
                "log-likelihood per position",
            )
        )
    intervals = [
        Interval(model.model, value := model.difference or 0.0, value - 1.96 * error, value + 1.96 * error)
        for model in models
        for error in [model.difference_std_error or 0.0]
    ]
    about = "Log-likelihood per position, relative to the best: more is better."
    return tuple(figures), (charts.differences(intervals, "How well clicks are predicted", about, form="+.3f"),)


_AGAINST = {"naive": "training on raw clicks"}


def _of_training(result: ReportedResult) -> _Highlights | None:
    learner = result.described.learner
    if learner is UNSET or learner.chosen is UNSET:
        return None
    gains = [
        _relative(_AGAINST.get(name, f"the {name}"), gain.of, gain)
        for name, gain in learner.chosen.against.items()
        if gain.of and gain.difference is not None
    ]
    if not gains:
        return None
    figures = [KeyFigure(_signed(gain.value), f"against {gain.label}", _from_to(gain)) for gain in gains]
    about = f"Difference in {learner.chosen.measure}, by clicks held out."
    return tuple(figures), (charts.differences(gains, "What the ranker gains", about, form="+.1%"),)


_MOST_CELLS = 40


def _of_comparison(result: ReportedResult) -> _Highlights | None:
    comparison = result.described.comparison
    if comparison is UNSET:
        return None
    changes: list[Interval] = []
    real = 0
    for cell in comparison.differences:
        ratio, low, high = cell.ratio, cell.ratio_ci_low, cell.ratio_ci_high
        if ratio is not None and low is not None and high is not None and low < high:
            click = f", last click {cell.previous_click}" if cell.previous_click else ""
            label = f"{'' if cell.day is None else f'{cell.day}, '}position {cell.position}{click}"
            changes.append(Interval(label, ratio - 1, low - 1, high - 1))
            real += cell.p_value_joint is not None and cell.p_value_joint < LEVEL
    if not changes:
        return None
    largest = max(changes, key=lambda change: abs(change.value))
    most, where = max((max(abs(change.low or 0), abs(change.high or 0)), change.label) for change in changes)
    figures = (
        KeyFigure(
            _signed(largest.value, "+.0%"), f"is the largest change, at {largest.label}", _from_to(largest, "+.0%")
        ),
        KeyFigure(f"{real:,} of {len(changes):,}", "changes are more than chance", ""),
        KeyFigure(f"{most:.0%}", "is the largest change that cannot be excluded", f"at {where}"),
    )
    about = "Relative change of the propensity."
    return figures, (charts.differences(changes[:_MOST_CELLS], "Change of attention", about),)


_MOST_DAYS = 400


def _of_counts(result: ReportedResult) -> _Highlights | None:
    described = result.described
    if described.weights is not UNSET:
        weights = described.weights
        size = weights.effective_sample_size
        share = weights.clicks_clipped / weights.clicks_weighted if weights.clicks_weighted else 0.0
        figures = [KeyFigure(f"{weights.clicks_weighted:,.0f}", "clicks are weighted for position", "")]
        figures += [] if size is None else [KeyFigure(f"{size:,.0f}", "clicks of equal weight would say as much", "")]
        figures.append(
            KeyFigure(f"{share:.1%}", "of them have a weight that was cut", "to limit the noise of large weights")
        )
        return tuple(figures), ()
    counts = described.statistics
    if not counts:
        return None
    figures = [KeyFigure(f"{counts[name]:,.0f}", name, "") for name in (IMPRESSIONS, CLICKS) if name in counts]
    rows = [
        (of.days[0], float(of.totals[IMPRESSIONS]), float(of.totals.get(CLICKS, 0)))
        for segment in described.segments
        for of in segment.countings
        if len(of.days) == 1 and of.totals.get(IMPRESSIONS, 0) > 0
    ]
    days = pl.DataFrame(rows, {"day": pl.String, IMPRESSIONS: pl.Float64, CLICKS: pl.Float64}, orient="row")
    days = days.group_by("day").agg(pl.all().sum()).sort("day")
    days = days.filter(pl.col("day").str.to_date("%Y-%m-%d", strict=False).is_not_null())
    if days.height < 2:  # noqa: PLR2004 - one day is no course
        return tuple(figures), ()
    figures.append(KeyFigure(f"{days.height:,}", "days", ""))
    note = f"The last {_MOST_DAYS} of {days.height:,} days are drawn." if days.height > _MOST_DAYS else ""
    return tuple(figures), (charts.click_rate_by_day(days.tail(_MOST_DAYS), note),)


_OF_KINDS: tuple[Callable[[ReportedResult], _Highlights | None], ...] = (
    *(_of_fit, _of_prediction, _of_evaluation, _of_models, _of_training, _of_comparison, _of_counts),
)

_MOST_RANKINGS = 3
"""Rankings whose queries are listed."""


def _changed_queries(result: ReportedResult) -> list[Section]:
    """The queries that rankings change most, each with its documents now and then."""
    return [
        Section(
            f"Queries that {row.ranking} changes most",
            tuple(
                Fold(
                    f"{query.query}: {query.difference:+.2f} clicks per page, {plural(query.pages, 'pages')}",
                    (Orders(("shown most now", f"by {row.ranking}"), query.before, query.after),),
                    is_open=not number,
                    paper="line" if number else "open",
                )
                for number, query in enumerate(row.changed_queries)
                if query.difference is not None and query.pages is not None
            ),
        )
        for row in result.described.predictions[:_MOST_RANKINGS]
    ]


# --- several results side by side: days, logs or methods ---

_AT_POSITIONS = (2, 3, 5, 10, 20)
_MOST_RESULTS = 366
_FEWEST_FOR_A_COURSE = 3


def _side_by_side(results: Sequence[ReportedResult]) -> list[Section]:
    rows = [_row(result) for result in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table("", tuple(names), tuple(tuple(row.get(name, "-") for name in names) for row in rows))
    about = f"Of {len(results):,} results, the last {MOST_IN_FULL} are shown in full."
    drawn = _pictures(results)
    overview = Section("All results", (*([about] if len(results) > MOST_IN_FULL else []), table))
    return [overview, *([Section("Pictures", tuple(drawn))] if drawn else [])]


def _pictures(results: Sequence[ReportedResult]) -> list[Block]:
    """The charts that several results share."""
    fits = {result.name: result.fit for result in results if result.fit is not None}
    curves = [_curves(fits)] if len(fits) > 1 else []
    return [*curves, *(_course(fits) if len(fits) >= _FEWEST_FOR_A_COURSE else [])]


def _row(result: ReportedResult) -> dict[str, str]:
    """A result in the table of all."""
    described = result.described
    row = {"result": result.name}
    if described.verdict:
        row["verdict"] = described.verdict
    cell = None if result.fit is None else named_cell(result.fit)
    if cell is not None:
        interval = "" if cell[LOW] is None else f" ({cell[LOW]:.0%} to {cell[HIGH]:.0%})"
        row[f"attention of position {cell[POSITION]}"] = f"{cell[PROPENSITY]:.0%}{interval}"
    counts = described.totals or described.statistics
    row |= {name: f"{counts[name]:,.0f}" for name in (IMPRESSIONS, CLICKS) if name in counts}
    days = _days(result)
    return row | ({"days": days} if days else {})


def _lines_of(fit: ReportedFit, column: str, name: str) -> pl.DataFrame:
    """The curve of a result, of several contexts that of the most frequent one, with its name in a column."""
    lines = fit.curves.lines.filter(pl.col(CONTEXT) == fit.curves.contexts[0])
    return lines.with_columns(pl.lit(name).alias(column))


def _curves(fits: Mapping[str, ReportedFit]) -> Figure:
    last = dict(list(fits.items())[-MOST_IN_FULL:])
    notes = [f"Of {len(fits):,} results, the last {len(last)} are drawn."] if len(fits) > len(last) else []
    contexts = [f"{name}: {fit.curves.contexts[0]}" for name, fit in last.items() if fit.fit.plan.context]
    notes += [f"Of each, the most frequent context: {'; '.join(contexts)}."] if contexts else []
    lines = pl.concat([_lines_of(fit, "line", name) for name, fit in last.items()], how="diagonal")
    return charts.curves_of_results(lines, " ".join(notes))


def _course(fits: Mapping[str, ReportedFit]) -> list[Figure]:
    """Propensities of some positions from result to result."""
    shown = dict(list(fits.items())[-_MOST_RESULTS:])
    rows = pl.concat(
        _lines_of(fit, "result", name).select("result", POSITION, PROPENSITY, LOW, HIGH) for name, fit in shown.items()
    )
    rows = rows.filter(pl.col(POSITION).is_in(_AT_POSITIONS) & pl.col(PROPENSITY).is_not_null())
    note = f"Of {len(fits):,} results, the last {len(shown)} are drawn." if len(fits) > len(shown) else ""
    return [charts.course(rows, list(shown), note)] if rows.height else []
