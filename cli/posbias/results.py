"""The functions, and the objects that they return: a result with its tables, charts and weights, a look at a log."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from importlib.util import find_spec
from os import PathLike, fsdecode, fspath, getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from posbias.calls import Outcome, carried_out, function_of
from posbias.cards import card, rendered
from posbias.cli.options.groups import LogOptions
from posbias.cli.report.conclusion import in_order, renderable
from posbias.cli.work.checking import conclusion_of, items_of_check
from posbias.core.choices import OnBadRows, Source
from posbias.core.errors import MissingExtraError, UsageError, values_without_markup
from posbias.core.schema import Roles
from posbias.core.training.weights import WeightOptions
from posbias.frame_weights import weigh
from posbias.frames import FRAME, FrameT, Names, checked_names, is_frame, name_or_none
from posbias.io.fits.saved_fit import PreviousFit, fit_in
from posbias.io.jobs.click_model_fits import CLICK_MODEL, ClickModelFit, click_model_in
from posbias.io.jobs.click_model_fits import FILES as FILES_OF_A_CLICK_MODEL
from posbias.io.places.locations import Location, location
from posbias.io.results.conclusions import Conclusion, Reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.result import ResultManifest
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES, read_table

if TYPE_CHECKING:
    import altair as alt

_ROWS = "training/rows/"
_CHART_WIDTH = 560  # pixels
_MOST_NAMED = 2  # inputs


class Result:
    """What a command has written: its tables, its conclusion, charts, and weights by it.

    Where no `output` was named, the files are temporary ones, which go when this object goes.
    """

    place: Location  # the directory, or the prefix in an object store
    manifest: dict[str, Any]  # what was read and counted, how it went, and the conclusion
    files: tuple[str, ...]  # names of what was written

    def __init__(self, place: Location, inputs: Sequence[object] = (), temporary: ExitStack | None = None) -> None:
        """Open a result.

        Args:
            place: where it is.
            inputs: what it was made of; by default what its manifest names.
            temporary: what removes it, if it is a temporary one.

        Raises:
            LogFormatError: it is not there, or is damaged.
        """
        self.place = place.absolute() if isinstance(place, Path) else place
        with open_stored(self.place) as stored:
            self.manifest, self.files = stored.content, tuple(stored.files)
            self._described = stored.typed(ResultManifest)
        self._inputs = tuple(inputs) or self._described.inputs
        self._is_temporary = temporary is not None
        if temporary is not None:
            weakref.finalize(self, _remove, getpid(), temporary)

    @property
    def verdict(self) -> str:
        """The conclusion in a word: `good`, `with care` or `do not use`."""
        return self._described.verdict

    @property
    def conclusion(self) -> str:
        """The conclusion in a sentence."""
        return self._described.conclusion

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What speaks for and against the result: `code`, `severity`, `sentence`, `figures` and `details` of each."""
        return self._described.reasons

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the result: read it before the numbers."""
        return self._described.warnings

    @property
    def propensities(self) -> pl.DataFrame:
        """A row per cell, `propensity` relative to the reference cell = 1; null where it is not known.

        The columns are those of `propensities.parquet` in io/results/README.md; `reason` says why there is none.

        Raises:
            UsageError: the result has none.
        """
        return self.table(PROPENSITIES)

    @property
    def attractiveness(self) -> pl.DataFrame:
        """A row per (query, document): P(click | examined) in [0, 1].

        Raises:
            UsageError: the result has none.
        """
        return self.table(ATTRACTIVENESS)

    @property
    def training(self) -> pl.DataFrame:
        """The rows to train on, of `run` and `weight`: the parts of `training/rows`.

        Raises:
            UsageError: the result has none in Parquet.
        """
        parts = [name for name in self.files if name.startswith(_ROWS) and name.endswith(".parquet")]
        if not parts:
            raise UsageError(f"{self._name}: has no rows to train on in Parquet. `run` and `weight` write some.")
        return self._read(parts)

    def table(self, name: str) -> pl.DataFrame:
        """A table of the result, by the name of its file without `.parquet`.

        Raises:
            LogFormatError: the file is damaged, or has changed.
            UsageError: the result has no such table.
        """
        if f"{name}.parquet" not in self.files:
            tables = ", ".join(each.removesuffix(".parquet") for each in self.files if each.endswith(".parquet"))
            raise UsageError(f"{self._name}: has no {name}. Its tables: {tables or 'none'}.")
        return self._read([f"{name}.parquet"])

    def _read(self, files: Sequence[str]) -> pl.DataFrame:
        with open_stored(self.place, {name.partition("/")[0] for name in files}) as stored:
            return pl.concat([read_table(stored.folder / name) for name in files])

    def plot(self, chart: str = "curve") -> "alt.LayerChart":
        """A chart of the result: `curve` shows propensities with their 95 % intervals.

        Args:
            chart: one of those that `posbias report --chart` draws.

        Raises:
            MissingExtraError: Altair or vl-convert is not installed.
            UsageError: the result has no such chart.
        """
        if find_spec("altair") is None or find_spec("vl_convert") is None:
            raise MissingExtraError.of("a chart", "altair", "vl-convert-python")
        import altair as alt  # noqa: PLC0415 - it may not be installed

        from posbias.io.reports.charts import picture_spec  # noqa: PLC0415 - only for charts
        from posbias.io.reports.contents import figure_named, title_about  # noqa: PLC0415 - only for charts
        from posbias.io.reports.reported import open_reported  # noqa: PLC0415 - only for charts

        with open_reported([self.place]) as results:
            spec = picture_spec(figure_named(results, chart), title_about(results))
        return alt.LayerChart.from_dict(values_without_markup(spec))  # which Altair puts into a script of a page

    def report(self, path: str | PathLike[str], **options: object) -> Path:
        """Write a page about the result, for any browser (.html), or a chart (.svg, .png).

        Args:
            path: the file.
            options: those of `posbias report`.

        Raises:
            PosbiasError: as the command.
        """
        return cast("Path", carried_out("report", self, {**options, "output": path}).place)

    def judgments(self, logs: object = None, **options: object) -> pl.DataFrame:
        """A judgment list: a row per (query, document) with the rate of clicks, corrected for position.

        Args:
            logs: what clicks are counted in; by default what the propensities were estimated from, read as it was then.
            options: those of `posbias weight`, such as `layout_options`.

        Raises:
            PosbiasError: as the command.
        """
        given = self._described.options if logs is None else {}
        reading = {key: given.get(key.replace("_", "-")) for key in vars(LogOptions())}
        defaults = {key: value for key, value in reading.items() if value is not None}
        settings = {"propensities": self, "layout": "judgments", **options}
        return result_of(carried_out("weight", self._inputs if logs is None else logs, settings, defaults)).training

    def weights(  # noqa: PLR0913 - each is an option of the command
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
            query: the columns of the query.
            doc: the columns of the document.
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
        roles = Roles(
            checked_names("session", session),
            checked_names("query", query),
            checked_names("doc", doc),
            name_or_none("position", position),
            name_or_none("click", click),
            name_or_none("weight-column", weight_column),
        )
        options = WeightOptions(min_propensity, self_normalize)
        return weigh(frame, self._fitted, roles, options, propensity, on_bad_rows, unidentified)

    @cached_property
    def _fitted(self) -> PreviousFit | ClickModelFit:
        with open_stored(self.place, {*FILES_OF_A_FIT, *FILES_OF_A_CLICK_MODEL}) as stored:
            return click_model_in(stored) if CLICK_MODEL in stored.content else fit_in(stored, str(self.place))

    @property
    def _name(self) -> str:
        """What it is called in messages."""
        return f"the result of {self._described.command}" if self._is_temporary else str(self.place)

    def __fspath__(self) -> str:
        return fspath(self.place) if isinstance(self.place, Path) else str(self.place)

    def __repr__(self) -> str:
        return f"<{self._title}: {self.verdict}>"

    @property
    def _title(self) -> str:
        inputs = ", ".join(_in_words(each) for each in self._inputs[:_MOST_NAMED])
        more = ", ..." if len(self._inputs) > _MOST_NAMED else ""
        return f"posbias {self._described.command}{' of ' if inputs else ''}{inputs}{more}"

    def __str__(self) -> str:
        held = self._described
        command = None if self._is_temporary else held.next  # which would name the temporary directory
        conclusion = Conclusion(held.verdict, held.conclusion, command, held.reasons)
        return rendered(map(renderable, in_order(conclusion, held.printed, held.facts, details=False)))

    def _repr_html_(self) -> str:
        """A short card for notebooks: the verdict, the curve, the table."""
        curve = self.propensities if f"{PROPENSITIES}.parquet" in self.files else None
        return card(self._title, self.verdict, self.conclusion, self.warnings, curve, self._described.printed)


class Check:
    """A look at a log: what is recognised, what is wrong with it, and what can be estimated from it."""

    manifest: dict[str, Any]  # what `posbias check --json` prints

    def __init__(self, content: dict[str, Any]) -> None:
        self.manifest = content

    @property
    def verdict(self) -> str:
        """The conclusion in a word: `good`, `with care` or `do not use`."""
        return self.manifest["verdict"]

    @property
    def conclusion(self) -> str:
        """The conclusion in a sentence."""
        return self.manifest["conclusion"]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What speaks for and against the log."""
        return conclusion_of(self.manifest).reasons

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the log."""
        return tuple(self.manifest["warnings"])

    def __repr__(self) -> str:
        return f"<posbias check: {self.verdict}>"

    def __str__(self) -> str:
        return rendered(map(renderable, items_of_check(self.manifest, details=False)))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return card("posbias check", self.verdict, self.conclusion, self.warnings, None, [str(self)])


def open_result(path: str | PathLike[str]) -> Result:
    """The result that a command wrote into a directory, or under a prefix of an object store.

    Raises:
        LogFormatError: it is not there, is no result, or is damaged.
        UsageError: it is no name of a place.
    """
    try:
        name = fsdecode(path)
    except TypeError:
        name = ""
    if not name:
        raise UsageError(f"open_result({path!r}): give the name of a directory, as text or as a path.")
    return Result(location(name))


def result_of(outcome: Outcome) -> Result:
    """The result that a command has written."""
    if outcome.place is None:
        raise TypeError("the command writes no result")
    return Result(outcome.place, outcome.inputs, outcome.temporary)


def _in_words(value: object) -> str:
    """What was read, by its name or its kind."""
    if isinstance(value, Result):
        return f"a result of {value.manifest['command']}"
    return FRAME if is_frame(value) else str(value)


def _remove(process: int, temporary: ExitStack) -> None:
    """Remove a temporary result; a process that was forked leaves it to the one that made it."""
    if process == getpid():
        temporary.close()


run = function_of("run", result_of)
check = function_of("check", lambda outcome: Check(outcome.content))
collect = function_of("collect", result_of)
fit = function_of("fit", result_of)
weight = function_of("weight", result_of)
train = function_of("train", result_of)
score = function_of("score", result_of)
predict = function_of("predict", result_of)
evaluate = function_of("evaluate", result_of)
explore = function_of("explore", result_of)
compare = function_of("compare", result_of)
simulate = function_of("simulate", result_of)
report = function_of("report", lambda outcome: cast("Path", outcome.place))
