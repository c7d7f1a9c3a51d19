"""What tests of learners share: learning without a command line, and slopes by small steps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from learning_logs import draw
from present import present

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.choices import LearningOptions
from posbias.core.learners.learning import Learned, LearningData, Pages, get_learner
from posbias.core.learners.models import RowModel

OPTIONS = LearningOptions(trees=60, learning_rate=0.1, row_share=1.0)


def learn(name: str, data: LearningData, **more: Any) -> Learned:  # noqa: ANN401 - fields of the options
    """What a learner makes of a log."""
    return get_learner(name).learn(data, replace(OPTIONS, **more), lambda: None)


def scores(learned: Learned, rows: Floats) -> Floats:
    """The scores of rows of features."""
    assert isinstance(learned.model, RowModel)
    return learned.model.scores(rows)


def slope(loss: Callable[[Floats], float], at: Floats, number: int, step: float = 1e-5) -> float:
    """The derivative of a loss by one of its arguments."""
    up, down = at.copy(), at.copy()
    up[number] += step
    down[number] -= step
    return (loss(up) - loss(down)) / (2 * step)


Numbers = list[list[int]]


def with_pages(data: LearningData, pages: Numbers, cells: Numbers, clicks: Numbers) -> LearningData:
    """A log with other pages: the documents, the cells and the clicks of each."""
    start = np.cumsum([0, *map(len, pages)])
    shown, places = (np.array([number for page in numbers for number in page]) for numbers in (pages, cells))
    clicked = np.array([click for page in clicks for click in page], np.float64)
    return replace(data, pages=Pages(start, shown, places, clicked))


def few_pages() -> LearningData:
    """Pages of different lengths, of documents 0 to 7; one without a click, one with two."""
    pages = [[0, 1, 2], [3, 1, 0, 2, 5], [4, 6], [7, 2, 5], [5, 2, 7]]
    clicks = [[0, 1, 0], [1, 0, 0, 1, 0], [0, 0], [0, 0, 1], [1, 0, 0]]
    return with_pages(draw(), pages, [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1], [0, 1, 2], [0, 2, 4]], clicks)


def page_of(data: LearningData) -> list[tuple[Integers, Integers, Floats]]:
    """Documents, cells and clicks of each page."""
    pages = present(data.pages)
    return [
        (pages.document[first:last], pages.cell[first:last], pages.click[first:last])
        for first, last in zip(pages.start[:-1].tolist(), pages.start[1:].tolist(), strict=True)
    ]
