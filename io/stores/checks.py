"""Whether the parts of statistics are those that their manifest names, whole and unchanged."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import polars as pl

from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.io.engines.engine import Found, Item
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import FileState, checksum, chunks_of, open_plain, state_of
from posbias.io.stores.manifest import Amounts, add_totals, same_totals
from posbias.io.stores.segments import PARTS, Part, Segment, scan_part


class Each(Protocol):
    """An engine's way to do the same with each item, in this process or on a cluster."""

    def __call__(self, items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
        """What the function makes of each item, in their order."""
        ...


def one_by_one(items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
    """What a function makes of each item, in this process."""
    return map(work, items)


@dataclass(frozen=True)
class Expected:
    """What must be found in the files of a segment."""

    place: Location  # the statistics, as they are called in messages
    segment: Segment  # its files, and what they add up to
    types: dict[str, str]  # the type of each column, as text, in the order of the columns


Check: TypeAlias = Callable[[Sequence[Expected], Each], None]


def check_parts(folder: Path, segments: Sequence[Segment]) -> dict[Path, FileState]:
    """What the manifest names must be there, of the right size, and nothing else of such a name.

    Returns:
        Which files they are.

    Raises:
        StatisticsError: a part is lost, truncated, no plain file, or of other statistics.
    """
    parts = [part for segment in segments for part in segment.parts]
    states = {part.path: _state_of_part(part) for part in parts}
    foreign = sorted(path.name for path in folder.glob(PARTS) if path not in states)
    if foreign:
        raise StatisticsError(
            f"{folder / foreign[0]}: is not part of these statistics: their manifest does not list it. Remove it; "
            "to merge statistics, name their directories."
        )
    return states


def check_bytes(expected: Sequence[Expected], each: Each) -> None:
    """Read every part: its bytes must be those that were written. That is all it takes to link it.

    Raises:
        StatisticsError: they are not.
    """
    for _ in _inspected(expected, each, _intact):
        pass


def check_contents(expected: Sequence[Expected], each: Each) -> None:
    """Read every part: its bytes must be those that were written, and its counts what the manifest says.

    Raises:
        StatisticsError: they are not.
    """
    for entry, totals in _inspected(expected, each, _totals_of):
        if not same_totals(entry.segment.totals, add_totals(totals)):
            raise StatisticsError(
                f"{entry.place}: the parts from {entry.segment.parts[0].path.name} on hold "
                f"{_in_words(add_totals(totals))}, and the manifest says {_in_words(entry.segment.totals)}. Collect "
                "these statistics again."
            )


def _inspected(
    expected: Sequence[Expected], each: Each, inspect: Callable[[tuple[Part, dict[str, str]]], Amounts | str]
) -> Iterator[tuple[Expected, list[Amounts]]]:
    """What was found in the parts of each segment that has some."""
    # By their full names: who inspects may work in another directory.
    found = each([(_from_anywhere(part), entry.types) for entry in expected for part in entry.segment.parts], inspect)
    for entry in expected:
        totals = list[Amounts]()
        for part, of_part in zip(entry.segment.parts, found, strict=False):
            if isinstance(of_part, str):
                raise StatisticsError(f"{entry.place / part.path.name}: {of_part} Collect these statistics again.")
            totals.append(of_part)
        if totals:
            yield entry, totals


def _from_anywhere(part: Part) -> Part:
    return replace(part, path=part.path.absolute())


def _intact(item: tuple[Part, dict[str, str]]) -> Amounts | str:
    """Nothing, or what is wrong with a part. It may run on another machine."""
    return _fault_of(*item) or {}


def _totals_of(item: tuple[Part, dict[str, str]]) -> Amounts | str:
    """What the rows of a part add up to, or what is wrong with it. It may run on another machine."""
    fault = _fault_of(*item)
    if fault:
        return fault
    totals = scan_part(item[0]).select(pl.len().alias("rows"), pl.col(IMPRESSIONS, CLICKS).sum())
    try:
        return totals.collect().row(0, named=True)
    except pl.exceptions.PolarsError as error:
        return _unreadable(error)


def _fault_of(part: Part, types: dict[str, str]) -> str | None:
    try:
        with open_plain(part.path) as file:
            found = checksum(chunks_of(file))
        if found != part.checksum:
            return "is damaged: its bytes are not those that were written."
        columns = scan_part(part).collect_schema()
    except OSError as error:
        return f"cannot be read: {error.strerror}."
    except pl.exceptions.PolarsError as error:
        return _unreadable(error)
    if {name: str(of_type) for name, of_type in columns.items()} != types:
        return "holds other columns than the manifest says."
    return None


def _unreadable(error: pl.exceptions.PolarsError) -> str:
    return f"cannot be read as Parquet: {str(error).splitlines()[0]}."


def _in_words(totals: Amounts) -> str:
    return f"{totals['rows']:,} rows, {totals['impressions']:,} impressions and {totals['clicks']:,} clicks"


def _state_of_part(part: Part) -> FileState:
    try:
        state = state_of(part.path)
    except FileNotFoundError as error:
        raise StatisticsError(f"{part.path}: this part of the statistics is missing. Collect them again.") from error
    except OSError as error:
        raise StatisticsError(
            f"{part.path}: this part of the statistics cannot be read: {error.strerror}. Collect them again."
        ) from error
    if state.bytes != part.bytes:
        what = "is truncated" if state.bytes < part.bytes else "has been replaced"
        raise StatisticsError(
            f"{part.path}: {what}: it has {state.bytes:,} bytes, and was written with {part.bytes:,}. Collect it again."
        )
    return state
