"""Work on several blocks of a table at once: NumPy's and SciPy's inner loops let other threads run meanwhile."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

_THREADS = 2  # each holds a block: more would cost memory, and the interpreter lets only so many run at once


def at_once(work: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """What a function makes of each item, in their order; of a single one in this thread."""
    todo = list(items)
    if len(todo) <= 1:
        yield from map(work, todo)
        return
    with ThreadPoolExecutor(max_workers=_THREADS) as threads:
        yield from threads.map(work, todo)
