"""Work on several items at once: NumPy's, SciPy's and Polars' inner loops let other threads run meanwhile."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain, islice
from typing import TypeVar

import polars as pl

_Item = TypeVar("_Item")
_Output = TypeVar("_Output")


def n_threads() -> int:
    """How many threads there are: as many as Polars has, which `--threads` and `POLARS_MAX_THREADS` say."""
    return pl.thread_pool_size()


def thread_map(work: Callable[[_Item], _Output], items: Iterable[_Item], most: int | None = None) -> Iterator[_Output]:
    """Yield the results of a function for each item, in their order; a single one is computed in this thread.

    What the caller has set for a while, such as `np.errstate`, holds in all threads.

    Args:
        work: the function.
        items: taken as they are needed, so that few wait in memory.
        most: how many are worked on at once; as many as there are threads by default.
    """
    todo, most = iter(items), n_threads() if most is None else most
    first = list(islice(todo, 2))
    if len(first) < 2 or most == 1:  # noqa: PLR2004 - one item, or none
        yield from map(work, chain(first, todo))
        return
    running = deque[Future[_Output]]()
    with ThreadPoolExecutor(max_workers=most) as threads:
        try:
            for item in chain(first, todo):
                running.append(threads.submit(copy_context().run, work, item))
                if len(running) > most:  # one waits, so that no thread does
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


@contextmanager
def meanwhile(work: Callable[[], _Output]) -> Generator[Callable[[], _Output]]:
    """Run a function while the block runs, in another thread; before it, where there is one only.

    Yields:
        A function that waits for the other one and returns its result, or raises its error.
    """
    if n_threads() == 1:
        output = work()
        yield lambda: output
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread.submit(copy_context().run, work).result
