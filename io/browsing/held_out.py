"""Which sessions a click model is fitted to, and which it is judged by."""

from typing import Any

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import PERIOD, POSITION, SESSION
from posbias.core.training.split import in_validation
from posbias.io.engines.engine import Parts

_N = "posbias_sessions"


def all_pages(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """All impressions."""
    return impressions


def up_to_position(impressions: pl.LazyFrame, deepest: int) -> pl.LazyFrame:
    """The impressions of each page down to a position."""
    return impressions.filter(pl.col(POSITION) <= deepest)


def by_session(impressions: pl.LazyFrame, share: float, *, held_out: bool) -> pl.LazyFrame:
    """The share of sessions that is held out, by a hash of the id that is the same on every machine; or the others."""
    sessions = impressions.select(SESSION).unique().collect(engine="streaming")
    chosen = sessions.filter(in_validation(sessions[SESSION], share)).lazy()
    how = "semi" if held_out else "anti"
    return impressions.join(chosen, on=SESSION, how=how, nulls_equal=True, maintain_order="left")


def by_time(impressions: pl.LazyFrame, start: Any, *, held_out: bool) -> pl.LazyFrame:  # noqa: ANN401 - as `last_share`
    """The sessions from a period on, which are held out, or the others; a session has its first impression's time."""
    time = pl.col(PERIOD).min().over(SESSION)
    return impressions.filter(time >= start if held_out else time < start)


def last_share(parts: Parts, share: float) -> Any:  # noqa: ANN401 - a date, or a time of day
    """The start of the period with which about the last share of the sessions begins.

    Raises:
        SchemaError: there is but one period.
    """
    counts = pl.concat(parts.map(_sessions_by_period)).group_by(PERIOD).sum().sort(PERIOD, descending=True)
    if counts.height < 2:  # noqa: PLR2004 - one to learn from, one to be judged by
        raise SchemaError("--split time: all sessions have one time. Use --split session, or --test FILE.")
    upto = (counts[_N].cum_sum() / counts[_N].sum()).to_list()
    starts: list[Any] = counts[PERIOD].to_list()
    enough = next(number for number, reached in enumerate(upto) if reached >= share)
    return starts[min(enough, counts.height - 2)]


def _sessions_by_period(_: int, impressions: pl.LazyFrame) -> pl.DataFrame:
    first = impressions.group_by(SESSION).agg(pl.col(PERIOD).min())
    return first.group_by(PERIOD).agg(pl.len().alias(_N)).collect(engine="streaming")
