"""The curve: propensity by position with its intervals, beside the click rates that people take for it."""

import altair as alt
import polars as pl

from posbias.core.reporting.curves import CONTEXT, HIGH, LOW, PROPENSITY, RELATIVE_RATE, Curves
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, Table, in_words, table_of
from posbias.io.reports.read import ReportedFit

MEASURE, VALUE, LINE = "measure", "value", "line"
RATE_IN_WORDS = "relative click rate"

_ABOUT = (
    "How likely each position is to be examined, relative to the first one. The shaded bands are 95 % intervals. The "
    "dashed line is the click rate, relative to the same position: it is not a propensity, as better documents stand "
    "higher."
)


def curve_section(fit: ReportedFit) -> Section:
    """The section."""
    curves, blocks = fit.curves, list[Block]([_ABOUT])
    if curves.browsing:
        blocks.append("This is the curve where nothing above was clicked; the others are in the next section.")
    lines = curves.lines.with_columns(pl.col(CONTEXT).alias(LINE))
    single = len(curves.contexts) == 1
    blocks += curves.omissions
    figure = Figure(
        "curve",
        "Propensity by position",
        _what_can_be_seen(curves),
        curve_spec(lines, single=single, legend=", ".join(fit.context) or None),
        curve_table(lines, "context" if fit.context else None),
    )
    missing = int((~fit.identified).sum())
    if missing:
        why = "; ".join(f"{count:,} because {reason}" for reason, count in list(fit.reasons.items())[:5])
        blocks.append(f"{missing:,} of {fit.n_cells:,} cells have no propensity: {why}.")
    return Section("curve", "The curve", (*blocks, figure))


def curve_spec(lines: pl.DataFrame, *, single: bool, legend: str | None) -> Spec:
    """Lines with their intervals, and dashed ones of click rates.

    Args:
        lines: `line`, and the columns of curves.
        single: whether there is one line, so that colours may say what is measured.
        legend: what tells lines apart.
    """
    colour_by = MEASURE if single else LINE
    order = ["propensity", RATE_IN_WORDS] if single else lines[LINE].unique(maintain_order=True).to_list()
    base = alt.Chart(data_of(_measures(lines)))
    x = position_axis(lines[POSITION].unique().sort().to_list())
    y = alt.Y(f"{VALUE}:Q", title="relative to the reference", scale=alt.Scale(zero=True))
    colour = alt.Color(
        f"{colour_by}:N",
        sort=order,
        title=None if single else legend,
        scale=alt.Scale(domain=order),
        legend=alt.Legend(),
    )
    shape = alt.Shape(f"{colour_by}:N", sort=order, scale=alt.Scale(domain=order), title=None if single else legend)
    is_rate = f"datum.{MEASURE} == '{RATE_IN_WORDS}'"
    theta, rates = base.transform_filter(f"!({is_rate})"), base.transform_filter(is_rate)
    band = theta.mark_area(style="band").encode(
        x=x, y=alt.Y(f"{LOW}:Q", title="relative to the reference"), y2=f"{HIGH}:Q", color=colour
    )
    line = theta.mark_line().encode(x=x, y=y, color=colour)
    dashes = rates.mark_line(strokeDash=[5, 4]).encode(x=x, y=y, color=colour)
    point = base.mark_point(filled=True).encode(
        x=x,
        y=y,
        color=colour,
        shape=shape,
        tooltip=tooltips(
            {**({} if single else {LINE: legend or "result"}), MEASURE: "measure", POSITION: "position", VALUE: "value"}
            | {LOW: "from", HIGH: "to", IMPRESSIONS: "impressions", CLICKS: "clicks"},
            {POSITION: ",d", VALUE: ".3f", LOW: ".3f", HIGH: ".3f", IMPRESSIONS: ",.0f", CLICKS: ",.0f"},
        ),
    )
    return spec_of(band, dashes, line, point)


def _measures(lines: pl.DataFrame) -> pl.DataFrame:
    """A row per point: of propensities with their intervals, and of click rates."""
    kept = (POSITION, LINE, IMPRESSIONS, CLICKS)
    theta = lines.select(*kept, LOW, HIGH, pl.col(PROPENSITY).alias(VALUE), pl.lit("propensity").alias(MEASURE))
    rates = lines.select(*kept, pl.col(RELATIVE_RATE).alias(VALUE), pl.lit(RATE_IN_WORDS).alias(MEASURE))
    return pl.concat([theta, rates], how="diagonal").filter(pl.col(VALUE).is_not_null())


def curve_table(lines: pl.DataFrame, line_is: str | None) -> Table:
    """The numbers of a curve; `line_is` says what tells its lines apart, where there are several."""
    named = {} if line_is is None else {LINE: line_is}
    return table_of(
        "Propensities and click rates",
        lines,
        **named,
        position="position",
        propensity="propensity",
        low="from",
        high="to",
        relative_rate=RATE_IN_WORDS,
        impressions="impressions",
        clicks="clicks",
    )


def _what_can_be_seen(curves: Curves) -> str:
    """The curve in words, for who does not see it."""
    known = curves.lines.filter(pl.col(PROPENSITY).is_not_null())
    said = [f"Line chart of propensity by position, {len(curves.positions):,} positions."]
    for context in curves.contexts:
        own = known.filter(pl.col(CONTEXT) == context)
        if own.height:
            last = own.row(-1, named=True)
            who = f"In {context}, it" if context else "It"
            rate = "" if last[RELATIVE_RATE] is None else f", where the click rate is {in_words(last[RELATIVE_RATE])}"
            said.append(f"{who} is {in_words(last[PROPENSITY])} at position {last[POSITION]:,}{rate}.")
    return " ".join(said)
