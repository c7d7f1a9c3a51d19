"""Which column plays which role: guesses are taken, and said to be guesses."""

from collections.abc import Callable, Mapping, Sequence

from posbias.core.column_names import plain
from posbias.core.errors import RoleError
from posbias.core.schema import ALIASES, FLAGS
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log

_NO_GUESS = "COLUMN"
_ROLE_OF = {flag: role for role, flag in FLAGS.items() if role in ALIASES}
_PAGE_IDS = ("serpid", "searchid", "pageviewid", "impressionid")
"""Of several columns that could be the session, that of a page."""


def find_roles(opened: Callable[[], Log]) -> list[Finding]:
    """What the names of columns say of their roles, where well-known names do not say it.

    Args:
        opened: opens the log.

    Raises:
        RoleError: a role has no column, and no name to guess one from.
        PosbiasError: the log cannot be opened.
    """
    try:
        guessed = opened().guessed
    except RoleError as error:
        words = _chosen(error.options, error.several)
        if not words or _NO_GUESS in words:
            raise
        pairs = zip(words[::2], words[1::2], strict=True)
        return [_guess(flag, column, error.several.get(flag, ())) for flag, column in pairs]
    return [_guess(flag, column) for flag, column in guessed]


def _guess(flag: str, column: str, several: Sequence[str] = ()) -> Finding:
    others = [name for name in several if name != column]
    beside = f", not {' or '.join(map(repr, others))}" if others else ""
    said = f"the {flag.removeprefix('--').replace('-', ' ')} is taken to be column {column!r}{beside}"
    return Finding(said, option(flag, column), certain=False)


def option(flag: str, value: str) -> tuple[str, ...]:
    """An option with its value, as words of a command line; a value may begin with a dash."""
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)


def _chosen(options: Sequence[str], several: Mapping[str, Sequence[str]]) -> list[str]:
    """Flags and columns in turn; of several columns the one that is the most usual."""
    words = [word for said in options for word in (said.split("=", 1) if said.startswith("--") else [said])]
    for at, flag in enumerate(words[:-1]):
        if flag in several and words[at + 1] == _NO_GUESS:
            words[at + 1] = min(several[flag], key=lambda name, flag=flag: _rank(name, flag))
    return words


def _rank(name: str, flag: str) -> int:
    known = [plain(alias) for alias in ALIASES[_ROLE_OF[flag]]] if flag in _ROLE_OF else []
    order = [*_PAGE_IDS, *known] if _ROLE_OF.get(flag) == "session" else known
    return order.index(plain(name)) if plain(name) in order else len(order)
