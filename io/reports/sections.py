"""Which sections a report has, in their order: first of all results together, then of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import altair as alt
import polars as pl
from msgspec import UNSET

from posbias.core.errors import counted, escaped
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, MOST_POSITIONS, PROPENSITY, thinned
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.io.fits.verdicts import clicks_above_in_words
from posbias.io.reports.drawing import (
    DIFFERENCE,
    Block,
    Figure,
    Listing,
    Points,
    Section,
    chart_of,
    drawn,
    line_at_zero,
    position_axis,
    spec_of,
    table,
    table_of,
    told_apart,
    tooltips,
)
from posbias.io.reports.fit_sections import (
    LINE,
    browsing_section,
    clicks_section,
    contexts_section,
    curve_section,
    curve_spec,
    curve_table,
    documents_section,
    estimators_section,
    links_section,
)
from posbias.io.reports.reported import ReportedFit, ReportedResult
from posbias.io.results.conclusions import GOOD, NOTE

MOST_IN_FULL = 6
"""Results that have sections of their own, and curves in one chart; of more, the last ones."""

_OF_FITS: tuple[Callable[[ReportedFit], Section | None], ...] = (
    *(curve_section, browsing_section, estimators_section, contexts_section, links_section, clicks_section),
    documents_section,
)
_LONGEST_MANIFEST = 200_000  # characters


@dataclass(frozen=True)
class Part:
    """Sections about one result, or about all of them (without a title)."""

    title: str | None
    sections: tuple[Section, ...]


def contents(results: Sequence[ReportedResult]) -> list[Part]:
    """The parts of a report."""
    if len(results) == 1:
        return [Part(None, _sections(results[0]))]
    return [
        Part(None, (runs_section(results),)),
        *(Part(result.name, _sections(result)) for result in results[-MOST_IN_FULL:]),
    ]


def _sections(result: ReportedResult) -> tuple[Section, ...]:
    of_fit = [] if result.fit is None else [section(result.fit) for section in _OF_FITS]
    text = result.manifest
    manifest: list[Block] = [Listing("manifest.json", text[:_LONGEST_MANIFEST])]
    if len(text) > _LONGEST_MANIFEST:
        manifest.insert(0, f"The manifest has {len(text):,} characters; these are the first {_LONGEST_MANIFEST:,}.")
    predicted = predictions_section(result)
    made = [summary_section(result), predicted, *of_fit, weights_section(result), quality_section(result)]
    return tuple(
        section for section in (*made, Section("manifest", "Manifest", tuple(manifest))) if section is not None
    )


# --- what a result says of itself ---


def summary_section(result: ReportedResult) -> Section:
    """Verdicts and warnings, and the figures behind them."""
    said, blocks = result.said, list[Block]()
    if said.warnings:
        blocks.append(Points(said.warnings, warn=True))
    speaks_for = tuple(reason.sentence for reason in said.reasons if reason.severity in {GOOD, NOTE})
    if speaks_for:
        blocks.append(Points(speaks_for))
    tests = None if said.estimate is UNSET else said.estimate.model_tests
    if tests is not None and tests.by_clicks_above:
        where = "at the same position" if tests.averages_users else "in the same cell"
        caption = f"Clicks against those of the same documents {where} on other pages; intervals for queries like these"
        columns = "clicks above", "impressions", "clicks", "expected clicks", "observed / expected", "from", "to"
        rows = [
            (clicks_above_in_words(row), row.impressions, row.observed_clicks, row.expected_clicks, row.ratio)
            + (row.interval or (None, None))
            for row in tests.by_clicks_above
        ]
        blocks.append(table(caption, columns, rows))
    blocks.append(table("In figures", ("", ""), figures_of(result).items()))
    return Section("summary", "What it says", tuple(blocks))


def figures_of(result: ReportedResult) -> dict[str, object]:
    """What there is to know of a result at a glance, by what it is."""
    said = result.said
    found: dict[str, object] = {"written by": f"posbias {said.command}"}
    if said.counted is not UNSET:
        found["click model"] = said.counted.model
    if said.estimate is not UNSET:
        estimate = said.estimate
        found["method"] = estimate.method if estimate.shape is UNSET else f"{estimate.method}, shape {estimate.shape}"
        found["converged"] = estimate.converged
        found["cells with a propensity"] = f"{estimate.cells_identified:,} of {estimate.cells:,}"
        found["clicks in them"] = f"{estimate.click_share_identified:.1%}"
        if estimate.errors_by is not UNSET:
            found["errors clustered by"] = f"{estimate.errors_by} ({estimate.clusters:,})"
    counts = said.totals or said.statistics
    found |= {name: counts[name] for name in ("impressions", "clicks", "queries", "pairs") if name in counts}
    if said.days is not UNSET:
        days = said.days
        found["days"] = days.first if days.number == 1 else f"{days.first} to {days.last}, {days.number:,} days"
    return found


# --- several results side by side: days, logs or methods ---

_AT_POSITIONS = (2, 3, 5, 10, 20)
_MOST_RESULTS = 366
_FEWEST_FOR_A_COURSE = 3
_RESULT, _AT = "result", "at"


def runs_section(results: Sequence[ReportedResult]) -> Section:
    """All results at a glance, their curves, and some positions from result to result."""
    figures = [figures_of(result) for result in results]
    names = list(dict.fromkeys(name for found in figures for name in found))
    if len(results) <= MOST_IN_FULL:  # a column each, else a row each
        columns = ("", *(result.name for result in results))
        rows = [[name, *(found.get(name) for found in figures)] for name in names]
    else:
        columns = ("", *names)
        rows = [[result.name, *map(found.get, names)] for result, found in zip(results, figures, strict=True)]
    blocks: list[Block] = [table("Results", columns, rows)]
    fits = {result.name: result.fit for result in results if result.fit is not None}
    if len(fits) > 1:
        blocks += _curves(fits)
    if len(fits) >= _FEWEST_FOR_A_COURSE:
        blocks += _course(fits)
    warned = [(result.name, sentence) for result in results for sentence in result.said.warnings]
    if warned:
        blocks.append(table("Warnings", ("", "warning"), warned))
    return Section("runs", "Side by side", tuple(blocks))


def _own_line(fit: ReportedFit, column: str, name: str) -> pl.DataFrame:
    """The curve of a result, of several contexts that of the most frequent one, with its name in a column."""
    lines = fit.curves.lines.filter(pl.col(CONTEXT) == fit.curves.contexts[0])
    return lines.with_columns(pl.lit(name).alias(column))


def _curves(fits: Mapping[str, ReportedFit]) -> list[Block]:
    last = dict(list(fits.items())[-MOST_IN_FULL:])
    lines = pl.concat([_own_line(fit, LINE, name) for name, fit in last.items()], how="diagonal")
    about = "The curves of the results, with 95 % intervals; dashed, their relative click rates."
    if len(fits) > len(last):
        about += f" Of {len(fits):,} results, the last {len(last)} are drawn."
    contexts = [f"{name}: {fit.curves.contexts[0]}" for name, fit in last.items() if fit.fit.plan.context]
    if contexts:
        about += f" Of each, the most frequent context: {'; '.join(contexts)}."
    figure = Figure(
        "runs",
        "Propensity by position and result",
        f"Line chart of propensity by position in {len(last)} results: {', '.join(last)}.",
        curve_spec(lines, single=False, legend="result"),
        curve_table(lines, "result"),
    )
    return [about, figure]


def _course(fits: Mapping[str, ReportedFit]) -> list[Block]:
    """Propensities of some positions from result to result."""
    shown = dict(list(fits.items())[-_MOST_RESULTS:])
    columns = (_RESULT, POSITION, PROPENSITY, LOW, HIGH)
    course = pl.concat(_own_line(fit, _RESULT, name).select(columns) for name, fit in shown.items())
    course = course.filter(pl.col(POSITION).is_in(_AT_POSITIONS) & pl.col(PROPENSITY).is_not_null())
    if not course.height:
        return []
    axis = alt.Axis(labelLimit=120, labelOverlap="greedy", grid=False)
    x = alt.X(f"{_RESULT}:O", sort=list(shown), title=None, axis=axis)
    y = alt.Y(f"{PROPENSITY}:Q", title="propensity", scale=alt.Scale(zero=True))
    names = told_apart(_AT, list(map(str, course[POSITION].unique().sort().to_list())), "position")
    base = chart_of(course.with_columns(pl.col(POSITION).cast(pl.String).alias(_AT)))
    figure = Figure(
        "course",
        "From result to result",
        f"Line chart of the propensities of some positions over {len(shown):,} results, in the order of their names.",
        spec_of(*drawn(base, x, y, tooltips(*columns), names, interval="bars")),
        table_of("Propensities from result to result", course, *columns),
    )
    note = [f"Of {len(fits):,} results, the last {len(shown)} are drawn."] if len(fits) > len(shown) else []
    return [*note, figure]


# --- rankings: what each would get, and which queries it changes most ---

_MOST_CHANGED = 3
"""Rankings whose queries are listed."""


def predictions_section(result: ReportedResult) -> Section | None:
    """Predicted clicks of rankings; None of a result without."""
    rows = result.said.predictions
    if not rows:
        return None
    names = ["ranking", "clicks_per_page", "difference", "ci_low", "ci_high"]
    names += ["new_queries_ci_low", "new_queries_ci_high", "unsupported_share", "pages_per_arm", "ubm_difference"]
    frame = pl.DataFrame([{name: getattr(row, name) for name in names} for row in rows])
    frame = frame.with_columns(pl.col("ranking").map_elements(escaped, pl.String))
    observed = pl.col("clicks_per_page") - pl.col("difference")
    relative = {DIFFERENCE: "difference", LOW: "ci_low", HIGH: "ci_high"}
    drawn_rows = frame.select("ranking", *((pl.col(of) / observed).alias(name) for name, of in relative.items()))
    y = alt.Y(f"{DIFFERENCE}:Q", title="difference in clicks", axis=alt.Axis(format="+.0%"))
    x = alt.X("ranking:N", sort=None, title=None, axis=alt.Axis(labelLimit=160, grid=False))
    said = tooltips("ranking", DIFFERENCE, LOW, HIGH)
    figure = Figure(
        "predictions",
        "Clicks per page that rankings would get more than the log's own",
        f"Points with 95 % intervals for {counted(len(rows), 'rankings')}, and a line at no difference.",
        spec_of(*drawn(chart_of(drawn_rows), x, y, said, line=False, interval="bars"), line_at_zero(y)),
        table_of("Predictions; 95 % intervals for the same queries and for queries like these", frame, *names),
    )
    blocks: list[Block] = [figure]
    for row in rows[:_MOST_CHANGED]:
        changed = [
            (escaped(of.query), of.pages, of.difference, _listed(of.before), _listed(of.after))
            for of in row.changed_queries
        ]
        columns = ("query", "pages", "more clicks per page", "shown most now", "on top then")
        blocks.append(table(f"Queries that {escaped(row.ranking)} changes most", columns, changed))
    return Section("predictions", "Rankings", tuple(blocks))


def _listed(documents: Sequence[str]) -> str:
    return escaped(", ".join(documents))


# --- the weights of clicks: which positions they lift, and what clipping did to them ---

_CLICKS, _WEIGHT, _SHARE, _OF = "of the clicks", "of the weight", "share", "of"
_ABOUT_WEIGHTS = (
    "A click weighs 1 / weight_propensity, so that clicks far down count more. This column of propensities.parquet is "
    "the propensity, or the smooth curve where the propensity is poorly known. Clipping bounds the weights: a little "
    "bias for much less noise. The effective sample size says how many clicks of equal weight would be as informative."
)


def weights_section(result: ReportedResult) -> Section | None:
    """What weights do; None where no training files were written, or these have no click weights."""
    weights = result.said.weights
    if weights is UNSET:
        return None
    rows: list[tuple[str, object, object]] = [
        ("clicks that are weighted", None, weights.clicks_weighted),
        ("clicks without a propensity, left out", None, weights.clicks_without_propensity),
        ("clicks whose weight was clipped", None, weights.clicks_clipped),
        ("sum of weights", weights.weight_before_clipping, weights.weight_after_clipping),
        ("effective sample size", weights.effective_sample_size_before_clipping, weights.effective_sample_size),
    ]
    blocks: list[Block] = [
        _ABOUT_WEIGHTS,
        table("What clipping did", ("", "before", "after"), rows),
    ]
    entries = [(entry.position, float(entry.clicks), entry.weight_share) for entry in result.said.weights_by_position]
    schema = {POSITION: pl.Int64, CLICKS: pl.Float64, _WEIGHT: pl.Float64}
    shares = pl.DataFrame(entries, schema, orient="row").group_by(POSITION).agg(pl.all().sum()).sort(POSITION)
    if shares[CLICKS].sum() > 0:
        shares = shares.with_columns((pl.col(CLICKS) / pl.col(CLICKS).sum()).alias(_CLICKS))
        drawn_positions = thinned(shares[POSITION].to_list(), MOST_POSITIONS)
        if shares.height > len(drawn_positions):
            blocks.append(f"Of {shares.height:,} positions, {len(drawn_positions)} are drawn.")
        blocks.append(_shares(shares.filter(pl.col(POSITION).is_in(drawn_positions))))
    return Section("weights", "Weights", tuple(blocks))


def _shares(shares: pl.DataFrame) -> Figure:
    names = [_CLICKS, _WEIGHT]
    base = chart_of(shares.unpivot(names, index=POSITION, variable_name=_OF, value_name=_SHARE))
    y = alt.Y(f"{_SHARE}:Q", title="share", axis=alt.Axis(format=".0%"))
    said = tooltips(POSITION, (_OF, "share"), (_SHARE, "is"))
    return Figure(
        "weights",
        "Share of the clicks and of the weight by position",
        "Line chart by position: the share of the clicks, and the share of the weight that these clicks have.",
        spec_of(*drawn(base, position_axis(shares[POSITION]), y, said, told_apart(_OF, names)), height=260),
        table_of("Shares by position", shares, POSITION, CLICKS, *names),
    )


# --- the log: what was read and left out, which columns were taken, and the click rate by day ---

_READING = (
    *("input-format", "session", "query", "no-query", "doc", "position", "click", "clicked", "impressions"),
    *("weight-column", "timestamp", "context", "stratify", "position-base", "on-bad-rows", "duplicate-docs"),
)
"""Options that say how a log was read."""

_MOST_DAYS = 400


def quality_section(result: ReportedResult) -> Section | None:
    """What was read; None where nothing was."""
    said = result.said
    if said.rows is UNSET:
        return None
    counts = {"read": said.rows.read, "used": said.rows.used}
    counts |= {f"left out: {escaped(reason)}": count for reason, count in said.rows.rejected.items()}
    rows = [(name, count, said.rows.read) for name, count in counts.items()]
    if said.rows.clicks is not UNSET:
        rows.append(("clicks without an impression", sum(said.rows.clicks.lost.values()), said.rows.clicks.read))
    shares = [(name, count, f"{count / of:.2%}" if of else "-") for name, count, of in rows]
    blocks: list[Block] = [table("Rows of the log", ("rows", "number", "share"), shares)]
    if said.rows.raw is not UNSET or said.rows.ubi is not UNSET:
        blocks.append("What became of the lines of raw files is in the manifest, below.")
    options = [(f"--{name}", said.options.get(name)) for name in _READING]
    options = [(name, _option(value)) for name, value in options if value not in (None, False)]
    if options:
        caption = "How it was read; other columns were recognised by their names"
        blocks.append(table(caption, ("option", "value"), options))
    blocks.append(table("Inputs", ("input",), [(escaped(name),) for name in said.inputs]))
    return Section("quality", "The log", (*blocks, *_by_day(result)))


def _option(value: object) -> str:
    if isinstance(value, list | tuple):
        return escaped(", ".join(map(str, cast("Sequence[object]", value))))
    return escaped(str(value))


def _by_day(result: ReportedResult) -> list[Block]:
    """The click rate by day, where statistics were collected day by day."""
    rows = [
        (segment.days[0], float(segment.statistics.impressions), float(segment.statistics.clicks))
        for segment in result.said.segments
        if len(segment.days) == 1 and segment.statistics.impressions > 0
    ]
    schema = {"day": pl.String, IMPRESSIONS: pl.Float64, CLICKS: pl.Float64}
    days = pl.DataFrame(rows, schema, orient="row").group_by("day").agg(pl.all().sum()).sort("day")
    days = days.filter(pl.col("day").str.to_date("%Y-%m-%d", strict=False).is_not_null())
    if days.height < 2:  # noqa: PLR2004 - one day is no course
        return []
    shown = days.with_columns((pl.col(CLICKS) / pl.col(IMPRESSIONS)).alias("rate")).tail(_MOST_DAYS)
    x = alt.X("day:T", title=None, axis=alt.Axis(grid=False))
    y = alt.Y("rate:Q", title="click rate", axis=alt.Axis(format=".1%"), scale=alt.Scale(zero=False))
    figure = Figure(
        "days",
        "Click rate by day",
        f"Line chart of the click rate on {shown.height:,} days.",
        spec_of(*drawn(chart_of(shown), x, y, tooltips("day", "rate", IMPRESSIONS, CLICKS)), height=220),
        table_of("Days", shown, "day", IMPRESSIONS, CLICKS, "rate"),
    )
    note = [f"Of {days.height:,} days, the last {_MOST_DAYS} are drawn."] if days.height > _MOST_DAYS else []
    return [*note, figure]
