"""Several items at once: the same results in the same order, and no more work than was asked for."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from posbias.core.arrays import threads
from posbias.core.arrays.threads import meanwhile, thread_map

SOON = 10.0  # seconds, after which a test that waits has failed


@pytest.mark.parametrize("most", [None, 1, 2, 7])
def test_results_come_in_the_order_of_the_items(most: int | None) -> None:
    assert list(thread_map(lambda item: item * item, range(100), most)) == [item * item for item in range(100)]


def test_nothing_makes_nothing() -> None:
    assert list(thread_map(str, [])) == []


def test_a_single_item_is_worked_on_in_this_thread() -> None:
    assert list(thread_map(lambda _: threading.current_thread(), [0], 4)) == [threading.current_thread()]


def test_so_many_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert list(thread_map(lambda item: (together.wait(SOON), item)[1], range(9), 3)) == list(range(9))


def test_what_numpy_is_told_to_ignore_is_ignored_in_every_thread() -> None:
    with np.errstate(divide="ignore"):
        assert list(thread_map(lambda item: np.float64(1) / item, [np.float64(0)] * 4, 2)) == [np.inf] * 4


def test_items_are_taken_as_they_are_needed() -> None:
    taken = list[int]()

    def items() -> Iterator[int]:
        for item in range(1000):
            taken.append(item)
            yield item

    results = thread_map(str, items(), 2)
    assert next(results) == "0"
    assert len(taken) <= 4
    results.close()  # type: ignore[attr-defined]
    assert len(taken) <= 4


def test_an_error_is_raised_in_its_turn_and_ends_the_work() -> None:
    begun = list[int]()

    def work(item: int) -> int:
        begun.append(item)
        if item == 5:
            raise KeyError(item)
        return item

    results = thread_map(work, range(1000), 2)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(KeyError):
        next(results)
    assert len(begun) < 20


def test_a_function_runs_while_a_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "n_threads", lambda: 2)
    together = threading.Barrier(2)
    with meanwhile(lambda: (together.wait(SOON), "found")[1]) as found:
        together.wait(SOON)
        assert found() == "found"


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_function_beside_a_block_is_as_it_would_be_in_it(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "n_threads", lambda: n_threads)
    with np.errstate(divide="ignore"), meanwhile(lambda: np.float64(1) / np.float64(0)) as found:
        pass

    assert found() == np.inf

    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError), meanwhile(fails) as failed:
        failed()
