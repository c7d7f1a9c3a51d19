"""The sections about a fit: which numbers, how they are drawn, and what they say in words."""

import altair as alt
import polars as pl

from posbias.core.errors import LogFormatError
from posbias.core.fit.plot_data import (
    BINS,
    COLUMNS,
    CONTEXT,
    FEWEST_IMPRESSIONS,
    HIGH,
    LINKING_CLICKS,
    LOW,
    MOST_LINKED_POSITIONS,
    OTHERS,
    PROPENSITY,
    RELATIVE_RATE,
    UNSHRUNK,
    DocumentDifferences,
    document_differences,
    label_of,
    links_between,
)
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK
from posbias.io.fits.saved_fit import StoredFit
from posbias.io.reports.drawing import (
    DIFFERENCE,
    Block,
    Figure,
    Section,
    Spec,
    Table,
    chart_of,
    drawn,
    heat,
    in_words,
    line_at_zero,
    position_axis,
    spec_of,
    table,
    table_of,
    told_apart,
    tooltips,
)
from posbias.io.reports.reported import ReportedFit
from posbias.io.results.tables import reading_parquet

LINE = "line"
_ESTIMATE = (POSITION, PROPENSITY, LOW, HIGH)
_COUNTS = (IMPRESSIONS, CLICKS)

# --- the curve, beside the click rates that people take for it ---

_MEASURE, _VALUE, _RATE_IN_WORDS = "measure", "value", "relative click rate"
_ABOUT_CURVE = (
    "How likely each position is to be examined, relative to the first one. The shaded bands are 95 % intervals. The "
    "dashed line is the click rate, relative to the same position: it is not a propensity, as better documents stand "
    "higher."
)


def curve_section(reported: ReportedFit) -> Section:
    """Propensity by position with its intervals."""
    fit, curves = reported.fit, reported.curves
    blocks: list[Block] = [_ABOUT_CURVE]
    if curves.browsing:
        blocks.append("This is the curve where nothing above was clicked; the others are in the next section.")
    lines = curves.lines.with_columns(pl.col(CONTEXT).alias(LINE))
    known = lines.filter(pl.col(PROPENSITY).is_not_null())
    seen = [f"Line chart of propensity by position, {len(curves.positions):,} positions."]
    for context in curves.contexts:
        own = known.filter(pl.col(CONTEXT) == context)
        if own.height:
            last = own.row(-1, named=True)
            who = f"In {context}, it" if context else "It"
            rate = "" if last[RELATIVE_RATE] is None else f", where the click rate is {in_words(last[RELATIVE_RATE])}"
            seen.append(f"{who} is {in_words(last[PROPENSITY])} at position {last[POSITION]:,}{rate}.")
    legend = ", ".join(fit.plan.context)
    figure = Figure(
        "curve",
        "Propensity by position",
        " ".join(seen),
        curve_spec(lines, single=len(curves.contexts) == 1, legend=legend or None),
        curve_table(lines, "context" if legend else None),
    )
    missing = fit.table.filter(~pl.col("identified"))
    blocks += curves.omissions
    if missing.height:
        reasons = fit.table["reason"].drop_nulls().value_counts(sort=True).head(5).iter_rows()
        why = "; ".join(f"{count:,} because {reason}" for reason, count in reasons)
        blocks.append(f"{missing.height:,} of {fit.table.height:,} cells have no propensity: {why}.")
    return Section("curve", "The curve", (*blocks, figure))


