"""Commands as Python functions, and the objects they return: results with tables, charts and weights, and checks.

Options are keyword arguments, errors are exceptions. A call becomes the words of a command line, parsed by the command
itself: options, their defaults and their rules are defined only there.
"""

import difflib
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from os import PathLike, fsdecode, fspath, getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import polars as pl
import typer
from msgspec import structs
from rich.console import RenderableType
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from posbias import frames
from posbias.cli.main import PosbiasCommand, app
from posbias.cli.messages import capture_output
from posbias.cli.options.config import checked_values, is_settings_table
from posbias.cli.options.groups import LogOptions
from posbias.cli.options.option import command_words, declarations, fill_placeholders
from posbias.cli.report.printing import SafeConsole, in_order, renderable
from posbias.cli.work.checking import conclusion_of, items_of_check
from posbias.core.choices import OnBadRows, Source
from posbias.core.errors import MissingExtraError, RoleError, SchemaError, UsageError, html_text, values_without_markup
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, PROPENSITY, plotted_curves
from posbias.core.schema import IMPRESSIONS, POSITION, Roles
from posbias.core.training.weights import WeightOptions
from posbias.io.fits.saved_fit import CellPropensities
from posbias.io.jobs.click_models import ClickModelFit, read_fitted
from posbias.io.places.locations import Location, location
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.results.conclusions import Conclusion, Printed, PrintedTable, Reason, ResultManifest
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import ATTRACTIVENESS, PROPENSITIES, read_table

if TYPE_CHECKING:
    import altair as alt

# --- commands as functions ---

