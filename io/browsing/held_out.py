"""Which sessions a click model is fitted to, and which it is judged by."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import PERIOD, POSITION, SESSION
from posbias.core.training.split import in_validation
from posbias.io.engines.engine import Parts

_N = "posbias_sessions"


@dataclass(frozen=True)
class AllPages:
    """All of them."""

    def __call__(self, impressions: pl.LazyFrame) -> pl.LazyFrame:
        """The impressions as they are."""
        return impressions


@dataclass(frozen=True)
class UpToPosition:
    """All of them, down to a position.

    Attributes:
        deepest: the last position.
    """

    deepest: int

    def __call__(self, impressions: pl.LazyFrame) -> pl.LazyFrame:
        """The upper impressions of each page."""
        return impressions.filter(pl.col(POSITION) <= self.deepest)


@dataclass(frozen=True)
class BySession:
    """By a hash of the session, the same on every machine.

    Attributes:
        share: of the sessions that are held out.
        held_out: whether these are wanted, or the others.
    """

    share: float
    held_out: bool

    def __call__(self, impressions: pl.LazyFrame) -> pl.LazyFrame:
        """The impressions of the wanted sessions."""
        sessions = impressions.select(SESSION).unique().collect(engine="streaming")
        chosen = sessions.filter(in_validation(sessions[SESSION], self.share))
        return impressions.join(
            chosen.lazy(), on=SESSION, how="semi" if self.held_out else "anti", nulls_equal=True, maintain_order="left"
        )


@dataclass(frozen=True)
class ByTime:
    """By time: sessions from some time on are held out.

    Attributes:
        start: of the first period that is held out.
        held_out: whether these are wanted, or the others.
    """

    start: Any
    held_out: bool

    def __call__(self, impressions: pl.LazyFrame) -> pl.LazyFrame:
        """The impressions of the wanted sessions; a session has the time of its first impression."""
        time = pl.col(PERIOD).min().over(SESSION)
        return impressions.filter(time >= self.start if self.held_out else time < self.start)


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