def curve_spec(lines: pl.DataFrame, *, single: bool, legend: str | None) -> Spec:
    """Lines with their intervals, and dashed ones of click rates.

    Args:
        lines: `line`, and the columns of curves.
        single: whether there is one line, so that colours may say what is measured.
        legend: what tells lines apart.
    """
    columns = (POSITION, LINE, *_COUNTS)
    theta = lines.select(*columns, LOW, HIGH, pl.col(PROPENSITY).alias(_VALUE), pl.lit("propensity").alias(_MEASURE))
    rates = lines.select(*columns, pl.col(RELATIVE_RATE).alias(_VALUE), pl.lit(_RATE_IN_WORDS).alias(_MEASURE))
    base = chart_of(pl.concat([theta, rates], how="diagonal").filter(pl.col(_VALUE).is_not_null()))
    x = position_axis(lines[POSITION])
    y = alt.Y(f"{_VALUE}:Q", title="relative to the reference", scale=alt.Scale(zero=True))
    if single:
        names = told_apart(_MEASURE, ["propensity", _RATE_IN_WORDS])
    else:
        names = told_apart(LINE, lines[LINE].unique(maintain_order=True).to_list(), legend)
    is_rate = f"datum.{_MEASURE} == '{_RATE_IN_WORDS}'"
    band, line = drawn(base.transform_filter(f"!({is_rate})"), x, y, names=names, interval="band")
    dashes = base.transform_filter(is_rate).mark_line(strokeDash=[5, 4]).encode(x=x, y=y, color=names["color"])
    which = [] if single else [(LINE, legend or "result")]
    said = tooltips(*which, _MEASURE, POSITION, _VALUE, LOW, HIGH, *_COUNTS)
    return spec_of(band, dashes, line, *drawn(base, x, y, said, names, line=False))


def curve_table(lines: pl.DataFrame, line_is: str | None) -> Table:
    """The numbers of a curve; `line_is` says what tells its lines apart, where there are several."""
    which = [] if line_is is None else [(LINE, line_is)]
    return table_of("Propensities and click rates", lines, *which, *_ESTIMATE, RELATIVE_RATE, *_COUNTS)


# --- the user browsing model: by position and by the last click above ---

_MOST_POSITIONS = 40
_NUMBERS_UP_TO = 12  # positions whose cells have room for a number
_CELL = 26  # pixels
_DARK_BELOW = 0.6  # viridis is dark below, so that numbers are white there
_ABOUT_BROWSING = (
    "How likely a position is to be examined, given where the last click above was (0: none). Grey cells have no "
    "propensity: nothing compares them with the reference."
)


def browsing_section(reported: ReportedFit) -> Section | None:
    """A heat map of cells; None where they do not differ by the last click above."""
    curves = reported.curves
    if not curves.browsing:
        return None
    first = curves.contexts[0]
    cells = curves.cells.filter((pl.col(CONTEXT) == first) & (pl.col(POSITION) <= _MOST_POSITIONS))
    blocks: list[Block] = [_ABOUT_BROWSING]
    if first:
        blocks.append(f"This is the context {first}.")
    if curves.positions[-1] > _MOST_POSITIONS:
        blocks.append(f"The first {_MOST_POSITIONS} positions are drawn.")
    title = "Propensity by position and last click above"
    figure = Figure(
        "browsing",
        title,
        f"Heat map of {cells.height:,} cells, {cells[PROPENSITY].null_count():,} of them without a propensity.",
        _browsing_spec(cells.select(POSITION, PREVIOUS_CLICK, PROPENSITY, LOW, HIGH, *_COUNTS)),
        table_of(title, cells, POSITION, PREVIOUS_CLICK, PROPENSITY, LOW, HIGH, *_COUNTS),
    )
    return Section("browsing", "After a click above", (*blocks, figure))


def _browsing_spec(cells: pl.DataFrame) -> Spec:
    known = cells.filter(pl.col(PROPENSITY).is_not_null())
    x = alt.X(f"{POSITION}:O", title="position", axis=alt.Axis(labelAngle=0))
    y = alt.Y(f"{PREVIOUS_CLICK}:O", title="last click above")
    base = chart_of(known)
    unknown = chart_of(cells.filter(pl.col(PROPENSITY).is_null())).mark_rect(style="unknown")
    colour = heat(PROPENSITY, domainMin=0)
    layers = [
        unknown.encode(x=x, y=y, tooltip=tooltips(POSITION, PREVIOUS_CLICK)),
        base.mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltips(*cells.columns)),
    ]
    if cells[POSITION].n_unique() <= _NUMBERS_UP_TO:
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