_R = TypeVar("_R")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command."""

    inputs: tuple[object, ...]  # as the caller gave them
    place: Location | None  # of the result; None if the command writes none
    temporary: ExitStack  # removes a result for which the caller named no place
    content: dict[str, Any]  # the JSON of a command that writes no result
    warnings: tuple[str, ...]


def run_command(
    name: str, inputs: object, options: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Outcome:
    """Run a command in this process.

    Args:
        name: the command.
        inputs: a file name, a frame or a result, or several of these.
        options: by parameter name; None leaves an option at its default.
        defaults: lower than the options, as from a configuration file: ignored where they have no effect.

    Raises:
        PosbiasError: the error of the command.
    """
    command = get_posbias_command(name)
    by_name = _options(command)
    _check_names(name, options, by_name)
    values = (inputs,) if frames.is_single(inputs) else tuple(cast("Iterable[object]", inputs))
    target = options.get("output") or options.get("into")
    with frames.frame_files() as files, ExitStack() as temporary, capture_output() as output:
        words = [word for key, value in options.items() for word in _words(by_name[key], value, files)]
        if target is None and "output" in by_name:
            target = temporary.enter_context(owned_directory(system_temporary().absolute())) / "result"
            words += ["--output", str(target)]
        words += ["--quiet"] * ("quiet" in by_name) + ["--json"] * (target is None)
        names: list[str] = []
        for value in values:
            if options.get("engine") == "spark" and frames.is_spark_frame(value):
                words.append(f"--table={files.view_of(value)}")
                continue
            text = files.plain(value, frames.FRAME)
            if not isinstance(text, str):
                raise UsageError(f"posbias.{name}: reads files, frames and results, not {type(text).__name__}.")
            names.append(text)
        words += ["--", *names]
        try:
            with command.make_context(name, words, parent=_application(), default_map=dict(defaults or {})) as call:
                command.run(call)
        except typer.TyperException as error:
            raise UsageError(error.format_message()) from None
        except SchemaError as error:
            raise error.__cause__ if isinstance(error.__cause__, RoleError) else error from None
        place = None if target is None else location(str(files.plain(target, "output")))
        content = cast("dict[str, Any]", output.content or {})
        return Outcome(values, place, temporary.pop_all(), content, tuple(output.warnings))


@cache
def _application() -> typer.Context:
    application = get_command(app)
    return typer.Context(application, info_name="posbias", **application.context_settings)


def get_posbias_command(name: str) -> PosbiasCommand:
    """Return a command of the command line."""
    return cast("PosbiasCommand", cast("TyperGroup", _application().command).commands[name])


def _options(command: PosbiasCommand) -> dict[str, TyperOption]:
    """Return the options of a command by parameter name."""
    return {
        str(each.name): each for each in command.params if isinstance(each, TyperOption) and each.name != "help_all"
    }


def _check_names(name: str, options: Mapping[str, object], known: Mapping[str, TyperOption]) -> None:
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, sorted(known), n=1)
            hint = f"Did you mean {close[0]}?" if close else f"help(posbias.{name}) lists them."
            raise UsageError(f"posbias.{name}({option}=...): no such option. {hint}")
        if reason := declarations().options[option].get("python"):
            raise UsageError(f"posbias.{name}({option}=...): is for the command line: {reason}.")


def _words(option: TyperOption, value: object, files: frames.FrameFiles) -> list[str]:
    """Return an option with its value as words of a command line.

    Raises:
        UsageError: the option does not take a value of this type.
    """
    if value is None:
        return []
    name = str(option.name)
    if is_settings_table(name, value) or frames.is_single(value):
        settings = checked_values(name, files.plain(value, f"the frame of {name}"), option)
    else:
        several = cast("Iterable[object]", value)
        settings = checked_values(name, [files.plain(each, f"the frame of {name}") for each in several], option)
    if settings is False:
        return option.secondary_opts[:1]
    return command_words({option.opts[0] if settings is True else max(option.opts, key=len): settings})


def command_function(name: str, result_of: Callable[[Outcome], _R]) -> Callable[..., _R]:
    """Return a command as a function, with its help as the docstring and its options as the signature.

    Args:
        name: the command.
        result_of: makes the function's result from the outcome.
    """

    def call(inputs: object = (), /, **options: object) -> _R:
        outcome = run_command(name, inputs, options)
        result = result_of(outcome)
        for sentence in outcome.warnings:
            warnings.warn(sentence, stacklevel=2)
        return result

    command = get_posbias_command(name)
    options = {key: option for key, option in _options(command).items() if "python" not in declarations().options[key]}
    parameters = [inspect.Parameter("inputs", inspect.Parameter.POSITIONAL_ONLY, default=())]
    listed: list[str] = []
    for key, option in options.items():
        default = None if option.required else option.default
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default))
        listed.append(f"    {key}: {fill_placeholders(option.help or '')}")
    about, _, _ = (command.help or "").partition("\n\nExample")
    call.__name__ = call.__qualname__ = name
    call.__module__ = "posbias"
    call.__doc__ = "\n".join([about, "", f"The options are those of `posbias {name}`:", "", *listed])
    cast("Any", call).__signature__ = inspect.Signature(parameters)
    return call


# --- results ---

_ROWS = "training/rows/"
_MOST_NAMED = 2  # inputs


class _WithConclusion:
    """An object with the conclusion of a command."""

    manifest: dict[str, Any]
    _described: ResultManifest

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
        """Reasons for and against it, each with `code`, `severity`, `sentence`, `figures` and `details`."""
        return self._described.reasons

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences of the reasons against it: read them before the numbers."""
        return tuple(self.manifest.get("warnings", ()))


