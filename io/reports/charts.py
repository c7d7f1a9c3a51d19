"""Charts of results in Vega-Lite, rendered to SVG or PNG, so that pages need no script.

`charts.json` has the specifications. A string `$name` in them is replaced by a value, or its entry removed without one.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import polars as pl
import polars.selectors as cs

from posbias.core.errors import escape_unseen
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, PROPENSITY, RELATIVE_RATE, PlottedCurves
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK


class Interval(NamedTuple):
    """A labelled value with its 95 % interval; an unknown end is None."""

    label: str
    value: float
    low: float | None
    high: float | None


Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification, without width and colours."""


@dataclass(frozen=True)
class Figure:
    """A chart with its texts."""

    name: str  # for --chart
    title: str
    description: str  # of its content, for screen readers
    spec: Spec
    note: str = ""  # legend, and omissions


SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The palette of Okabe and Ito, distinguishable with any colour vision, in an order for white paper."""

_ON_PAPER = {"text": "#1b1f24", "grid": "#e3e6ea", "muted": "#6b7280"}
WIDE, NARROW = 720, 340
"""Pixels of a chart on a laptop and on a phone."""

_SCALE = 2.0  # of PNG, for screens of high resolution
_SVG_TAG = re.compile(r'^<svg [^>]*viewBox="([^"]*)">')


def inline_svg(figure: Figure, width: int) -> str:
    """Render a chart as SVG for a page, with colours as variables of the style sheet."""
    colours = {name: f"var(--{name})" for name in _ON_PAPER} | {"background": "transparent"}
    series = [f"var(--series-{number})" for number in range(1, len(SERIES) + 1)]
    config = _filled("config", **colours, series=series, first=series[0], columns=2 if width == WIDE else 1)
    spec = {**figure.spec, "width": width, "config": config}
    import vl_convert  # noqa: PLC0415 - it may not be installed

    return _SVG_TAG.sub(r'<svg viewBox="\1" aria-hidden="true">', vl_convert.vegalite_to_svg(json.dumps(spec)), count=1)


def picture_spec(figure: Figure, subtitle: str) -> Spec:
    """Return the complete specification of a chart, with titles and colours for white paper."""
    return {
        **figure.spec,
        "config": _filled("config", **_ON_PAPER, background="#ffffff", series=SERIES, first=SERIES[0], columns=2),
        "description": escape_unseen(figure.description),
        "padding": 16,
        "title": {"text": figure.title, "subtitle": [subtitle, figure.note]},
        "width": WIDE,
    }


def picture(figure: Figure, subtitle: str, form: Literal["svg", "png"]) -> bytes:
    """Render a chart as the content of a file."""
    import vl_convert  # noqa: PLC0415 - it may not be installed

    spec = json.dumps(picture_spec(figure, subtitle))
    if form == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    return vl_convert.vegalite_to_png(spec, scale=_SCALE)


_SPECIFICATIONS: dict[str, Spec] = json.loads(
    files("posbias.io.reports").joinpath("charts.json").read_text(encoding="utf-8")
)


def _filled(name: str, **values: object) -> Spec:
    """Return a specification of `charts.json` with its placeholders replaced; entries without a value are removed."""

    def has_value(entry: object) -> bool:
        return not (isinstance(entry, str) and entry[:1] == "$" and entry[1:] not in values)

    def fill(part: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(part, dict):
            entries = cast("Spec", part).items()
            return {key: fill(entry) for key, entry in entries if has_value(entry)}
        if isinstance(part, list):
            return [fill(entry) for entry in cast("list[Any]", part)]
        return values[part[1:]] if isinstance(part, str) and part[:1] == "$" else part

    return fill(_SPECIFICATIONS[name])


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of a frame, with None for NaN and infinity."""
    return frame.with_columns(pl.when(cs.float().is_finite()).then(cs.float())).to_dicts()


LOG_SCALE_FROM = 50  # positions
_MOST_TICKS = 20  # positions with a tick for each


def _position_axis(positions: pl.Series) -> Spec:
    """Return the horizontal axis: a tick for each of few positions, a logarithmic scale for many."""
    values: list[int] = positions.unique().sort().to_list()
    if values and len(values) <= _MOST_TICKS:
        return _filled("position, each named", named=values)
    return _filled("position, logarithmic" if values and values[-1] > LOG_SCALE_FROM else "position")


# --- propensity by position, beside raw click rates ---

