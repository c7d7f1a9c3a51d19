"""Results pages as matrices, as click models take them: one row a page, one column a rank, from the top."""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers


@dataclass(frozen=True)
class PageBatch:
    """N pages of at most L impressions; equal pages stand once, with their number. Shorter ones are padded below.

    A unit is what has parameters of its own: a (query, document), or what else the model's `unit_columns` say. Its
    number is J, one more than the last, where it was not seen when the model was fitted. All but `weight` have the
    shape (N, L).
    """

    unit: Integers  # 0 where padded
    position: Integers  # from 1, rising along a page, with gaps where the log has them; 1 where padded
    click: Flags  # False where padded
    shown: Flags  # False where padded
    weight: Floats  # shape (N,), how often the page occurred, or the sum of its weights
    clicked_above: Integers | None = None  # `previous_click` where rows stand by themselves (see `signatures`)

    @property
    def n_pages(self) -> int:
        """N."""
        return len(self.weight)

    @property
    def n_ranks(self) -> int:
        """L."""
        return self.unit.shape[1]

    @property
    def row_weight(self) -> Floats:
        """The weight of each impression, 0 where padded, shape (N, L)."""
        return self.shown * self.weight[:, np.newaxis]

    @property
    def previous_click(self) -> Integers:
        """The position of the last click above each impression, 0 where there is none, shape (N, L).

        E.g.: position [1, 2, 4, 5], click [0, 1, 1, 0] -> [0, 0, 2, 4].
        """
        if self.clicked_above is not None:
            return self.clicked_above
        clicked = np.maximum.accumulate(np.where(self.click, self.position, 0), axis=1)
        return np.concatenate([np.zeros((self.n_pages, 1), dtype=np.int64), clicked[:, :-1]], axis=1)

    @property
    def above_last_click(self) -> Flags:
        """Whether an impression lies above the last click of its page, shape (N, L)."""
        return self._clicks_from_here - self.click > 0

    @property
    def clicked(self) -> Flags:
        """Whether there is a click on the page of an impression, shape (N, 1)."""
        return self._clicks_from_here[:, :1] > 0

    @property
    def _clicks_from_here(self) -> Integers:
        """The clicks on each impression and below it, shape (N, L)."""
        return np.cumsum(self.click[:, ::-1], axis=1, dtype=np.int64)[:, ::-1]

    def with_clicks(self, click: Flags) -> "PageBatch":
        """The same pages with other clicks."""
        return replace(self, click=click & self.shown)

    def some(self, pages: slice | Integers) -> "PageBatch":
        """Some of the pages."""
        return PageBatch(
            unit=self.unit[pages],
            position=self.position[pages],
            click=self.click[pages],
            shown=self.shown[pages],
            weight=self.weight[pages],
            clicked_above=None if self.clicked_above is None else self.clicked_above[pages],
        )