# --- other estimators: how far they lie from the one that is used, and how far chance alone may put it off ---

_ESTIMATOR = "estimator"


def estimators_section(reported: ReportedFit) -> Section | None:
    """Other estimates relative to the one that is used; None where there are none."""
    fit, curves = reported.fit, reported.curves
    chosen = fit.estimate.method
    lines = curves.lines.filter(pl.col(CONTEXT) == curves.contexts[0])
    others = {name: lines[column] for column, name in OTHERS.items() if column in lines.columns}
    for look in fit.estimate.period.looks:
        values = look.propensity
        if values is not None and look.length != fit.estimate.period.used and len(values) == fit.table.height:
            name = "the log as a whole" if look.length == "none" else f"by {look.length}"
            others[name] = pl.Series(values, dtype=pl.Float64, strict=False).gather(lines["row"])
    own = lines.select(POSITION, PROPENSITY, LOW, HIGH, *(values.alias(name) for name, values in others.items()))
    names = [name for name in others if own[name].is_not_null().any()]
    if not names:
        return None
    relative = {name: pl.col(name) / pl.col(PROPENSITY) - 1 for name in (*names, LOW, HIGH)}
    differences = pl.concat(
        own.select(
            POSITION,
            pl.lit(name).alias(_ESTIMATOR),
            relative[name].alias(DIFFERENCE),
            pl.col(name).alias(PROPENSITY),
        )
        for name in names
    ).filter(pl.col(DIFFERENCE).is_not_null())
    x = position_axis(own[POSITION])
    y = alt.Y(f"{DIFFERENCE}:Q", title="difference", axis=alt.Axis(format="+.0%"))
    zero, colours = line_at_zero(y), told_apart(_ESTIMATOR, names)
    chance = drawn(chart_of(own.select(POSITION, relative[LOW], relative[HIGH])), x, y, line=False, interval="chance")
    said = tooltips(_ESTIMATOR, POSITION, PROPENSITY, DIFFERENCE)
    where = f" This is the context {curves.contexts[0]}." if len(curves.contexts) > 1 else ""
    about = (
        f"How far other estimates lie from the one that is used ({chosen}), which is the line at 0 %; the band is its "
        f"95 % interval.{where}"
    )
    figure = Figure(
        "estimators",
        "Other estimates, relative to the one that is used",
        f"Line chart, by position, of {', '.join(names)}, as differences in percent from the {chosen} estimate.",
        spec_of(*chance, zero, *drawn(chart_of(differences), x, y, said, colours)),
        table("Estimates by position", ("position", chosen, *names), own.select(POSITION, PROPENSITY, *names).rows()),
    )
    return Section("estimators", "Estimators compared", (about, figure))


# --- contexts: the curve of each, and what its own data say without the others ---


