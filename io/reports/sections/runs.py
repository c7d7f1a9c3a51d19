"""Several results side by side: days, logs or methods."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from posbias.core.reporting.curves import CONTEXT, HIGH, LOW, PROPENSITY
from posbias.core.schema import POSITION
from posbias.io.reports.drawing import data_of, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, Table, table, table_of
from posbias.io.reports.read import ReportedFit, ReportedResult
from posbias.io.reports.sections.curve import LINE, curve_spec, curve_table
from posbias.io.reports.sections.summary import figures_of

MOST_CURVES = 6
_POSITIONS = (2, 3, 5, 10, 20)
_MOST_RESULTS = 366
_FEWEST_FOR_A_COURSE = 3
_RESULT, _AT = "result", "at"


def runs_section(results: Sequence[ReportedResult]) -> Section:
    """The section."""
    figures = [figures_of(result) for result in results]
    blocks: list[Block] = [_in_figures([result.name for result in results], figures)]
    fits = [(result.name, result.fit) for result in results if result.fit is not None]
    if len(fits) > 1:
        blocks += _curves(fits[-MOST_CURVES:], n_results=len(fits))
    if len(fits) >= _FEWEST_FOR_A_COURSE:
        blocks += _course(fits)
    warned = [(result.name, sentence) for result in results for sentence in result.said.warnings]
    if warned:
        blocks.append(table("Warnings", ("", "warning"), warned))
    return Section("runs", "Side by side", tuple(blocks))


def _in_figures(results: Sequence[str], figures: Sequence[Mapping[str, object]]) -> Table:
    """All results at a glance: a column each if they are few, else a row each."""
    names = list(dict.fromkeys(name for found in figures for name in found))
    if len(results) <= MOST_CURVES:
        return table("Results", ("", *results), [[name, *(found.get(name) for found in figures)] for name in names])
    rows = [[result, *map(found.get, names)] for result, found in zip(results, figures, strict=True)]
    return table("Results", ("", *names), rows)


def _own_line(fit: ReportedFit) -> pl.DataFrame:
    """The curve of a result: of several contexts, that of the most frequent one."""
    return fit.curves.lines.filter(pl.col(CONTEXT) == fit.curves.contexts[0])


def _curves(fits: Sequence[tuple[str, ReportedFit]], n_results: int) -> list[Block]:
    lines = pl.concat([_own_line(fit).with_columns(pl.lit(name).alias(LINE)) for name, fit in fits], how="diagonal")
    about = "The curves of the results, with 95 % intervals; dashed, their relative click rates."
    if n_results > len(fits):
        about += f" Of {n_results:,} results, the last {len(fits)} are drawn."
    contexts = [f"{name}: {fit.curves.contexts[0]}" for name, fit in fits if fit.context]
    if contexts:
        about += f" Of each, the most frequent context: {'; '.join(contexts)}."
    figure = Figure(
        "runs",
        "Propensity by position and result",
        f"Line chart of propensity by position in {len(fits)} results: {', '.join(name for name, _ in fits)}.",
        curve_spec(lines, single=False, legend="result"),
        curve_table(lines, "result"),
    )
    return [about, figure]


def _course(fits: Sequence[tuple[str, ReportedFit]]) -> list[Block]:
    """Propensities of some positions from result to result."""
    shown = fits[-_MOST_RESULTS:]
    columns = (POSITION, PROPENSITY, LOW, HIGH)
    frames = [_own_line(fit).select(columns).with_columns(pl.lit(name).alias(_RESULT)) for name, fit in shown]
    course = pl.concat(frames).filter(pl.col(POSITION).is_in(_POSITIONS) & pl.col(PROPENSITY).is_not_null())
    if not course.height:
        return []
    note = [f"Of {len(fits):,} results, the last {len(shown)} are drawn."] if len(fits) > len(shown) else []
    figure = Figure(
        "course",
        "From result to result",
        f"Line chart of the propensities of some positions over {len(shown):,} results, in the order of their names.",
        _course_spec(course, [name for name, _ in shown]),
        table_of(
            "Propensities from result to result",
            course,
            result="result",
            position="position",
            propensity="propensity",
            low="from",
            high="to",
        ),
    )
    return [*note, figure]


def _course_spec(course: pl.DataFrame, names: list[str]) -> Spec:
    base = alt.Chart(data_of(course.with_columns(pl.col(POSITION).cast(pl.String).alias(_AT))))
    x = alt.X(f"{_RESULT}:O", sort=names, title=None, axis=alt.Axis(labelLimit=120, labelOverlap="greedy", grid=False))
    y = alt.Y(f"{PROPENSITY}:Q", title="propensity", scale=alt.Scale(zero=True))
    positions = [str(position) for position in course[POSITION].unique().sort().to_list()]
    scale = alt.Scale(domain=positions)
    colour = alt.Color(f"{_AT}:N", title="position", sort=positions, scale=scale)
    shape = alt.Shape(f"{_AT}:N", title="position", scale=scale)
    bars = base.mark_rule().encode(x=x, y=alt.Y(f"{LOW}:Q", title="propensity"), y2=f"{HIGH}:Q", color=colour)
    said = tooltips(
        {_RESULT: "result", POSITION: "position", PROPENSITY: "propensity", LOW: "from", HIGH: "to"},
        {POSITION: ",d", PROPENSITY: ".3f", LOW: ".3f", HIGH: ".3f"},
    )
    line = base.mark_line().encode(x=x, y=y, color=colour)
    points = base.mark_point(filled=True).encode(x=x, y=y, color=colour, shape=shape, tooltip=said)
    return spec_of(bars, line, points)
