"""The days of a store, each counted by itself, so that one can be added, replaced or removed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from posbias.core.errors import StatisticsError
from posbias.io.log.rows import Rows
from posbias.io.stores.segments import Segment
from posbias.io.stores.store import Statistics, open_statistics

_BY_DAY = "day"


def open_store(place: Path) -> Statistics | None:
    """The store in a directory; None where there is nothing yet.

    Raises:
        StatisticsError: what is there is no store of days, is damaged, or is of another version.
    """
    store = open_statistics(place)
    if store is None:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise StatisticsError(f"{place}: holds no store. Name another directory; one that is not there is made.")
        return None
    if store.metadata.plan.period != _BY_DAY:
        kept = "no days" if store.metadata.plan.period is None else "times of day"
        raise StatisticsError(
            f"{place}: keeps {kept}, so that no day can be added to it or taken out of it. Name another directory, and "
            "collect the logs into it, each with its --date."
        )
    if store.metadata.decay is not None:
        raise StatisticsError(
            f"{place}: its counts have decayed, so that no day can be added to it or taken out of it. Name another "
            "directory, collect the logs into it, and give --decay to `posbias fit`."
        )
    return store


def check_new_day(store: Statistics, day: str, sources: Mapping[str, str], *, replaces: bool) -> None:
    """See whether a day may be added to a store. One that is there may come again from the same logs.

    Args:
        store: to which it is added.
        day: which, as text.
        sources: path by digest of its logs.
        replaces: whether it may take the place of the same day from other logs.

    Raises:
        StatisticsError: it is there from other logs, or another day was counted from one of these.
    """
    for segment in store.segments:
        twice = next((digest for digest in sources if digest in segment.sources and segment.days != (day,)), None)
        if twice is not None:
            raise StatisticsError(
                f"{store.path}: has counted {sources[twice]} as {_span(segment)} already: its clicks would be counted "
                f"twice. Name the log of {day}, or remove the other day first (--remove-day)."
            )
    there = {digest for segment in store.segments if day in segment.days for digest in segment.sources}
    if there and there != set(sources) and not replaces:
        raise StatisticsError(
            f"{store.path}: holds {day} already, from other logs than {', '.join(sources.values())}, or before they "
            "changed. To count the day from these, add --replace-day."
        )


def without_day(store: Statistics, day: str) -> Statistics | None:
    """A store without a day, which need not be there; None where nothing is left.

    Raises:
        StatisticsError: the day was counted together with others.
    """
    together = next((entry for entry in store.segments if day in entry.days and len(entry.days) > 1), None)
    if together is not None:
        raise StatisticsError(
            f"{store.path}: {day} was counted together with other days ({_span(together)}), so that it cannot be taken "
            "out. Name another directory, and collect the logs into it, each with its --date."
        )
    left = tuple(segment for segment in store.segments if day not in segment.days)
    if not left:
        return None
    metadata = replace(
        store.metadata,
        sources={digest: path for segment in left for digest, path in segment.sources.items()},
        rows=Rows.total([segment.rows for segment in left]),
    )
    return replace(store, metadata=metadata, segments=left)


def _span(segment: Segment) -> str:
    """The days of a segment, in words."""
    return segment.days[0] if len(segment.days) == 1 else f"{segment.days[0]} to {segment.days[-1]}"
