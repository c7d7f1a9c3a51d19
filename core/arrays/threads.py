"""Parallel work in threads: the inner loops of NumPy, SciPy and Polars release Python's global lock."""

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
    """Return the number of threads: that of Polars, set by `--threads` or `POLARS_MAX_THREADS`."""
    return pl.thread_pool_size()


def thread_map(work: Callable[[_Item], _Output], items: Iterable[_Item], most: int | None = None) -> Iterator[_Output]:
    """Yield the results of a function for each item, in their order; a single item is processed in this thread.

    Context variables of the caller, such as `np.errstate`, hold in all threads.

    Args:
        work: the function.
        items: consumed as needed, so that few are in memory.
        most: number of threads; by default `n_threads()`.
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
                if len(running) > most:  # one item is queued, so that no thread idles
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


@contextmanager
def meanwhile(work: Callable[[], _Output]) -> Generator[Callable[[], _Output]]:
    """Run a function in another thread while the block runs (with a single thread, before the block).

    Yields:
        A function that waits for the result and returns it, or raises the error.
    """
    if n_threads() == 1:
        output = work()
        yield lambda: output
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread.submit(copy_context().run, work).result