class Result(_WithConclusion):
    """The result of a command: its conclusion, tables and charts, and weights by its propensities.

    Without an `output`, the files are temporary, and removed with this object.
    """

    place: Location  # the directory, or the prefix in an object store
    manifest: dict[str, Any]  # the content of manifest.json
    files: tuple[str, ...]  # names of the files

    def __init__(self, place: Location, inputs: Sequence[object] = (), temporary: ExitStack | None = None) -> None:
        """Open a result.

        Args:
            place: of the result.
            inputs: of the command; by default the names in the manifest.
            temporary: removes a temporary result.

        Raises:
            LogFormatError: the result does not exist, or is damaged.
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
    def propensities(self) -> pl.DataFrame:
        """A row per cell, `propensity` relative to the reference cell = 1; null where it is not identified.

        The columns are those of `propensities.parquet` in io/results/README.md; `reason` explains a null.

        Raises:
            UsageError: the result has none.
        """
        return self.table(PROPENSITIES)

    @property
    def attractiveness(self) -> pl.DataFrame:
        """A row per (query, document) with `attractiveness` = P(click | examined) in [0, 1].

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
        """Read a table of the result, by the name of its file without `.parquet`.

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
        """Draw a chart: `curve` shows propensities with their 95 % intervals, or a grid of cells as a heat map.

        Args:
            chart: a name of `posbias report --chart`.

        Raises:
            MissingExtraError: Altair or vl-convert is not installed.
            UsageError: the result has no such chart.
        """
        if find_spec("altair") is None or find_spec("vl_convert") is None:
            raise MissingExtraError.of("a chart", "altair", "vl-convert-python")
        import altair as alt  # noqa: PLC0415 - it may not be installed

        from posbias.io.reports.charts import picture_spec  # noqa: PLC0415 - only for charts
        from posbias.io.reports.report import figure_by_name, open_results, report_title  # noqa: PLC0415 - only for charts

        with open_results([self.place]) as results:
            spec = picture_spec(figure_by_name(results, chart), report_title(results))
        return alt.LayerChart.from_dict(values_without_markup(spec))  # Altair puts the values into a script of a page

    def report(self, path: str | PathLike[str], **options: object) -> Path:
        """Write a page about the result, for any browser (.html), or a chart (.svg, .png).

        Args:
            path: the file.
            options: of `posbias report`.

        Raises:
            PosbiasError: as the command.
        """
        return cast("Path", run_command("report", self, {**options, "output": path}).place)

    def judgments(self, logs: object = None, **options: object) -> pl.DataFrame:
        """Make a judgment list: a row per (query, document) with the rate of clicks, corrected for position.

        Args:
            logs: the logs whose clicks are counted; by default the inputs of the fit, read with the same options.
            options: of `posbias weight`, such as `layout_options`.

        Raises:
            PosbiasError: as the command.
        """
        given = self._described.options if logs is None else {}
        reading = {key: given.get(key.replace("_", "-")) for key in vars(LogOptions())}
        defaults = {key: value for key, value in reading.items() if value is not None}
        settings = {"propensities": self, "layout": "judgments", **options}
        return result_of(run_command("weight", self._inputs if logs is None else logs, settings, defaults)).training

    def weights(  # noqa: PLR0913 - each is an option of the command
        self,
        frame: frames.FrameT,
        *,
        session: frames.Names = None,
        query: frames.Names = None,
        doc: frames.Names = None,
        position: str | None = None,
        click: str | None = None,
        weight_column: str | None = None,
        propensity: Source = "smooth",
        min_propensity: float = 0.01,
        self_normalize: bool = False,
        unidentified: OnBadRows = "drop",
        on_bad_rows: OnBadRows = "error",
    ) -> frames.FrameT:
        """Return the frame with two more columns, `propensity` and `weight`, computed as by `posbias weight`.

            weight of a click in cell e: 1 / max(propensity of e, min_propensity)        of an unclicked impression: 1

        A cell is the position, with the fit's columns of contexts and cells, or with the last click above (UBM); a
        click model without cells weighs by the examination of each row. These are the weights of `posbias weight
        --layout session`, to the bit.

        Args:
            frame: a row per impression: a Polars frame (lazy or not), a pandas frame or an Arrow table. It must hold
                query, document, position (from 1) and click, the fit's columns of contexts and cells, and the session
                for UBM and click models. Whole pages, as a click above may matter; the rows may be in any order.
            session: column of the session, or several columns that make up its id; by default a well-known name.
            query: column or columns of the query.
            doc: column or columns of the document.
            position: column of the position.
            click: column of the click.
            weight_column: column with the number of impressions of a row (> 0), a factor of its weight.
            propensity: `smooth` takes the smooth curve where the fitted propensity is too uncertain; `fitted` never.
            min_propensity: lower limit of the divisor, in (0, 1], relative to the reference cell.
            self_normalize: whether the weights of all clicks of the frame are scaled to a mean of 1.
            unidentified: clicks in cells without a propensity get no weight (drop), or are an error.
            on_bad_rows: rows that break the rules for logs get no weight (drop), or are an error.

        Returns:
            A frame of the same kind with unchanged columns, rows and index, then the two new columns (Float64). Both
            are null (NaN in pandas) where a position has no propensity or is beyond the `--max-position` of the fit,
            and in dropped rows; an unclicked row without a propensity has weight 1 if its position was counted.

        Raises:
            UsageError: `frame` is of no such kind, an option is out of range, or the click model has no examination
                probability of rows.
            SchemaError: a column is missing, occurs twice or has another type than in the fit; rows break the rules;
                `propensity` or `weight` already exists; the frame has no rows, or holds only clicks.
            IdentifiabilityError: clicks have no propensity, and `unidentified` is error.
        """
        roles = Roles(
            frames.parse_names("session", session),
            frames.parse_names("query", query),
            frames.parse_names("doc", doc),
            frames.parse_optional_name("position", position),
            frames.parse_optional_name("click", click),
            frames.parse_optional_name("weight-column", weight_column),
        )
        options = WeightOptions(min_propensity, self_normalize)
        return frames.weigh(frame, self._fitted, roles, options, propensity, on_bad_rows, unidentified)

    @cached_property
    def _fitted(self) -> CellPropensities | ClickModelFit:
        return read_fitted(self.place)

    @property
    def _name(self) -> str:
        """The name of the result in messages."""
        return f"the result of {self._described.command}" if self._is_temporary else str(self.place)

    def __fspath__(self) -> str:
        return fspath(self.place) if isinstance(self.place, Path) else str(self.place)

    def __repr__(self) -> str:
        return f"<{self._title}: {self.verdict}>"

    @property
    def _title(self) -> str:
        inputs = ", ".join(map(_input_name, self._inputs[:_MOST_NAMED]))
        more = ", ..." if len(self._inputs) > _MOST_NAMED else ""
        return f"posbias {self._described.command}{' of ' if inputs else ''}{inputs}{more}"

    def __str__(self) -> str:
        described = self._described
        command = None if self._is_temporary else described.next  # it would name the temporary directory
        conclusion = Conclusion(described.verdict, described.conclusion, command, described.reasons)
        return render_text(map(renderable, in_order(conclusion, described.printed, described.facts, details=False)))

    def _repr_html_(self) -> str:
        """Return a short card for notebooks: the verdict, the curve, the table."""
        curve = self.propensities if f"{PROPENSITIES}.parquet" in self.files else None
        return html_card(self._title, self.verdict, self.conclusion, self.warnings, curve, self._described.printed)


class Check(_WithConclusion):
    """The outcome of `posbias check`: the log as recognised, its faults, and the precision to expect of a fit."""

    manifest: dict[str, Any]  # the content of `posbias check --json`

    def __init__(self, content: dict[str, Any]) -> None:
        self.manifest = content
        self._described = ResultManifest(command="check", **structs.asdict(conclusion_of(content)))

    def __repr__(self) -> str:
        return f"<posbias check: {self.verdict}>"

    def __str__(self) -> str:
        return render_text(map(renderable, items_of_check(self.manifest, details=False)))

    def _repr_html_(self) -> str:
        """Return a card for notebooks, with the printed text."""
        return html_card("posbias check", self.verdict, self.conclusion, self.warnings, None, [str(self)])


def open_result(path: str | PathLike[str]) -> Result:
    """Open the result that a command wrote into a directory, or under a prefix of an object store.

    Raises:
        LogFormatError: the place does not exist, holds no result, or the result is damaged.
        UsageError: `path` is empty, or neither text nor a path.
    """
    try:
        name = fsdecode(path)
    except TypeError:
        name = ""
    if not name:
        raise UsageError(f"open_result({path!r}): give the name of a directory, as text or as a path.")
    return Result(location(name))


def result_of(outcome: Outcome) -> Result:
    """Open the result of an outcome."""
    if outcome.place is None:
        raise TypeError("the command writes no result")
    return Result(outcome.place, outcome.inputs, outcome.temporary)


def _input_name(value: object) -> str:
    if isinstance(value, Result):
        return f"a result of {value.manifest['command']}"
    return frames.FRAME if frames.is_frame(value) else str(value)


def _remove(process: int, temporary: ExitStack) -> None:
    """Remove a temporary result, but not from a forked child of the process that made it."""
    if process == getpid():
        temporary.close()


# --- display in notebooks: the printed text, and a short card in HTML ---

_TEXT_WIDTH = 120
_MOST_ROWS, _MOST_WARNINGS = 10, 3
_COLOURS = {"good": "#1a7f37", "with care": "#b35900", "do not use": "#c62828"}
_LINES = ("#3b6fb6", "#b35900", "#1a7f37", "#8250df", "#c62828", "#57606a")
_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 360, 150, 28, 240  # pixels


def render_text(contents: Iterable[RenderableType]) -> str:
    """Render sentences and tables as the command line prints them into a file."""
    console = SafeConsole(stderr=False, width_in_a_file=_TEXT_WIDTH)
    console.width = _TEXT_WIDTH
    with console.capture() as text:
        for content in contents:
            console.print(content, crop=False)
    return text.get().rstrip("\n")


def html_card(
    title: str,
    verdict: str,
    conclusion: str,
    warnings: Sequence[str],
    propensities: pl.DataFrame | None,
    printed: Sequence[Printed],
) -> str:
    """Return a card in HTML: the verdict, warnings, the curve, and the first table or else the printed sentences.

    Colours of text and background are those of the notebook, light or dark.

    Args:
        title: the command and its inputs.
        verdict: a word.
        conclusion: a sentence; may be empty.
        warnings: sentences, of which the first are shown.
        propensities: the table of a fit; None without.
        printed: sentences and tables that the command prints.
    """
    table = next((item for item in printed if isinstance(item, PrintedTable)), None)
    mark = f'<b style="color:{_COLOURS.get(verdict, "inherit")}">&#9679; {html_text(verdict)}</b>'
    parts = [f'<div style="margin-bottom:4px">{html_text(title)} {mark}</div>']
    parts += [f"<div>{html_text(conclusion[:1].upper() + conclusion[1:])}</div>"] if conclusion else []
    parts += [f'<div style="opacity:.8">&#9888; {html_text(each)}</div>' for each in warnings[:_MOST_WARNINGS]]
    more = len(warnings) - _MOST_WARNINGS
    parts += [f'<div style="opacity:.8">... and {more} more in <code>.warnings</code></div>'] if more > 0 else []
    parts += [] if propensities is None else [curve_svg(propensities)]
    if table is not None:
        parts.append(_html_table(table))
    else:
        texts = (html_text(item, keep="\n") for item in printed if isinstance(item, str))
        parts += [f'<pre style="overflow-x:auto">{text}</pre>' for text in texts]
    return f'<div style="max-width:60em">{"".join(parts)}</div>'


def _html_table(table: PrintedTable) -> str:
    """Return the first rows of a table, without columns that can be spared."""
    columns = [column for column in table.columns if not column.spare]
    rows = list(zip(*(column.cells for column in columns), strict=True))
    heads = "".join(f"<th>{html_text(column.name)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    below = f"<div>... and {more:,} more rows</div>" if more > 0 else f"<div>{html_text(table.more)}</div>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"


def curve_svg(table: pl.DataFrame) -> str:
    """Draw propensity by position with its interval, a line for each of the first contexts.

    Empty where no propensity is known, or where each context has a single position, as in a grid of numbered slots.
    """
    contexts = [name for name in table.columns[: table.columns.index(IMPRESSIONS)] if name != POSITION]
    curves = plotted_curves(table, contexts, where="propensities")
    known = curves.cells.filter(pl.col(PROPENSITY).is_not_null())
    if known.is_empty() or (contexts and known[CONTEXT].n_unique() == known.height):
        return ""
    last = max(int(known["position"].max()), 2)  # type: ignore[arg-type]
    top = max(float(known.select(pl.max_horizontal(PROPENSITY, HIGH).max()).item()), 1.0)

    def at(position: float, value: float) -> str:
        across = _MARGIN + (position - 1) / (last - 1) * (_WIDTH - 2 * _MARGIN)
        return f"{across:.1f},{_HEIGHT - _MARGIN - value / top * (_HEIGHT - 2 * _MARGIN):.1f}"

    drawn: list[str] = []
    for number, (colour, label) in enumerate(zip(_LINES, curves.contexts, strict=False)):
        line = known.filter(pl.col(CONTEXT) == label).sort(POSITION)
        rows = line.select(POSITION, PROPENSITY, LOW, HIGH).rows()
        for position, value, low, high in rows:
            if low is not None and high is not None:
                ends = f"M{at(position, low)}L{at(position, high)}"
                drawn.append(f'<path d="{ends}" stroke="{colour}" stroke-width="5" stroke-opacity=".3"/>')
            x, y = at(position, value).split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
        points = " ".join(at(position, value) for position, value, _, _ in rows)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        name = f"{', '.join(contexts).replace('_', ' ')} {label}".strip()
        drawn.append(
            f'<text x="{_WIDTH}" y="{_MARGIN + 14 * number}" font-size="11" fill="{colour}">{html_text(name)}</text>'
        )
    if curves.n_contexts > len(curves.contexts):
        more = f"and {curves.n_contexts - len(curves.contexts):,} more"
        drawn.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 10}" font-size="11" fill="currentColor">{more}</text>')
    axes = f'<path d="M{at(1, top)}L{at(1, 0)}L{at(last, 0)}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
    words = (
        (_MARGIN, _HEIGHT - 10, "position 1"),
        (_WIDTH - _MARGIN - 12, _HEIGHT - 10, f"{last:,}"),
        (2, _MARGIN + 4, f"{top:.3g}"),
        (_MARGIN, 14, "propensity, with 95 % intervals"),
    )
    texts = "".join(f'<text x="{x}" y="{y}" font-size="11" fill="currentColor">{word}</text>' for x, y, word in words)
    label = f"Propensity by position, to {float(known.sort('position')['propensity'][-1]):.3g} at position {last:,}"
    width = _WIDTH + (_LEGEND if contexts else 0)
    size = f'width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{label}">{axes}{"".join(drawn)}{texts}</svg>'


run = command_function("run", result_of)
check = command_function("check", lambda outcome: Check(outcome.content))
collect = command_function("collect", result_of)
fit = command_function("fit", result_of)
weight = command_function("weight", result_of)
train = command_function("train", result_of)
score = command_function("score", result_of)
export = command_function("export", result_of)
predict = command_function("predict", result_of)
evaluate = command_function("evaluate", result_of)
interleave = command_function("interleave", result_of)
explore = command_function("explore", result_of)
compare = command_function("compare", result_of)
simulate = command_function("simulate", result_of)
report = command_function("report", lambda outcome: cast("Path", outcome.place))
