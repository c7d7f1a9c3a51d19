"""What a manifest may hold, as types: whatever differs is an error that says where.

Only what is read again is here. A field of another name is left alone at the top, where every command says what it
has to say, and is an error further down.
"""

from datetime import date
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.models import get_model, model_names
from posbias.core.periods import Resolution
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import RESERVED
from posbias.io.log.rows import Count
from posbias.io.stores.decay import Decay

Amount = Count | Annotated[float, Meta(ge=0)]
Position = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Probability = Annotated[float, Meta(gt=0, lt=1)]


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted, as `describe_plan` says it."""

    model: str
    max_position: Position | None
    position_bins: tuple[Position, ...]
    context: tuple[str, ...]
    period: Resolution | bool | None
    strata: tuple[str, ...]
    randomized: tuple[str, ...]
    weighted: bool
    clusters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Find what cannot have been counted."""
        if self.model not in model_names():
            raise ValueError(f"there is no model {self.model!r}")
        if self.position_bins and (self.position_bins[0] != 1 or any(b <= a for a, b in pairwise(self.position_bins))):
            raise ValueError("position_bins do not ascend from 1")
        names = [*self.context, *self.strata, *self.clusters]
        if len(set(names)) < len(names) or not RESERVED.isdisjoint(names):
            raise ValueError("context, strata and clusters name a column twice, or one with a meaning of its own")
        self._randomized()

    def plan(self) -> StatisticsPlan:
        """As a plan."""
        return StatisticsPlan(
            model=get_model(self.model),
            max_position=self.max_position,
            position_bins=self.position_bins,
            context=self.context,
            period=("day" if self.period else None) if isinstance(self.period, bool) else self.period,
            strata=self.strata,
            clusters=self.clusters,
            randomized=self._randomized(),
            weighted=self.weighted,
        )

    def _randomized(self) -> tuple[RandomizedRows, ...]:
        try:
            return tuple(RandomizedRows.parse(text) for text in self.randomized)
        except UsageError as error:
            raise ValueError(str(error)) from error


class Decayed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far counts have decayed, as `Decay.describe` says it."""

    factor: Annotated[float, Meta(gt=0, le=1)]
    newest: date

    def decay(self) -> Decay:
        """As a decay."""
        return Decay(self.factor, self.newest)
