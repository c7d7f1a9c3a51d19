"""Documents whose click rate says something else than their attractiveness."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import polars as pl

from posbias.core.errors import LogFormatError
from posbias.core.reporting.curves import label_of
from posbias.core.reporting.documents import (
    BINS,
    COLUMNS,
    FEWEST_IMPRESSIONS,
    DocumentDifferences,
    document_differences,
)
from posbias.io.reports.drawing import data_of, spec_of, tooltips
from posbias.io.reports.elements import Figure, Section, Spec, Table, table, table_of
from posbias.io.reports.read import ReportedFit

_NAMED = 15
_RATE, _MEAN = "click_rate", "attractiveness"


def documents_section(fit: ReportedFit) -> Section | None:
    """The section; None where there is no attractiveness.

    Raises:
        LogFormatError: the table of attractiveness is damaged.
    """
    if fit.documents is None:
        return None
    keys, found = _differences(fit.documents)
    if not found.documents:
        return None
    share = found.outside / found.documents
    about = (
        "Attractiveness is P(click | examined), the click rate is P(click): where documents stand low, it is "
        f"too low. Of {found.documents:,} documents with at least {FEWEST_IMPRESSIONS} impressions, {found.outside:,} "
        f"({share:.1%}) have a click rate outside of the 95 % interval of their attractiveness."
    )
    figure = Figure(
        "documents",
        "Click rate and attractiveness",
        "Heat map of the number of documents by click rate and attractiveness; below the diagonal line, documents are "
        "clicked more often than they attract.",
        _spec(found.grid),
        table_of(
            "Documents by click rate and attractiveness (lower ends of bins)",
            found.grid.sort("documents", descending=True, maintain_order=True),
            click_rate="click rate from",
            attractiveness="attractiveness from",
            documents="documents",
        ),
    )
    tables = [
        _named(f"Clicked less often than they attract: the {frame.height} that are surest", keys, frame)
        if frame is found.underrated
        else _named(f"Clicked more often than they attract: the {frame.height} that are surest", keys, frame)
        for frame in (found.underrated, found.overrated)
        if frame.height
    ]
    return Section("documents", "Documents", (about, figure, *tables))


def _differences(path: Path) -> tuple[list[str], DocumentDifferences]:
    try:
        rows = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = rows.collect_schema().names()
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise LogFormatError(f"{path}: has no column {missing[0]!r}. Run `posbias fit` again.")
        keys = [name for name in names if name not in COLUMNS]
        return keys, document_differences(rows, keys, _NAMED)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise LogFormatError(f"{path}: cannot be read: {str(error).splitlines()[0]}.") from error


def _named(caption: str, keys: Sequence[str], frame: pl.DataFrame) -> Table:
    columns = (_RATE, _MEAN, "std_dev", "impressions", "clicks")
    texts = ([label_of([value]) for value in row] for row in frame.select(keys).iter_rows())
    numbers = frame.select(columns).iter_rows()
    headings = (*(label_of([key]) for key in keys), *(name.replace("_", " ") for name in columns))
    return table(caption, headings, [(*text, *row) for text, row in zip(texts, numbers, strict=True)])


def _spec(grid: pl.DataFrame) -> Spec:
    ends = grid.with_columns((pl.col(name) + 1 / BINS).alias(f"{name}_to") for name in (_RATE, _MEAN))
    axis = alt.Axis(format=".0%", tickCount=5)
    scale = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X(f"{_RATE}:Q", title="click rate", axis=axis, scale=scale)
    y = alt.Y(f"{_MEAN}:Q", title="attractiveness", axis=axis, scale=scale)
    squares = (
        alt.Chart(data_of(ends))
        .mark_rect()
        .encode(
            x=x,
            x2=f"{_RATE}_to:Q",
            y=y,
            y2=f"{_MEAN}_to:Q",
            color=alt.Color(
                "documents:Q",
                title="documents",
                scale=alt.Scale(scheme="viridis", type="symlog"),
                legend=alt.Legend(orient="bottom", gradientLength=200, format="~s"),
            ),
            tooltip=tooltips(
                {_RATE: "click rate from", _MEAN: "attractiveness from", "documents": "documents"},
                {_RATE: ".0%", _MEAN: ".0%", "documents": ",d"},
            ),
        )
    )
    diagonal = (
        alt.Chart(data_of(pl.DataFrame({_RATE: [0.0, 1.0], _MEAN: [0.0, 1.0]})))
        .mark_line(style="reference")
        .encode(x=x, y=y)
    )
    return spec_of(squares, diagonal, height=320)
