"""Guesses from values, where names say nothing: positions climb down a page, a click is yes or no, documents change.

Rows are taken in their order: those of a page stand together, from top to bottom, as logs are mostly written.
"""

from collections.abc import Collection, Mapping

import polars as pl

from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION
from posbias.io.log.written_values import find_click_words

_MOSTLY = 0.95
_LONGEST_PAGE = 1000
_WORDS = 2  # for a click and none
FLAGS = frozenset(("0", "1", "0.0", "1.0", "true", "false"))
"""What a column of clicks holds, as text."""


def guess_by_values(rows: pl.DataFrame, roles: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """The columns that probably play roles, by what they hold; roles without a guess are left out.

    Args:
        rows: the first rows of a log.
        roles: those that are looked for.
        known: the column of each role that is known.
    """
    free = [name for name in rows.columns if name not in known.values() and _is_plain(rows.schema[name])]
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


def _is_plain(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype.is_temporal() or isinstance(dtype, pl.String | pl.Boolean | pl.Categorical)


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
    is_flag = values <= FLAGS and not values <= {"0", "0.0", "false"}
    return bool(values) and (is_flag or (len(values) <= _WORDS and find_click_words(values) is not None))


def _share(holds: pl.Series) -> float:
    return float(holds.fill_null(value=False).mean() or 0.0)  # pyright: ignore[reportArgumentType]
