"""The account of a log's rows, as it stands in manifests: how many were read, used and rejected, and why."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RawLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the lines of raw files, or of the rows of a table of events."""

    lines: Count
    used: dict[str, Count]
    not_used: dict[str, Count]
    other_actions: dict[str, Count]
    positions: dict[str, Count] | UnsetType = UNSET


class ClicksAtPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks that name one position."""

    read: Count
    lost: Count


class Clicks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks that stood apart from impressions; those lost have no impression."""

    read: Count
    joined: Count
    repeated: Count
    lost: dict[str, Count]
    by_position: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,2}\Z")], ClicksAtPosition]

    def __post_init__(self) -> None:
        """Find what contradicts itself."""
        if self.read != self.joined + self.repeated + sum(self.lost.values()):
            raise ValueError("clicks do not add up to those that were read")


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows read, rejected per reason, and used; what they were made of, by the name of the source."""

    read: Count
    used: Count
    rejected: dict[str, Count]
    clicks: Clicks | UnsetType = UNSET
    clicks_without_impression: Count | UnsetType = UNSET  # in statistics that were collected before there was `clicks`
    ubi: RawLines | UnsetType = UNSET
    raw: dict[str, RawLines] | UnsetType = UNSET

    @classmethod
    def total(cls, several: Sequence["Rows"]) -> "Rows":
        """Rows of several logs together; what only some of them count, as far as these do."""
        return msgspec.convert(_add_up([msgspec.to_builtins(rows) for rows in several]), cls)


def _add_up(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for count in counts:
        for key, rows in count.items():
            if isinstance(rows, dict):
                total[key] = _add_up([total.get(key, {}), cast("dict[str, Any]", rows)])
            else:
                total[key] = total.get(key, 0) + rows
    return total