def contexts_section(reported: ReportedFit) -> Section | None:
    """A chart of each context; None where there are none."""
    fit, curves = reported.fit, reported.curves
    columns = ", ".join(fit.plan.context)
    if not columns:
        return None
    about = f"The curve of each context ({columns}), with 95 % intervals."
    own = (UNSHRUNK,) if UNSHRUNK in curves.cells.columns else ()
    if own:
        about += (
            " Rings are what its own data say; the line is shrunk towards the other contexts as far as the log says."
            " Intervals hold for each context by itself, and need not lie evenly about the line."
        )
    blocks: list[Block] = [about, *curves.omissions]
    differ = fit.estimate.contexts_differ
    if differ is not None:
        verdict = "differ by more than chance" if differ.rejected else "do not differ by more than chance"
        blocks.append(f"The contexts {verdict} (p = {differ.p_value:.2g}).{'' if differ.rejected else _missed(fit)}")
    ends = curves.lines.select(pl.max_horizontal(pl.col(PROPENSITY, HIGH)).max()).item()
    y = alt.Y(
        f"{PROPENSITY}:Q",
        title="propensity",
        scale=alt.Scale(domain=[0, 1.0 if ends is None else float(ends)], nice=True),  # the same for all
    )
    for context in curves.contexts:
        lines = curves.lines.filter(pl.col(CONTEXT) == context)
        base, x = chart_of(lines.select(*_ESTIMATE, *own)), position_axis(lines[POSITION])
        rings = [
            base.mark_point(filled=False, size=110).encode(
                x=x, y=alt.Y(f"{name}:Q", title="propensity"), tooltip=tooltips(POSITION, name)
            )
            for name in own
        ]
        spec = spec_of(*drawn(base, x, y, tooltips(*_ESTIMATE), interval="band"), *rings, height=220)
        blocks.append(
            Figure(
                "contexts",
                f"{columns}: {context}",
                f"Line chart of propensity by position in the context {context}, with 95 % intervals.",
                spec,
                table_of(f"Propensities in {context}", lines, *_ESTIMATE, *own, *_COUNTS),
            )
        )
    return Section("contexts", "Contexts", tuple(blocks))


def _missed(fit: StoredFit) -> str:
    """Which differences the test of contexts could have missed."""
    factors = [factor for factor in fit.estimate.contexts_found_by_four_of_five if factor is not None]
    if not factors:
        return ""
    return (
        f" Differences from the others by less than a factor of {min(factors):.2f} at the best known position, and of "
        f"{max(factors):.2f} at the least known, may have been missed."
    )


# --- what links to what: clicks on documents that were shown at two positions ---

_OTHER = "other_position"
_SIDE = 18  # pixels of a position
_FEWEST, _TALLEST = 120, 560  # pixels
_SHOWN_GROUPS = 5
_ABOUT_LINKS = (
    "Two positions are compared by documents that were shown at both, and clicked. Without such documents, there is no"
    " propensity; the more of them, the narrower its interval."
)


def links_section(reported: ReportedFit) -> Section | None:
    """What compares positions; None where nothing is known of links."""
    fit, lines = reported.fit, reported.curves.lines
    blocks: list[Block] = [_ABOUT_LINKS]
    groups = fit.estimate.comparable
    together = [group for group in groups if len(group) > 1]
    alone = len(groups) - len(together)
    if alone or len(together) > len(fit.estimate.references):
        sizes = ", ".join(f"{len(group):,} cells" for group in together[:_SHOWN_GROUPS])
        more = f" and {len(together) - _SHOWN_GROUPS:,} more groups" if len(together) > _SHOWN_GROUPS else ""
        found = f"Cells that can be compared with each other: {sizes}{more}." if together else ""
        blocks.append(f"{found} {f'{alone:,} cells can be compared with no other.' if alone else ''}".strip())
    if fit.shared_clicks is not None:
        positions = fit.table[POSITION]
        if positions.n_unique() > MOST_LINKED_POSITIONS:
            blocks.append(f"The first {MOST_LINKED_POSITIONS} of {positions.n_unique():,} positions are drawn.")
        blocks.append(_matrix(links_between(positions, fit.shared_clicks)))
    elif lines[LINKING_CLICKS].fill_null(0).sum() > 0:
        counted = lines.group_by(POSITION, maintain_order=True).agg(pl.col(LINKING_CLICKS).sum()).sort(POSITION)
        scale, axis = alt.Scale(type="symlog"), alt.Axis(format="~s")
        y = alt.Y(f"{LINKING_CLICKS}:Q", title="linking clicks", scale=scale, axis=axis)
        said = tooltips(POSITION, LINKING_CLICKS)
        figure = Figure(
            "links",
            "Clicks of documents that link a position to others"
            + (", contexts together" if lines[CONTEXT].n_unique() > 1 else ""),
            "Chart of linking clicks by position.",
            spec_of(*drawn(chart_of(counted), position_axis(counted[POSITION]), y, said, line=False), height=220),
            table_of("Linking clicks", counted, POSITION, LINKING_CLICKS),
        )
        blocks.append(figure)
    else:
        return None
    return Section("links", "What links to what", tuple(blocks))


