"""Which column plays which role.

Where names say nothing, it is guessed from values: positions climb down a page, a click is yes or no, documents change.
Rows are taken in their order: those of a page stand together, from top to bottom, as logs are mostly written.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import polars as pl

from posbias.core.column_names import CLIENTS, TIMES, plain, words
from posbias.core.errors import RoleError
from posbias.core.role_search import NAMES_IN_EXPORTS
from posbias.core.schema import ALIASES, CLICK, DOC, FLAGS, POSITION, QUERY, SESSION
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.scan import reading, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.written_values import find_click_words

_MOSTLY = 0.95
_LONGEST_PAGE = 1000
_WORDS = 2  # for a click and none
AS_CLICKS = frozenset(("0", "1", "0.0", "1.0", "true", "false"))
"""What a column of clicks holds, as text."""


def guess_by_values(rows: pl.DataFrame, roles: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """The columns that probably play roles, by what they hold; roles without a guess are left out.

    Args:
        rows: the first rows of a log.
        roles: those that are looked for.
        known: the column of each role that is known.
    """
    free = [
        name
        for name, dtype in rows.schema.items()
        if name not in known.values()
        and (dtype.is_numeric() or dtype.is_temporal() or isinstance(dtype, pl.String | pl.Boolean | pl.Categorical))
    ]
    found = dict[str, str]()
    if POSITION in roles:
        climbing = max(free, key=lambda name: _climbing(rows[name]), default="")
        found |= {POSITION: climbing} if climbing and _climbing(rows[climbing]) >= _MOSTLY else {}
    if CLICK in roles:
        flags = [name for name in free if name not in found.values() and _is_flag(rows[name])]
        found |= {CLICK: flags[0]} if len(flags) == 1 else {}
    position = found.get(POSITION, known.get(POSITION))
    if position is None or _climbing(rows[position]) < _MOSTLY:  # without the order of pages, nothing tells the others
        return found
    left = rows.select(name for name in free if name not in found.values() and not rows.schema[name].is_float())
    return found | _keys(left, _goes_on(rows[position]), roles)


def _keys(rows: pl.DataFrame, goes_on: pl.Series, roles: Collection[str]) -> dict[str, str]:
    """What tells sessions, queries and documents apart: the latter change within a page, the former do not."""
    n_pages = int((~goes_on).sum())
    stays = {name: _share((rows[name] == rows[name].shift(1)).filter(goes_on)) for name in rows.columns}
    different = {name: rows[name].n_unique() for name in rows.columns}
    fixed = [name for name in rows.columns if stays[name] >= _MOSTLY and different[name] > 1]
    candidates = {
        SESSION: [name for name in fixed if different[name] >= _MOSTLY * n_pages],
        QUERY: [name for name in fixed if different[name] < _MOSTLY * n_pages],
        DOC: [name for name in rows.columns if stays[name] <= 1 - _MOSTLY and different[name] < _MOSTLY * rows.height],
    }
    return {
        role: max(names, key=lambda name: different[name])
        for role, names in candidates.items()
        if role in roles and names
    }


def _numbers(column: pl.Series) -> pl.Series:
    return column.cast(pl.String).cast(pl.Float64, strict=False)


def _goes_on(position: pl.Series) -> pl.Series:
    """Rows that stand further down than the one before: on the same page."""
    numbers = _numbers(position)
    return (numbers > numbers.shift(1)).fill_null(value=False)


def _climbing(column: pl.Series) -> float:
    """Share of the rows that are one below the row before, or at the top: of positions on pages nearly all."""
    numbers = _numbers(column)
    match numbers.min(), numbers.max():
        case (0.0 | 1.0) as top, float() as last if top + 1 < last <= _LONGEST_PAGE and not numbers.null_count():
            return _share((numbers - numbers.shift(1) == 1) | (numbers == top))
        case _:
            return 0.0


def _is_flag(column: pl.Series) -> bool:
    values = {value.lower() for value in column.cast(pl.String).drop_nulls().unique().to_list()}
    is_flag = values <= AS_CLICKS and not values <= {"0", "0.0", "false"}
    return bool(values) and (is_flag or (len(values) <= _WORDS and find_click_words(values) is not None))


def _share(holds: pl.Series) -> float:
    return float(holds.fill_null(value=False).mean() or 0.0)  # pyright: ignore[reportArgumentType]


NO_QUERY = Finding(
    "no column looks like the query: each document is compared with itself", ("--no-query",), certain=False
)
"""What is said where there is nothing to compare documents by."""

_NO_GUESS = "COLUMN"
_ROWS_OF_GUESSES = 20_000
_ROLE_OF = {flag: role for role, flag in FLAGS.items() if role in ALIASES}
_PAGE_IDS = ("serpid", "searchid", "pageviewid", "impressionid")
"""Of several columns that could be the session, that of a page."""


def find_roles(opened: Callable[[], Log], sources: Callable[[], Sequence[Source]]) -> list[Finding]:
    """What the names of columns say of their roles, where well-known names do not say it; else what their values say.

    Args:
        opened: opens the log.
        sources: finds its files.

    Raises:
        RoleError: a role has no column, and there is nothing to guess one from.
        PosbiasError: the log cannot be opened.
    """
    try:
        guessed = opened().guessed
    except RoleError as error:
        words = _chosen(error.options, error.several)
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        unknown = [flag for flag, column in pairs.items() if column == _NO_GUESS and flag in _ROLE_OF]
        by_values = _by_values(sources(), unknown, pairs) if unknown else {}
        pairs |= by_values
        lacking = [flag for flag, column in pairs.items() if column == _NO_GUESS]
        has_none = lacking == [FLAGS[QUERY]] and not _left(sources(), pairs.values())
        without_query = [NO_QUERY] if has_none else []
        if not pairs or (lacking and not without_query):
            raise
        return [
            _guess(flag, column, error.several.get(flag, ()), by_values=flag in by_values)
            for flag, column in pairs.items()
            if column != _NO_GUESS
        ] + without_query
    return [_guess(flag, column) for flag, column in guessed]


def _left(sources: Sequence[Source], guessed: Collection[str]) -> list[str]:
    """Columns that could hold a query: they play no role, and are no pages, users, times or fractions."""
    with reading(sources):
        schema = schema_of(sources[0])
    others = [names for role in ALIASES if role != QUERY for names in (ALIASES[role], NAMES_IN_EXPORTS[role])]
    known = {plain(name) for names in others for name in names} | CLIENTS
    return [
        name
        for name, dtype in schema.items()
        if name not in guessed
        and plain(name) not in known
        and not TIMES.intersection([plain(name), *words(name)[-1:]])
        and (dtype.is_integer() or isinstance(dtype, pl.String | pl.Categorical | pl.Enum))
    ]


def _by_values(sources: Sequence[Source], flags: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Columns by flag, guessed from the first rows of the first file; those of well-known names are left out."""
    with reading(sources):
        rows = scan_sources(sources[:1]).head(_ROWS_OF_GUESSES).collect(engine="streaming")
    roles = [_ROLE_OF[flag] for flag in flags]
    taken = {
        role: name
        for role, names in ALIASES.items()
        if role not in roles
        for name in rows.columns
        if plain(name) in map(plain, names)
    }
    taken |= {_ROLE_OF[flag]: column for flag, column in known.items() if column != _NO_GUESS and flag in _ROLE_OF}
    wanted = roles if SESSION in taken else [*roles, SESSION]
    found = guess_by_values(rows, wanted, taken)
    return {FLAGS[role]: column for role, column in found.items()}


def _guess(flag: str, column: str, several: Sequence[str] = (), *, by_values: bool = False) -> Finding:
    others = [name for name in several if name != column]
    beside = f", not {' or '.join(map(repr, others))}" if others else ""
    beside += ", by what it holds" if by_values else ""
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
