"""How columns are called: names compared without regard to case, `_` and `-`, and what an unknown one may mean."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

_MARKS = re.compile(r"[_-]+")
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NEARLY = 0.85
"""Likeness of a name to a known one (difflib) from which it is taken for a typing error."""


CLIENTS = frozenset(
    (
        *("client", "clientid", "user", "userid", "userpseudoid", "customer", "customerid", "visitor", "visitorid"),
        *("cookie", "cookieid", "deviceid", "ip", "ipaddress", "remoteaddr"),
        *("account", "accountid", "member"),
    )
)
"""What columns are called that say who looked at a page, without case, `_` and `-`."""

TIMES = frozenset(
    (
        *("timestamp", "time", "date", "datetime", "day", "ts", "eventtime", "eventdate", "eventtimestamp"),
        *("createdat", "shownat", "searchtime", "querytime", "servertime", "receivedat", "occurredat"),
    )
)
"""What columns are called that say when it was shown, likewise."""

_OF_LISTS = "(serp|search|results?|query|list|current)*"
_PAGE = re.compile(f"{_OF_LISTS}page(number|no|num|nr|index|idx)?")
_OFFSET = re.compile(f"{_OF_LISTS}(page)?(offset|from|start|startindex|skip)")
_RANKS = frozenset(("rank", "ranks", "index", "idx", "position", "positions", "pos", "ordinal", "slot"))
"""Words of a name that says where something stands."""


def plain(name: str) -> str:
    """A name without what people write differently, e.g. `SessionID`, `session-id`, `session_id` -> `sessionid`."""
    return _MARKS.sub("", name).lower()


def endings(path: str) -> list[str]:
    """The ends of a path, as plain names, e.g. `results.document.id` -> id, documentid; none of what is no path."""
    parts = path.split(".")
    return [plain("".join(parts[first:])) for first in range(len(parts) - 1, 0, -1)]


def words(name: str) -> list[str]:
    """The words of a name, e.g. `wasClicked` -> was, clicked; `hits.product_SKU` -> hits, product, sku."""
    return [word.lower() for word in _BETWEEN_WORDS.split(name) if word]


def says_page(name: str) -> bool:
    """Whether a name, or the end of a path, is that of the number of a page of results, e.g. `serp_page`, `pageNo`."""
    return any(_PAGE.fullmatch(end) for end in (plain(name), *endings(name)))


def says_offset(name: str) -> bool:
    """Whether a name, or the end of a path, is that of the number of results above a page, e.g. `offset`, `from`."""
    return any(_OFFSET.fullmatch(end) for end in (plain(name), *endings(name)))


def says_rank(name: str) -> bool:
    """Whether a name says where something stands, e.g. `clicked.rank`, `clickedIndex`."""
    return not _RANKS.isdisjoint(words(name))


def guesses(
    roles: Sequence[str],
    columns: Sequence[str],
    known: Mapping[str, Collection[str]],
    telling: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """The column that each role is probably played by, by the words of its name. No column plays two.

    Args:
        roles: those that are looked for.
        columns: those that play no role yet.
        known: the well-known names of each role.
        telling: words that a column of each role often has in its name, the most telling first.
    """
    likeness = {
        (role, column): like
        for role in roles
        for column in columns
        if (like := _likeness(column, known[role], telling[role])) > 0
    }
    best_first = sorted((-like, roles.index(role), role, column) for (role, column), like in likeness.items())
    chosen: dict[str, str] = {}
    for _, _, role, column in best_first:
        if role not in chosen and column not in chosen.values():
            chosen[role] = column
    return chosen


def _likeness(column: str, known: Collection[str], telling: Collection[str]) -> float:
    """From 0 to 2: more for a name that is nearly a known one, then for a telling word."""
    near = max(difflib.SequenceMatcher(None, plain(column), plain(name)).ratio() for name in known)
    if near >= _NEARLY:
        return 1 + near
    in_name = {form for word in words(column) for form in (word, word.removesuffix("s"))}
    return max((1 - number / 100 for number, word in enumerate(telling) if word in in_name), default=0)
