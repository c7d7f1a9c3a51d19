"""A result of `posbias fit` or `run` as one object."""

from dataclasses import dataclass
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.choices import OnBadRows, Source
from posbias.core.errors import UsageError
from posbias.core.schema import Roles
from posbias.core.training.weights import WeightOptions
from posbias.io.browsing.fits import CLICK_MODEL, ClickModelFit, click_model_in
from posbias.io.browsing.fits import FILES as FILES_OF_A_CLICK_MODEL
from posbias.io.fits.read import PreviousFit, fit_in
from posbias.io.notebooks.frames import FrameT, Names, name_or_none, names
from posbias.io.places.locations import location
from posbias.io.results.stored import open_stored
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fit: its tables, its manifest, and weights by it.

    Attributes:
        where: its directory, or the frame that it was made of.
        manifest: what was read and counted, how the fit went, verdicts and warnings, as `manifest.json` holds it.
        tables: those that it has, by the name of the file.
        fitted: what weights are made from.
    """

    where: str
    manifest: dict[str, Any]
    tables: dict[str, pl.LazyFrame]
    fitted: PreviousFit | ClickModelFit

    @property
    def propensities(self) -> pl.DataFrame:
        """The table `propensities.parquet`: a row per cell, `propensity` relative to the reference cell = 1.

        Null where it is not known; `reason` says why. The columns are those of io/results/README.md.

        Raises:
            UsageError: a click model without cells was fitted (dbn, sdbn and the like).
        """
        return self._table(PROPENSITIES).collect()

    @property
    def attractiveness(self) -> pl.LazyFrame:
        """The table `attractiveness.parquet`: a row per (query, document), P(click | examined) in [0, 1].

        Lazy, as it may be large: it is read from the result's directory when it is collected.

        Raises:
            UsageError: the click model has no attractiveness.
        """
        return self._table(ATTRACTIVENESS)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the command warned of: read it before the numbers."""
        return tuple(self.manifest.get("warnings", ()))

    def weights_for(  # noqa: PLR0913 - each is an option of the command
        self,
        frame: FrameT,
        *,
        session: Names = None,
        query: Names = None,
        doc: Names = None,
        position: str | None = None,
        click: str | None = None,
        weight_column: str | None = None,
        propensity: Source = "smooth",
        min_propensity: float = 0.01,
        self_normalize: bool = False,
        unidentified: OnBadRows = "drop",
        on_bad_rows: OnBadRows = "error",
    ) -> FrameT:
        """The frame with two more columns, `propensity` and `weight`, by the code of `posbias weight`.

            weight of a click in cell e: 1 / max(propensity of e, min_propensity)        of an unclicked impression: 1

        A cell is the position, with the fit's contexts, or with the last click above (UBM); a click model without cells
        weighs by the examination of each row. These are the weights of `posbias weight --layout session`, to the bit.

        Args:
            frame: a row per impression: a Polars frame (lazy or not), a pandas frame or an Arrow table. It must hold
                query, document, position (from 1) and click, the contexts of the fit under their names, and the session
                for UBM and click models. Whole pages, as a click above may matter; the rows may be in any order.
            session: the column of it, or several that make up one id; by default one of a well-known name.
            query: likewise.
            doc: likewise.
            position: its column.
            click: its column.
            weight_column: how many impressions a row stands for (> 0); weights are multiplied by it.
            propensity: `smooth` takes the smooth curve where the fitted propensity is too uncertain; `fitted` never.
            min_propensity: the least propensity that is divided by, in (0, 1], relative to the reference cell.
            self_normalize: whether the weights of all clicks of the frame are scaled to a mean of 1.
            unidentified: whether clicks in cells without a propensity get no weight (drop), or are an error.
            on_bad_rows: whether rows that break the rules for logs are an error, or get no weight (drop).

        Returns:
            The same kind of frame: its columns, the order of its rows and their index as they were, then the two new
            columns (Float64). Both are null (NaN in pandas) where a position has no propensity, where it is beyond the
            `--max-position` of the fit, and in dropped rows; an unclicked row without a propensity has weight 1, as
            long as its position was counted.

        Raises:
            UsageError: what was handed in is no such frame, an option is out of range, or the click model has nothing
                to weigh rows by.
            SchemaError: a column is missing, is there twice or holds other types than the fit; rows break the rules;
                `propensity` or `weight` is there already; the frame has no rows, or is a log of clicks alone.
            IdentifiabilityError: clicks have no propensity, and `unidentified` is error.
        """
        from posbias.io.notebooks.weights import weigh  # noqa: PLC0415 - tables need no engine

        roles = Roles(
            names("session", session),
            names("query", query),
            names("doc", doc),
            name_or_none("position", position),
            name_or_none("click", click),
            name_or_none("weight-column", weight_column),
        )
        options = WeightOptions(min_propensity, self_normalize)
        return weigh(frame, self.fitted, roles, options, propensity, on_bad_rows, unidentified)

    def __repr__(self) -> str:
        warned = len(self.warnings)
        return f"<{type(self).__name__} of {self.where}: {self.model}, {warned} warning{'s' if warned != 1 else ''}>"

    @property
    def model(self) -> str:
        """The name of the click model, as `--model` takes it."""
        return self.fitted.model.name if isinstance(self.fitted, ClickModelFit) else self.fitted.plan.model.name

    def _table(self, name: str) -> pl.LazyFrame:
        if name not in self.tables:
            raise UsageError(f"{self.where}: --model {self.model} has no {name}.")
        return self.tables[name]


def open_result(path: str | PathLike[str]) -> FitResult:
    """The result that `posbias fit` or `posbias run` wrote into a directory.

    Args:
        path: the directory, on disk.

    Raises:
        LogFormatError: it is not there, holds no result, or one that is damaged or was edited.
        UsageError: it is no name of a directory, holds another result than a fit, or lies in an object store.
    """
    try:
        name = fsdecode(path)
    except TypeError:
        name = ""
    if not name:
        raise UsageError(f"open_result({path!r}): give the name of a directory, as text or as a path.")
    place = location(name)
    if not isinstance(place, Path):
        raise UsageError(f"{place}: lies in an object store. Copy the directory to disk, and open that.")
    return read_result(place.absolute(), str(place))


def read_result(folder: Path, where: str) -> FitResult:
    """The result in a directory.

    Args:
        folder: the directory.
        where: what the result is called.

    Raises:
        PosbiasError: as above.
    """
    with open_stored(folder, {*FILES_OF_A_FIT, *FILES_OF_A_CLICK_MODEL}) as stored:
        fitted = click_model_in(stored) if CLICK_MODEL in stored.content else fit_in(stored, where)
        tables = {
            name: pl.scan_parquet(path, glob=False, hive_partitioning=False)
            for name in (PROPENSITIES, ATTRACTIVENESS)
            if (path := folder / f"{name}.parquet").exists()
        }
        return FitResult(where, stored.content, tables, fitted)
