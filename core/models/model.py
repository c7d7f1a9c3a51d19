"""What a click model says of itself."""

from abc import abstractmethod
from typing import ClassVar

import narwhals as nw
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.registry import Plugin
from posbias.core.schema import POSITION


class FactorisedModel(Plugin):
    """A click model in which examination depends on a cell and attractiveness on the pair.

    Attributes:
        reference: the paper that introduced it.
        cell_columns: the columns that make up a cell, whole numbers, the position first.
        needs_session: whether a cell depends on what else happened on the page.
    """

    reference: ClassVar[str]
    cell_columns: ClassVar[tuple[str, ...]] = (POSITION,)
    needs_session: ClassVar[bool] = False

    @property
    def beside_position(self) -> str:
        """What else than its position tells a cell, in words; empty where nothing does."""
        columns = [name for name in self.cell_columns if name != POSITION]
        return f"{' and '.join(columns)} (--model {self.name})" if columns else ""

    @abstractmethod
    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add the cell columns to impressions (session, position, click, ...)."""

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same for impressions in memory, whose rows may change their order, where that can be done faster."""
        return self.with_cells(nw.from_native(impressions.lazy())).to_native().collect()
