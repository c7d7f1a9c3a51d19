"""Tables that add up impressions and clicks, and are read as if a row were one impression: found by their counts."""

import polars as pl

from posbias.core.column_names import plain
from posbias.core.errors import SchemaError
from posbias.core.schema import NAMES_OF_COUNTS
from posbias.io.log.log import Log
from posbias.io.log.scan import reading, scan_sources, schema_of

_IMPRESSIONS, _CLICKS = pl.col("impressions"), pl.col("clicks")


def unused_count(log: Log) -> str | None:
    """A column that is called like a number of impressions and plays no role, where rows have no sessions."""
    if log.raw is not None or log.nesting is not None or log.has_sessions or log.roles.impressions is not None:
        return None
    names = [name for name in schema_of(log.sources[0]) if plain(name) in NAMES_OF_COUNTS]
    return next((name for name in names if name not in log.roles.columns()), None)


def check_no_sums(log: Log) -> None:
    """See that `--click-counts` is not said of a table of sums: it would make one click of all clicks on a row.

    Raises:
        SchemaError: a column goes with the clicks as the impressions that were clicked.
    """
    if not log.request.rules.click_counts or log.nesting is not None or log.click_sources:
        return
    weight = log.roles.weight
    named = weight is not None and plain(weight) in NAMES_OF_COUNTS
    count = weight if named or not log.has_sessions else None
    count = count or unused_count(log)
    if count is None or log.roles.click is None or not are_sums(log, count, log.roles.click):
        return
    instead = f"instead of --click-counts{' and --weight-column' if count == weight else ''}"
    raise SchemaError(
        f"{log.sources[0].path}: {count!r} and {log.roles.click!r} look like sums of impressions and of the clicks on "
        f"them, and --click-counts takes each row for one click at most. Say --impressions {count} --click "
        f"{log.roles.click}, {instead}. If they are none, write the clicks as 0 and 1."
    )


def are_sums(log: Log, impressions: str, clicks: str) -> bool:
    """Whether two columns hold whole numbers, impressions >= clicks, that differ, and some rows several clicks."""
    counts = pl.col(impressions).alias("impressions"), pl.col(clicks).alias("clicks")
    with reading(log.sources):
        found = (
            scan_sources(log.sources)
            .select(count.cast(pl.Float64, strict=False) for count in counts)
            .drop_nulls()
            .select(
                ((_IMPRESSIONS.floor() == _IMPRESSIONS) & (_IMPRESSIONS >= _CLICKS)).all()
                & (_CLICKS > 1).any()
                & (_IMPRESSIONS.min() != _IMPRESSIONS.max())
            )
            .collect(engine="streaming")
        )
    return bool(found.item())
