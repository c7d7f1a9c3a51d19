"""What links to what: the clicks on documents that were shown at two positions, which is all that compares these."""

import altair as alt
import polars as pl

from posbias.core.reporting.curves import CONTEXT, LINKING_CLICKS
from posbias.core.reporting.links import MOST_POSITIONS, links_between
from posbias.core.schema import POSITION
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, table_of
from posbias.io.reports.read import ReportedFit

OTHER = "other_position"
_CELL = 18  # pixels
_FEWEST, _TALLEST = 120, 560  # pixels
_SHOWN_GROUPS = 5

_ABOUT = (
    "Two positions are compared by documents that were shown at both, and clicked. Without such documents, there "
    "is no propensity; the more of them, the narrower its interval."
)


def links_section(fit: ReportedFit) -> Section | None:
    """The section; None where nothing is known of links."""
    blocks: list[Block] = [
        _ABOUT,
        *_groups(fit),
    ]
    if fit.shared_clicks is not None:
        found = links_between(fit.positions, fit.shared_clicks)
        blocks += _matrix(found, n_positions=fit.positions.n_unique())
    elif fit.curves.lines[LINKING_CLICKS].fill_null(0).sum() > 0:
        blocks.append(_bars(fit))
    else:
        return None
    return Section("links", "What links to what", tuple(blocks))


def _groups(fit: ReportedFit) -> list[Block]:
    """Which cells can be compared, where these are not all."""
    groups = fit.estimate.comparable
    together = [group for group in groups if len(group) > 1]
    alone = len(groups) - len(together)
    if not alone and len(together) <= len(fit.estimate.references):
        return []
    sizes = ", ".join(f"{len(group):,} cells" for group in together[:_SHOWN_GROUPS])
    more = f" and {len(together) - _SHOWN_GROUPS:,} more groups" if len(together) > _SHOWN_GROUPS else ""
    found = f"Cells that can be compared with each other: {sizes}{more}." if together else ""
    return [f"{found} {f'{alone:,} cells can be compared with no other.' if alone else ''}".strip()]


def _matrix(found: pl.DataFrame, n_positions: int) -> list[Block]:
    blocks: list[Block] = []
    if n_positions > MOST_POSITIONS:
        blocks.append(f"The first {MOST_POSITIONS} of {n_positions:,} positions are drawn.")
    linked = found.filter(pl.col("clicks") > 0)
    figure = Figure(
        "links",
        "Clicks that compare two positions",
        f"Heat map of the clicks that compare two positions; {linked.height:,} of {found.height:,} pairs have any.",
        _matrix_spec(found, linked),
        table_of(
            "Clicks that compare two positions",
            linked.sort("clicks", descending=True, maintain_order=True),
            position="position",
            other_position="other position",
            clicks="clicks",
        ),
    )
    return [*blocks, figure]


def _matrix_spec(found: pl.DataFrame, linked: pl.DataFrame) -> Spec:
    x = alt.X(f"{OTHER}:O", title="and position", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y(f"{POSITION}:O", title="position")
    colour = alt.Color(
        "clicks:Q",
        title="clicks",
        scale=alt.Scale(scheme="viridis", type="symlog"),
        legend=alt.Legend(orient="bottom", gradientLength=200, format="~s"),
    )
    said = tooltips(
        {POSITION: "position", OTHER: "and", "clicks": "clicks"}, {POSITION: ",d", OTHER: ",d", "clicks": ",.1f"}
    )
    empty = (
        alt.Chart(data_of(found.filter(pl.col("clicks") == 0)))
        .mark_rect(style="unknown")
        .encode(x=x, y=y, tooltip=said)
    )
    full = alt.Chart(data_of(linked)).mark_rect().encode(x=x, y=y, color=colour, tooltip=said)
    return spec_of(empty, full, height=min(max(_CELL * found[POSITION].n_unique(), _FEWEST), _TALLEST))


def _bars(fit: ReportedFit) -> Figure:
    lines = fit.curves.lines
    counted = lines.group_by(POSITION, maintain_order=True).agg(pl.col(LINKING_CLICKS).sum()).sort(POSITION)
    x = position_axis(counted[POSITION].to_list())
    chart = (
        alt.Chart(data_of(counted))
        .mark_point(filled=True)
        .encode(
            x=x,
            y=alt.Y(
                f"{LINKING_CLICKS}:Q",
                title="linking clicks",
                scale=alt.Scale(type="symlog"),
                axis=alt.Axis(format="~s"),
            ),
            tooltip=tooltips(
                {POSITION: "position", LINKING_CLICKS: "clicks"}, {POSITION: ",d", LINKING_CLICKS: ",.0f"}
            ),
        )
    )
    together = ", contexts together" if lines[CONTEXT].n_unique() > 1 else ""
    return Figure(
        "links",
        f"Clicks of documents that link a position to others{together}",
        "Chart of linking clicks by position.",
        spec_of(chart, height=220),
        table_of("Linking clicks", counted, position="position", linking_clicks="linking clicks"),
    )