_LINE, _MEASURE = "line", "measure"
_ATTENTION, _RATE = "attention (propensity)", "click rate"
_DASHES = "Dashed: what raw click rates say."


def curve_figure(curves: PlottedCurves, contexts: str, reference: str | None) -> Figure:
    """Draw propensity by position with 95 % intervals, and relative click rates dashed.

    Args:
        curves: of each context.
        contexts: names of the context columns.
        reference: the reference cell; None where contexts differ in it.
    """
    lines = curves.lines.with_columns(pl.format("{} {}", pl.lit(contexts), CONTEXT).alias(_LINE))
    described = [f"Line chart of {len(curves.positions):,} positions."]
    for context in curves.contexts:
        identified = lines.filter((pl.col(CONTEXT) == context) & pl.col(PROPENSITY).is_not_null())
        if identified.height:
            last = identified.row(-1, named=True)
            rate = "" if last[RELATIVE_RATE] is None else f", and raw click rates say {last[RELATIVE_RATE]:.2f}"
            where = f"For {contexts} {context}, position" if context else "Position"
            described.append(f"{where} {last[POSITION]:,} gets {last[PROPENSITY]:.2f}{rate}.")
    below = "Shown for pages on which nothing above was clicked." if curves.browsing else ""
    note = ["Shaded: 95 % intervals.", _DASHES, below, *curves.omissions]
    spec = _curve_spec(lines, single=len(curves.contexts) == 1, reference=reference)
    return Figure("curve", "Attention by position", " ".join(described), spec, " ".join(filter(None, note)))


def curves_of_results(lines: pl.DataFrame, note: str) -> Figure:
    """Draw the curves of several results, named in the column `line`."""
    names = lines[_LINE].unique(maintain_order=True).to_list()
    described = f"Line chart of propensity by position in {len(names)} results: {', '.join(names)}."
    note = f"Shaded: 95 % intervals. {_DASHES} {note}".strip()
    return Figure("runs", "Attention by position and result", described, _curve_spec(lines, single=False), note)


def _curve_spec(lines: pl.DataFrame, *, single: bool, reference: str | None = None) -> Spec:
    """Return lines with intervals and dashed click rates; colours mark lines, or the measures of a `single` line."""
    attention = lines.select(POSITION, _LINE, LOW, HIGH, value=PROPENSITY, measure=pl.lit(_ATTENTION))
    rates = lines.select(POSITION, _LINE, value=RELATIVE_RATE, measure=pl.lit(_RATE))
    rows = pl.concat([attention, rates], how="diagonal").drop_nulls("value")
    legend = [_ATTENTION, _RATE] if single else lines[_LINE].unique(maintain_order=True).to_list()
    names = _filled("names", column=_MEASURE if single else _LINE, names=legend)
    return _filled(
        "curve",
        rows=_rows(rows),
        positions=_position_axis(lines[POSITION]),
        names=names,
        relative_to="relative to the top" if reference is None else f"relative to {reference}",
        **({} if single else {"shapes": names}),
    )


# --- heat maps: of a grid of cells, or by position and last click above ---

_MOST_POSITIONS = 40
_MOST_NUMBERED = 12  # positions whose cells have room for a number
_CELL = 26  # pixels
_DARK_BELOW = 0.6  # of the largest propensity: viridis is dark there, and numbers are white


