"""The table of a fit for each value of a column."""

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.cli.report.summary import interval_in_words, number_in_words
from posbias.cli.report.table import Column, Printed, PrintedTable, first, more
from posbias.core.wording import shown


@dataclass(frozen=True)
class FittedValue:
    """What became of a value.

    Attributes:
        value: as the log has it; None where the column is empty.
        folder: where its result lies, in that of the command; None if nothing could be estimated.
        impressions: how many there are, or the sum of their weights.
        clicks: likewise.
        cells: how many cells it has.
        identified: how many of them have a propensity.
        poorly_known: how many of those have a relative standard error above a quarter.
        why: why it is not reliable; None if it is.
    """

    value: object
    folder: str | None
    impressions: float
    clicks: float
    cells: int = 0
    identified: int = 0
    poorly_known: int = 0
    why: str | None = None


Middle = tuple[float | None, float | None, float | None]
"""A propensity and its interval."""


def table(column: str, fitted: Sequence[FittedValue], position: int, middle: Sequence[Middle]) -> list[Printed]:
    """A row for each value: what it counts, how many cells have a propensity, and whether they can be relied upon.

    Args:
        column: that tells the fits apart.
        fitted: the values.
        position: of whose propensity each row says something.
        middle: the propensity there, value by value.
    """
    largest = sorted(zip(fitted, middle, strict=True), key=lambda both: -both[0].impressions)
    rows, known = [one for one, _ in largest], [of_one for _, of_one in largest]
    reliable = sum(one.why is None for one in fitted)
    title = f"a fit for each {shown(column)}: {reliable:,} of {len(fitted):,} reliable"
    names = ("(empty)" if one.value is None else shown(str(one.value)) for one in rows)
    intervals = (interval_in_words(low, high) for _, low, high in known)
    columns = (
        Column(shown(column), first(names), label=True),
        Column("impressions", first(f"{one.impressions:,.0f}" for one in rows), folded="impres-\nsions"),
        Column("clicks", first(f"{one.clicks:,.0f}" for one in rows)),
        Column("propensities", first(f"{one.identified} of {one.cells}" for one in rows), folded="propen-\nsities"),
        Column(f"at {position}", first(number_in_words(value) for value, _, _ in known)),
        Column("95 % interval", first(intervals), folded="95 %\ninterval", beside=True, spare=1),
        Column("", first("reliable" if one.why is None else one.why for one in rows), text=True),
    )
    return [title, PrintedTable(columns, more(len(rows), "values in manifest.json, at `for_each`"))]
