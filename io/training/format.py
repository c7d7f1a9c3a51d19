"""Training formats: each writes the rows of a layout as the files of one kind of trainer, and a script that trains it.

Text files are written in pieces, one per part of the training set, and joined at the end.
"""

import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import tee
from pathlib import Path
from typing import BinaryIO, ClassVar

import polars as pl
import polars.selectors as cs

from posbias.core.choices import Plugin
from posbias.core.errors import UsageError, escaped_json
from posbias.core.schema import DOC
from posbias.core.training.layout import LOSER, WINNER, Layout
from posbias.core.training.weights import weight_columns
from posbias.io.results.tables import as_text_columns, sink_table, write_in_one_file
from posbias.io.training.laid_out import TrainingPart, TrainingSet

ROWS = "rows"
"""The folder of the rows as a table, which holds nothing but its parts."""

_SCRIPTS = Path(__file__).parent / "scripts"
_PIECE = ".piece"
_STEP = 1 << 30  # bytes copied at once


class TrainingFormat(Plugin):
    """Writes a training set: `write` once per part, in any order and in any process, then `finish` once."""

    needs_features: ClassVar[bool] = True  # whether the trainer has nothing to load where there is no feature
    takes: ClassVar[tuple[str, ...]] = ()  # options that only some formats take, which it must be given

    def check(self, layout: Layout) -> None:
        """Raise a UsageError if it cannot carry a layout, which says why, and what to use instead."""

    def carries(self, layout: Layout) -> bool:
        """Whether it can carry a layout."""
        try:
            self.check(layout)
        except UsageError:
            return False
        return True

    @abstractmethod
    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one part, chunk by chunk.

        Raises:
            UsageError: a column holds what the format cannot hold.
            SchemaError: the trainer would refuse these rows.
        """

    @abstractmethod
    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join what the parts wrote, and write `load.py`."""


def check_no_preferences(form: TrainingFormat, layout: Layout, trainer: str) -> None:
    """Refuse preferences, for a trainer that reads none.

    Raises:
        UsageError: the layout has some.
    """
    if layout.weighted == "preference":
        raise UsageError(
            f"--format {form.name} cannot carry --layout {layout.name}: {trainer} makes its own pairs of the rows of a "
            "group. Write --layout clicked-group, where these carry the same weights, or --format catboost, which "
            "reads pairs."
        )


