"""Observed against expected clicks: where the model says more clicks than there are, or fewer."""

import altair as alt
import polars as pl

from posbias.core.reporting.curves import CONTEXT
from posbias.core.schema import POSITION, PREVIOUS_CLICK
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, table_of
from posbias.io.reports.read import ReportedFit

OBSERVED, EXPECTED, RATIO, LOW, HIGH = "observed", "expected", "ratio", "low", "high"
_Z = 1.96

_ABOUT = (
    "Clicks that there are, relative to those that the fit expects. Bars are the chance of single clicks (95 %), "
    "without what queries share. That totals by position agree is what a fit is made for; whether the model holds"
    " is what the tests above say."
)


def clicks_section(fit: ReportedFit) -> Section | None:
    """The section; None where no clicks are expected."""
    counts = {
        name: pl.Series(name, fit.estimate.clicks[name], pl.Float64, strict=False) for name in (OBSERVED, EXPECTED)
    }
    cells = fit.curves.cells
    cells = cells.with_columns(counts[name].gather(cells["row"]) for name in (OBSERVED, EXPECTED))
    by_position = (
        cells.filter(pl.col(EXPECTED) > 0)
        .group_by(POSITION, CONTEXT, maintain_order=True)
        .agg(pl.col(OBSERVED, EXPECTED).sum())
        .sort(POSITION, maintain_order=True)
    )
    if not by_position.height:
        return None
    chance = _Z * pl.col(EXPECTED).sqrt() / pl.col(EXPECTED)
    ratios = by_position.with_columns((pl.col(OBSERVED) / pl.col(EXPECTED) - 1).alias(RATIO)).with_columns(
        (pl.col(RATIO) - chance).alias(LOW), (pl.col(RATIO) + chance).alias(HIGH)
    )
    blocks: list[Block] = [
        _ABOUT,
    ]
    if cells[PREVIOUS_CLICK].is_not_null().any():
        blocks.append("Cells of a position are added up over the last click above.")
    several = len(fit.curves.contexts) > 1
    figure = Figure(
        "clicks",
        "Observed against expected clicks",
        "Chart of observed over expected clicks by position, as a difference in percent.",
        _spec(ratios, several=several, legend=", ".join(fit.context)),
        table_of(
            "Observed and expected clicks",
            ratios,
            **({CONTEXT: "context"} if several else {}),
            position="position",
            observed="observed",
            expected="expected",
            ratio="difference",
        ),
    )
    return Section("clicks", "Observed and expected clicks", (*blocks, figure))


def _spec(ratios: pl.DataFrame, *, several: bool, legend: str) -> Spec:
    base = alt.Chart(data_of(ratios))
    x = position_axis(ratios[POSITION].unique().sort().to_list())
    y = alt.Y(f"{RATIO}:Q", title="observed / expected - 1", axis=alt.Axis(format="+.1%"))
    names = ratios[CONTEXT].unique(maintain_order=True).to_list()
    scale = alt.Scale(domain=names)
    key = alt.Legend() if several else None
    colour = alt.Color(f"{CONTEXT}:N", sort=names, title=legend, scale=scale, legend=key)
    shape = alt.Shape(f"{CONTEXT}:N", sort=names, title=legend, scale=scale, legend=key)
    zero = alt.Chart(data_of(pl.DataFrame({RATIO: [0.0]}))).mark_rule(style="reference").encode(y=y)
    bars = base.mark_rule().encode(
        x=x, y=alt.Y(f"{LOW}:Q", title="observed / expected - 1"), y2=f"{HIGH}:Q", color=colour
    )
    titles = {POSITION: "position", OBSERVED: "observed", EXPECTED: "expected", RATIO: "difference"}
    formats = {POSITION: ",d", OBSERVED: ",.0f", EXPECTED: ",.1f", RATIO: "+.2%"}
    said = tooltips({**({CONTEXT: legend} if several else {}), **titles}, formats)
    points = base.mark_point(filled=True).encode(x=x, y=y, color=colour, shape=shape, tooltip=said)
    return spec_of(zero, bars, points, height=240)
