"""What is said of days that do not look like the others, and why a day is kept out of a store."""

from collections.abc import Sequence

from posbias.core.counts.odd_days import Change, DayLook
from posbias.core.log.shifted_pages import ShiftedPages
from posbias.core.wording import counted

_MOST_DAYS = 5
_MOST_POSITIONS = 5


def odd_day_warnings(looks: Sequence[DayLook], others: str) -> list[str]:
    """A sentence for each odd day; beyond a few, their names.

    Args:
        looks: days beside others.
        others: what these are called, in the plural.
    """
    odd = [look for look in looks if look.is_odd]
    said = [
        f"{look.day} does not look like the {others}: {'; '.join(_facts(look))}. Look at its rows."
        for look in odd[:_MOST_DAYS]
    ]
    if len(odd) > _MOST_DAYS:
        rest = [look.day for look in odd[_MOST_DAYS:]]
        said.append(f"{len(rest)} more do not look like the {others}, {rest[0]} to {rest[-1]}.")
    return said


def shifted_pages_warning(found: ShiftedPages) -> str:
    """What is said of pages that count from another base."""
    (first, last), usual = found.span, found.usual
    return (
        f"{found.pages:,} of {counted(found.of, 'pages')} that were looked at go from position {first} to {last}, and "
        f"most from {usual[0]} to {usual[1]}, as if a part of the log counted from another base. Find out where these "
        "pages come from."
    )


def why_kept_out(looks: Sequence[DayLook], limit: float, others: str) -> str | None:
    """Why days are not let into a store, in words; None where all are."""
    reasons = {look.day: reason for look in looks if (reason := _reason(look, limit))}
    if not reasons:
        return None
    day, reason = next(iter(reasons.items()))
    also = f" So are {', '.join(list(reasons)[1:][:_MOST_DAYS])}." if len(reasons) > 1 else ""
    return (
        f"{day} is kept out by --gate {limit:g}, and nothing is written: beside the {others}, {reason}.{also} Look at "
        "its log. If it is right, merge it without --gate."
    )


def _reason(look: DayLook, limit: float) -> str | None:
    """What keeps a day out: what cannot be compared, or a click rate that has changed too much."""
    if look.misplaced or look.without_clicks:
        return "; ".join([*_misplaced(look), *_without_clicks(look)])
    change = look.beyond(limit)
    return None if change is None else f"{_changed(change)}, more than {100 * limit:g} %"


def _facts(look: DayLook) -> list[str]:
    facts = [*_misplaced(look), *_without_clicks(look)]
    if look.far and not look.without_clicks:
        further = len(look.far) - 1
        also = f", and {counted(further, 'further positions')} {_is_or_are(further)} far off as well" if further else ""
        facts.append(f"{_changed(look.far[0])}{also}")
    return facts


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _changed(change: Change) -> str:
    return (
        f"the click rate of position {change.position} is {_percent(change.rate)}, and theirs "
        f"{_percent(change.usual)} ({100 * change.relative:+.0f} %)"
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"


def _without_clicks(look: DayLook) -> list[str]:
    if not look.without_clicks:
        return []
    return [f"it has no clicks, where about {look.expected_clicks:,.0f} are to be expected"]


def _misplaced(look: DayLook) -> list[str]:
    """How positions differ: all of them shifted, or where they start, or which are gone or new."""
    if not look.misplaced:
        return []
    ours, theirs = look.positions, look.usual_positions
    if ours is None or theirs is None or ours[0] == theirs[0]:
        gone = [f"it has hardly anything at {_listed(look.gone)}, where they have"] if look.gone else []
        new = [f"it has impressions at {_listed(look.new)}, where they have hardly any"] if look.new else []
        return gone + new
    shifted = ours[1] - theirs[1] == ours[0] - theirs[0]
    why = ", as if they were shifted or counted from another base" if shifted else ""
    return [f"its positions go from {ours[0]} to {ours[1]}, and theirs from {theirs[0]} to {theirs[1]}{why}"]


def _listed(positions: Sequence[int]) -> str:
    if len(positions) == 1:
        return f"position {positions[0]}"
    more = f" and {len(positions) - _MOST_POSITIONS} more" if len(positions) > _MOST_POSITIONS else ""
    return f"positions {', '.join(map(str, positions[:_MOST_POSITIONS]))}{more}"
