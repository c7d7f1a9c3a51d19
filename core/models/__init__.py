"""Click models: how an impression maps to an examination cell, P(click) = theta_cell * gamma_pair.

A factorised model is one file that declares its name, reference and cell columns, and registers itself here.
"""

from typing import Protocol

import narwhals as nw
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.models.pbm import PositionBasedModel
from posbias.core.models.ubm import UserBrowsingModel
from posbias.core.registry import choose

__all__ = ["FactorisedModel", "get_model", "model_names"]


class FactorisedModel(Protocol):
    """A click model in which examination depends on a cell and attractiveness on the pair."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def reference(self) -> str:
        """The paper that introduced it."""
        ...

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns that make up a cell, the position first."""
        ...

    @property
    def needs_session(self) -> bool:
        """Whether a cell depends on what else happened on the page."""
        ...

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add the cell columns to impressions (session, position, click, ...)."""
        ...

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same for impressions in memory, whose rows may change their order."""
        ...


_MODELS: dict[str, FactorisedModel] = {model.name: model for model in (PositionBasedModel(), UserBrowsingModel())}


def model_names() -> list[str]:
    """The registered models, in the order in which help shows them."""
    return list(_MODELS)


def get_model(name: str) -> FactorisedModel:
    """The model of that name.

    Raises:
        UsageError: there is none.
    """
    return choose("--model", name, _MODELS)
