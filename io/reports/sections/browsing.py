"""The user browsing model: propensity by position and by the last click above, as a heat map."""

import altair as alt
import polars as pl

from posbias.core.reporting.curves import CONTEXT, HIGH, LOW, PROPENSITY
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK
from posbias.io.reports.drawing import data_of, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, table_of
from posbias.io.reports.read import ReportedFit

_MOST_POSITIONS = 40
_NUMBERS_UP_TO = 12  # positions whose cells have room for a number
_CELL = 26  # pixels
_DARK_BELOW = 0.6  # viridis is dark below, so that numbers are white there

_ABOUT = (
    "How likely a position is to be examined, given where the last click above was (0: none). Grey cells have no "
    "propensity: nothing compares them with the reference."
)


def browsing_section(fit: ReportedFit) -> Section | None:
    """The section; None where cells do not differ by the last click above."""
    if not fit.curves.browsing:
        return None
    first = fit.curves.contexts[0]
    cells = fit.curves.cells.filter((pl.col(CONTEXT) == first) & (pl.col(POSITION) <= _MOST_POSITIONS))
    blocks: list[Block] = [
        _ABOUT,
    ]
    if first:
        blocks.append(f"This is the context {first}.")
    if fit.curves.positions[-1] > _MOST_POSITIONS:
        blocks.append(f"The first {_MOST_POSITIONS} positions are drawn.")
    unknown = cells[PROPENSITY].null_count()
    figure = Figure(
        "browsing",
        "Propensity by position and last click above",
        f"Heat map of {cells.height:,} cells, {unknown:,} of them without a propensity.",
        _spec(cells),
        table_of(
            "Propensity by position and last click above",
            cells,
            position="position",
            previous_click="last click",
            propensity="propensity",
            low="from",
            high="to",
            impressions="impressions",
            clicks="clicks",
        ),
    )
    return Section("browsing", "After a click above", (*blocks, figure))


def _spec(cells: pl.DataFrame) -> Spec:
    columns = (POSITION, PREVIOUS_CLICK, PROPENSITY, LOW, HIGH, IMPRESSIONS, CLICKS)
    known, unknown = cells.filter(pl.col(PROPENSITY).is_not_null()), cells.filter(pl.col(PROPENSITY).is_null())
    x = alt.X(f"{POSITION}:O", title="position", axis=alt.Axis(labelAngle=0))
    y = alt.Y(f"{PREVIOUS_CLICK}:O", title="last click above")
    base = alt.Chart(data_of(known.select(columns)))
    titles = {POSITION: "position", PREVIOUS_CLICK: "last click", PROPENSITY: "propensity", LOW: "from", HIGH: "to"}
    formats = {POSITION: ",d", PREVIOUS_CLICK: ",d", PROPENSITY: ".3f", LOW: ".3f", HIGH: ".3f"}
    layers = [
        alt.Chart(data_of(unknown.select(columns)))
        .mark_rect(style="unknown")
        .encode(x=x, y=y, tooltip=tooltips({POSITION: "position", PREVIOUS_CLICK: "last click"}, formats)),
        base.mark_rect().encode(
            x=x,
            y=y,
            color=alt.Color(
                f"{PROPENSITY}:Q",
                title="propensity",
                scale=alt.Scale(scheme="viridis", domainMin=0),
                legend=alt.Legend(orient="bottom", gradientLength=200),
            ),
            tooltip=tooltips(
                {**titles, IMPRESSIONS: "impressions", CLICKS: "clicks"},
                {**formats, IMPRESSIONS: ",.0f", CLICKS: ",.0f"},
            ),
        ),
    ]
    n_positions = cells[POSITION].n_unique()
    if n_positions <= _NUMBERS_UP_TO:
        largest = known[PROPENSITY].max()
        bright = _DARK_BELOW * (float(largest) if isinstance(largest, float) else 1.0)
        layers.append(
            base.mark_text(fontSize=10).encode(
                x=x,
                y=y,
                text=alt.Text(f"{PROPENSITY}:Q", format=".2f"),
                color=alt.condition(f"datum.{PROPENSITY} < {bright}", alt.value("#ffffff"), alt.value("#000000")),
            )
        )
    return spec_of(*layers, height=max(_CELL * cells[PREVIOUS_CLICK].n_unique(), 60))