class TextFormat(TrainingFormat):
    """A format of text files; the table `rows` beside them takes what they have no place for."""

    made: ClassVar[tuple[str, ...]] = ()  # the files that pieces make, where they are the same for all layouts

    def files(self, training_set: TrainingSet) -> Sequence[str]:
        """The files that pieces make."""
        del training_set
        return self.made

    @abstractmethod
    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append some rows to the piece of each file."""

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's pieces; row by row as in these, `rows` takes all but the features."""
        names = feature_names(training_set)
        chunks, again = tee(part.rows)
        writing = write_in_one_file((chunk.drop(names) for chunk in again), table_part(folder, ROWS, part, "parquet"))
        with open_pieces(folder, part.number, *self.files(training_set)) as pieces:
            for chunk, _ in zip(chunks, writing, strict=True):
                self.write_chunk(training_set, chunk, pieces)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the features and the script."""
        for file in self.files(training_set):
            join_pieces(folder, file)
        write_script(training_set, folder, self.name)


def write_script(training_set: TrainingSet, folder: Path, name: str) -> None:
    """Write `load.py`, and `features.json` if there are features.

    The script is the same for all training sets of a format: it goes by the files beside it. `features.json` has the
    features in their order, each with its categories, whose places are the numbers in the files, or null.
    """
    if training_set.features:
        features = [{"name": feature.name, "categories": feature.categories} for feature in training_set.features]
        text = escaped_json(json.dumps(features, ensure_ascii=False, indent=1))
        (folder / "features.json").write_text(text + "\n", encoding="utf-8")
    shutil.copyfile(_SCRIPTS / f"{name}.py.txt", folder / "load.py")


def write_about(folder: Path, name: str) -> None:
    """Write `load.md`: what the file is for."""
    shutil.copyfile(_SCRIPTS / f"{name}.md.txt", folder / "load.md")


def feature_names(training_set: TrainingSet) -> list[str]:
    """The features in their order."""
    return [feature.name for feature in training_set.features]


def features_as_numbers(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.DataFrame:
    """The features of a chunk: texts as their place among the categories, booleans as 0 and 1."""
    return chunk.select(
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in training_set.features
    ).with_columns(cs.boolean().cast(pl.Int8))


def libsvm_lines(training_set: TrainingSet, chunk: pl.DataFrame, *start: pl.Series, first: int) -> pl.Series:
    """Lines `label qid:1 0:0.5 2:1`, as XGBoost and RankLib read them. Missing values are left out.

    Args:
        training_set: what the chunk is of.
        chunk: the rows.
        start: what stands before the features, the label first.
        first: the number of the first feature.
    """
    features = features_as_numbers(training_set, chunk).with_columns(cs.float().fill_nan(None))
    values = [pl.concat_str(pl.lit(f"{k}:"), name) for k, name in enumerate(features.columns, first)]
    return features.select(line=pl.concat_str(*start, *values, separator=" ", ignore_nulls=True))["line"]


def table_part(folder: Path, table: str, part: TrainingPart, suffix: str) -> Path:
    """The file of a part in the folder of a table, which is made where it is not there."""
    (folder / table).mkdir(exist_ok=True)
    return folder / table / f"part-{part.number:05d}.{suffix}"


def piece_path(folder: Path, file: str, part: int) -> Path:
    """Where the piece of a file lies that one part writes."""
    return folder / f"{file}.{part:05d}{_PIECE}"


@contextmanager
def open_pieces(folder: Path, part: int, *files: str) -> Generator[list[BinaryIO]]:
    """The pieces of several files, open to be written."""
    with ExitStack() as stack:
        yield [stack.enter_context(piece_path(folder, file, part).open("wb")) for file in files]


def write_lines(rows: pl.DataFrame, piece: BinaryIO, separator: str = "\t", null: str = "") -> None:
    """Append rows to a piece, without a header; texts that hold the separator, a quote or a line end are quoted.

    Floats are written with the fewest digits that read back as the same number.
    """
    rows.write_csv(piece, include_header=False, separator=separator, null_value=null)


def write_whole_lines(lines: pl.Series, piece: BinaryIO) -> None:
    """Append lines to a piece as they are."""
    lines.to_frame().write_csv(piece, include_header=False, quote_style="never")


def join_pieces(folder: Path, file: str, *pieces_of: str, header: str = "") -> None:
    """Join pieces in the order of their parts; the pieces go.

    Args:
        folder: where the pieces lie.
        file: the file that they make.
        pieces_of: the files whose pieces are joined, one file after the other; the file's own if none is named.
        header: what stands before them in the file.
    """
    with (folder / file).open("wb") as whole:
        whole.write(header.encode())
        whole.flush()
        for name in pieces_of or (file,):
            for piece in _pieces(folder, name):
                with piece.open("rb") as source:
                    _append(source, whole)
                piece.unlink()


def _pieces(folder: Path, file: str) -> Iterator[Path]:
    """The pieces of a file, in the order of their parts. `train.tsv.weight` has pieces of its own."""
    pieces = {path.name[len(file) + 1 : -len(_PIECE)]: path for path in folder.glob(f"{file}.*{_PIECE}")}
    yield from (pieces[part] for part in sorted(filter(str.isdigit, pieces), key=int))


def _append(source: BinaryIO, whole: BinaryIO) -> None:
    """Copy within the file system, so that no byte passes through this process, or, where that cannot, byte by byte."""
    try:
        while os.copy_file_range(source.fileno(), whole.fileno(), _STEP):
            pass
    except (AttributeError, OSError):  # not on this system, or not on this file system: the rest is still to be read
        shutil.copyfileobj(source, whole)
        whole.flush()


class PlainFormat(TrainingFormat):
    """A format of tables that are named as it is: `rows`, of the rows or of the preferences.

    The rows of preferences, with their features, are `documents`.
    """

    needs_features = False

    @abstractmethod
    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write the preferences of a part."""

    @abstractmethod
    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write the rows of a part."""

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for preferences a second one where there are features."""
        rows = table_part(folder, ROWS, part, self.name)
        chunks = (chunk.drop(training_set.layout.left_out) for chunk in part.rows)
        features = feature_names(training_set)
        if part.preferences is None:
            self.write_rows(chunks, features, rows)
            return
        weights = weight_columns(part.preferences.collect_schema())
        ids = (name for name in training_set.ids if name != DOC)
        self.write_preferences(part.preferences.select(*ids, WINNER, LOSER, *weights), rows)
        if features:
            self.write_rows(chunks, features, table_part(folder, "documents", part, self.name))

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script, which reads either format."""
        write_script(training_set, folder, "tables")


class ParquetFormat(PlainFormat):
    """`rows/part-00000.parquet`, ..."""

    name = "parquet"

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        sink_table(preferences, path)

    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write chunk after chunk."""
        del features
        for _ in write_in_one_file(chunks, path):
            pass


class CsvFormat(PlainFormat):
    """`rows/part-00000.csv`, ..., with a header. Trainers need ids and texts to the letter, formulas too."""

    name = "csv"

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        as_text_columns(preferences).sink_csv(path)

    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write chunk after chunk, true and false as 1 and 0."""
        with path.open("wb") as file:
            for number, chunk in enumerate(chunks):
                rows = chunk.with_columns((cs.by_name(features) & cs.boolean()).cast(pl.Int8))
                as_text_columns(rows.lazy()).collect().write_csv(file, include_header=number == 0)
