"""Counts that come piece by piece as one table, without keeping all pieces until the end."""

from collections.abc import Callable, Iterable, Sequence

import polars as pl


def running_total(
    pieces: Iterable[pl.DataFrame], add_up: Callable[[Sequence[pl.DataFrame]], pl.DataFrame]
) -> pl.DataFrame:
    """What `add_up` makes of all pieces; it is given a few at a time, of which the first is the total so far.

    Pieces wait until they hold more rows than that total: it is copied a logarithmic number of times, and never more
    than twice its rows and a piece wait.

    Args:
        pieces: one at least.
        add_up: adds the counts of equal keys.
    """
    found = list[pl.DataFrame]()
    for piece in pieces:
        found.append(piece)
        if sum(waiting.height for waiting in found[1:]) > found[0].height:
            found = [add_up(found)]
    return found[0] if len(found) == 1 else add_up(found)