def heat_map(curves: PlottedCurves, contexts: str, reference: str | None = None) -> Figure:
    """Draw propensity as a heat map: of a grid of cells, or by position and last click in the most frequent context.

    Args:
        curves: of a grid, or of a model with last clicks.
        contexts: names of the context columns.
        reference: the reference cell.
    """
    first, row = curves.contexts[0], CONTEXT if curves.grid else PREVIOUS_CLICK
    cells = curves.cells.filter(((pl.col(CONTEXT) == first) | curves.grid) & (pl.col(POSITION) <= _MOST_POSITIONS))
    cells = cells.select(POSITION, row, PROPENSITY)
    order = {"order": cells[row].unique(maintain_order=True).to_list()} if curves.grid else {}
    across, rows = (escape_unseen(name).replace("_", " ") for name in (curves.across, curves.by))
    known, has_numbers = cells.drop_nulls(PROPENSITY), cells[POSITION].n_unique() <= _MOST_NUMBERED
    largest = known[PROPENSITY].max()
    bright = _DARK_BELOW * (float(largest) if isinstance(largest, float) else 1.0)
    spec = _filled(
        "browsing",
        unknown=_rows(cells.filter(pl.col(PROPENSITY).is_null()).drop(PROPENSITY)),
        known=_rows(known),
        legend=None if has_numbers else {"type": "symbol", "format": ".2f", "title": "propensity"},
        numbers=_rows(known) if has_numbers else [],
        is_dark=f"datum.{PROPENSITY} < {bright}",
        height=max(_CELL * cells[row].n_unique(), 60),
        across=across,
        row=row,
        rows=rows if curves.grid else "last click above (0: none)",
        **order,
    )
    note = [f"Relative to {reference}."] if curves.grid and reference else []
    if known.height < cells.height:
        note.append(f"Grey: unknown, as nothing compares it with {reference or 'the top position'}.")
    note += [f"Of {contexts} {first}."] if first and not curves.grid else []
    note += curves.omissions if curves.grid else []
    note += [f"The first {_MOST_POSITIONS} positions are drawn."] if curves.positions[-1] > _MOST_POSITIONS else []
    described = f"Heat map of {cells.height:,} cells, {cells[PROPENSITY].null_count():,} of them unknown."
    name, by = ("curve", f"{rows} and {across}") if curves.grid else ("browsing", "position and last click above")
    return Figure(name, f"Attention by {by}", described, spec, " ".join(note))


# --- from result to result, and from day to day ---


def course(rows: pl.DataFrame, results: Sequence[str], note: str) -> Figure:
    """Draw propensities of selected positions over results.

    Args:
        rows: `result`, `position`, `propensity`, `low`, `high`.
        results: names of all results, in order.
        note: about omissions.
    """
    positions = [f"position {number}" for number in rows[POSITION].unique().sort()]
    lines = rows.with_columns(pl.format("position {}", POSITION).alias(_LINE))
    names = _filled("names", column=_LINE, names=positions)
    described = f"Line chart of the propensities of {', '.join(positions)} over {len(results):,} results."
    spec = _filled("course", rows=_rows(lines), results=results, names=names)
    return Figure("course", "Attention from result to result", described, spec, note)


def click_rate_by_day(days: pl.DataFrame, note: str) -> Figure:
    """Draw the click rate by day from `day`, `impressions` and `clicks`."""
    rates = days.select("day", rate=pl.col(CLICKS) / pl.col(IMPRESSIONS))
    described = f"Line chart of the click rate on {days.height:,} days."
    return Figure("days", "Click rate by day", described, _filled("days", rows=_rows(rates)), note)


def running_difference(days: pl.DataFrame, teams: str) -> Figure:
    """Draw the cumulative difference of two interleaved rankers with its interval.

    Args:
        days: `day`, `difference`, `low`, `high`; an unknown end of an interval is null.
        teams: "A minus B", the sign of the difference.
    """
    last = days.row(-1, named=True)
    described = f"Line chart of the difference on {days.height:,} days, at last {last['difference']:+.3g}."
    spec = _filled("running difference", rows=_rows(days), title=escape_unseen(f"{teams}, clicks a page"))
    note = "Shaded: the 95 % interval, which holds at all days at once. A verdict falls where it leaves 0."
    return Figure("running", "The difference so far", described, spec, note)


# --- differences with their intervals ---

_ROW = 34  # pixels


def interval_figure(
    rows: Sequence[Interval], title: str, about: str, *, form: str = "+.0%", zero: bool = True
) -> Figure:
    """Draw values with their 95 % intervals, one per row.

    Args:
        rows: the values.
        title: of the chart.
        about: a sentence about the quantity.
        form: the number format of the axis.
        zero: whether to draw a line at 0, for differences.
    """
    labels = [escape_unseen(row.label) for row in rows]
    cells = [(label, *row[1:]) for label, row in zip(labels, rows, strict=True)]
    schema = {"label": pl.String, "value": pl.Float64, LOW: pl.Float64, HIGH: pl.Float64}
    spec = _filled(
        "differences",
        rows=_rows(pl.DataFrame(cells, schema, orient="row")),
        nothing=[{"value": 0.0}],
        values=_filled("value", form=form, zero=zero),
        labels=_filled("label", names=labels),
        height=_ROW * len(rows),
    )
    if not zero:
        del spec["layer"][0]
    values = "; ".join(f"{label} {row.value:+.3g}" for label, row in zip(labels, rows, strict=True))
    return Figure(
        "differences", title, f"Points with 95 % intervals: {values}.", spec, f"{about} Bars: 95 % intervals."
    )