def _matrix(links: pl.DataFrame) -> Figure:
    linked = links.filter(pl.col(CLICKS) > 0)
    x = alt.X(f"{_OTHER}:O", title="and position", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y(f"{POSITION}:O", title="position")
    said = tooltips(POSITION, _OTHER, CLICKS, formats={POSITION: ",d", _OTHER: ",d", CLICKS: ",.1f"})
    empty = chart_of(links.filter(pl.col(CLICKS) == 0)).mark_rect(style="unknown").encode(x=x, y=y, tooltip=said)
    full = chart_of(linked).mark_rect().encode(x=x, y=y, color=heat(CLICKS, numbers="~s", type="symlog"), tooltip=said)
    title = "Clicks that compare two positions"
    return Figure(
        "links",
        title,
        f"Heat map of the clicks that compare two positions; {linked.height:,} of {links.height:,} pairs have any.",
        spec_of(empty, full, height=min(max(_SIDE * links[POSITION].n_unique(), _FEWEST), _TALLEST)),
        table_of(title, linked.sort(CLICKS, descending=True, maintain_order=True), POSITION, _OTHER, CLICKS),
    )


# --- observed against expected clicks: where the model says more clicks than there are, or fewer ---

_OBSERVED, _EXPECTED = "observed", "expected"
_Z = 1.96
_ABOUT_CLICKS = (
    "Clicks that there are, relative to those that the fit expects. Bars are the chance of single clicks (95 %), "
    "without what queries share. That totals by position agree is what a fit is made for; whether the model holds is "
    "what the tests above say."
)


def clicks_section(reported: ReportedFit) -> Section | None:
    """Observed over expected clicks by position; None where no clicks are expected."""
    fit, cells = reported.fit, reported.curves.cells
    counts = {_OBSERVED: fit.estimate.clicks.observed, _EXPECTED: fit.estimate.clicks.expected}
    cells = cells.with_columns(
        pl.Series(name, values, pl.Float64, strict=False).gather(cells["row"]) for name, values in counts.items()
    )
    difference, chance = pl.col(_OBSERVED) / pl.col(_EXPECTED) - 1, _Z * pl.col(_EXPECTED).sqrt() / pl.col(_EXPECTED)
    ratios = (
        cells.filter(pl.col(_EXPECTED) > 0)
        .group_by(POSITION, CONTEXT, maintain_order=True)
        .agg(pl.col(_OBSERVED, _EXPECTED).sum())
        .sort(POSITION, maintain_order=True)
        .with_columns(difference.alias(DIFFERENCE))
        .with_columns((difference - chance).alias(LOW), (difference + chance).alias(HIGH))
    )
    if not ratios.height:
        return None
    blocks: list[Block] = [_ABOUT_CLICKS]
    if cells[PREVIOUS_CLICK].is_not_null().any():
        blocks.append("Cells of a position are added up over the last click above.")
    several, legend = len(reported.curves.contexts) > 1, ", ".join(fit.plan.context)
    y = alt.Y(f"{DIFFERENCE}:Q", title="observed / expected - 1", axis=alt.Axis(format="+.1%"))
    names = told_apart(CONTEXT, ratios[CONTEXT].unique(maintain_order=True).to_list(), legend, legend=several)
    numbers = (POSITION, _OBSERVED, _EXPECTED, DIFFERENCE)
    said = tooltips(*([(CONTEXT, legend)] if several else []), *numbers)
    points = drawn(chart_of(ratios), position_axis(ratios[POSITION]), y, said, names, line=False, interval="bars")
    figure = Figure(
        "clicks",
        "Observed against expected clicks",
        "Chart of observed over expected clicks by position, as a difference in percent.",
        spec_of(line_at_zero(y), *points, height=240),
        table_of("Observed and expected clicks", ratios, *([CONTEXT] if several else []), *numbers),
    )
    return Section("clicks", "Observed and expected clicks", (*blocks, figure))


# --- documents whose click rate says something else than their attractiveness ---

_NAMED = 15
_RATE, _MEAN = "click_rate", "attractiveness"
_GRID = (_RATE, "click rate from"), (_MEAN, "attractiveness from"), "documents"


def documents_section(reported: ReportedFit) -> Section | None:
    """Documents by click rate and attractiveness; None where there are none.

    Raises:
        LogFormatError: the table of attractiveness is damaged.
    """
    if not reported.fit.documents.is_file():
        return None
    keys, found = _differences(reported.fit)
    if not found.documents:
        return None
    about = (
        "Attractiveness is P(click | examined), the click rate is P(click): where documents stand low, it is "
        f"too low. Of {found.documents:,} documents with at least {FEWEST_IMPRESSIONS} impressions, {found.outside:,} "
        f"({found.outside / found.documents:.1%}) have a click rate outside of the 95 % interval of their "
        "attractiveness."
    )
    figure = Figure(
        "documents",
        "Click rate and attractiveness",
        "Heat map of the number of documents by click rate and attractiveness; below the diagonal line, documents are "
        "clicked more often than they attract.",
        _grid_spec(found.grid),
        table_of(
            "Documents by click rate and attractiveness (lower ends of bins)",
            found.grid.sort("documents", descending=True, maintain_order=True),
            *_GRID,
        ),
    )
    columns = (_RATE, _MEAN, "std_dev", *_COUNTS)
    headings = (*(label_of([key]) for key in keys), *(name.replace("_", " ") for name in columns))
    tables = [
        table(
            f"Clicked {often} often than they attract: the {frame.height} that are surest",
            headings,
            [
                (*(label_of([value]) for value in row), *numbers)
                for row, numbers in zip(frame.select(keys).iter_rows(), frame.select(columns).iter_rows(), strict=True)
            ],
        )
        for often, frame in (("less", found.underrated), ("more", found.overrated))
        if frame.height
    ]
    return Section("documents", "Documents", (about, figure, *tables))


def _differences(fit: StoredFit) -> tuple[list[str], DocumentDifferences]:
    path = fit.documents
    with reading_parquet(path):
        rows = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = rows.collect_schema().names()
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise LogFormatError(f"{path}: has no column {missing[0]!r}. Run `posbias fit` again.")
        keys = [name for name in names if name not in COLUMNS]
        return keys, document_differences(rows, keys, _NAMED)


def _grid_spec(grid: pl.DataFrame) -> Spec:
    ends = grid.with_columns((pl.col(name) + 1 / BINS).alias(f"{name}_to") for name in (_RATE, _MEAN))
    axis, scale = alt.Axis(format=".0%", tickCount=5), alt.Scale(domain=[0, 1], nice=False)
    x = alt.X(f"{_RATE}:Q", title="click rate", axis=axis, scale=scale)
    y = alt.Y(f"{_MEAN}:Q", title="attractiveness", axis=axis, scale=scale)
    squares = chart_of(ends).mark_rect()
    diagonal = chart_of(pl.DataFrame({_RATE: [0.0, 1.0], _MEAN: [0.0, 1.0]})).mark_line(style="reference")
    return spec_of(
        squares.encode(
            x=x,
            x2=f"{_RATE}_to:Q",
            y=y,
            y2=f"{_MEAN}_to:Q",
            color=heat("documents", numbers="~s", type="symlog"),
            tooltip=tooltips(*_GRID),
        ),
        diagonal.encode(x=x, y=y),
        height=320,
    )
