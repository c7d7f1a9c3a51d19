"""Training formats: each writes the rows of a layout as the files of one kind of trainer, and a script that trains it.

Text files are written in pieces, one per part of the training set, and joined at the end.
"""

import os
import shutil
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import tee
from pathlib import Path
from typing import BinaryIO, ClassVar

import polars as pl
import polars.selectors as cs

from posbias.core.choices import Plugin
from posbias.core.errors import SchemaError, UsageError
from posbias.core.schema import DOC
from posbias.core.training.layout import GROUP, LOSER, LOSER_ROW, WINNER, WINNER_ROW, Layout
from posbias.core.training.weights import weight_columns
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.results.tables import as_text_columns, sink_table, write_in_one_file
from posbias.io.stores.store import one_by_one
from posbias.io.training.laid_out import (
    LaidOut,
    LaidOutSplits,
    Split,
    TrainingPart,
    TrainingSet,
    as_numbers,
    write_features,
)

ROWS = "rows"
"""The folder of the rows as a table, which holds nothing but its parts."""

_SCRIPTS = Path(__file__).parent / "scripts"
_PIECE = ".piece"
_STEP = 1 << 30  # bytes copied at once


class TrainingFormat(Plugin):
    """Writes a training set: `write` once per part, in any order and in any process, then `finish` once."""

    needs_features: ClassVar[bool] = True  # whether the trainer has nothing to load where there is no feature

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


def write_script(training_set: TrainingSet, folder: Path, name: str, about: str = "") -> None:
    """Write `load.py`, `features.json` if there are features, and `load.md` if a text `about` says what a file is for.

    The script is the same for all training sets of a format: it goes by the files beside it.
    """
    if training_set.features:
        write_features(training_set.features, folder)
    shutil.copyfile(_SCRIPTS / f"{name}.py.txt", folder / "load.py")
    if about:
        shutil.copyfile(_SCRIPTS / f"{about}.md.txt", folder / "load.md")


def feature_names(training_set: TrainingSet) -> list[str]:
    """The features in their order."""
    return [feature.name for feature in training_set.features]


def libsvm_lines(training_set: TrainingSet, chunk: pl.DataFrame, *start: pl.Series, first: int) -> pl.Series:
    """Lines `label qid:1 0:0.5 2:1`, as XGBoost and RankLib read them. Missing values are left out.

    Args:
        training_set: what the chunk is of.
        chunk: the rows.
        start: what stands before the features, the label first.
        first: the number of the first feature.
    """
    features = as_numbers(chunk, training_set.features).with_columns(cs.float().fill_nan(None))
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


def write_lines(rows: pl.DataFrame, piece: BinaryIO, null: str = "") -> None:
    """Append rows to a piece, without a header; texts that hold a tab, a quote or a line end are quoted.

    Floats are written with the fewest digits that read back as the same number.
    """
    rows.write_csv(piece, include_header=False, separator="\t", null_value=null)


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
            pieces = {path.name[len(name) + 1 : -len(_PIECE)]: path for path in folder.glob(f"{name}.*{_PIECE}")}
            for part in sorted(filter(str.isdigit, pieces), key=int):  # `train.tsv.weight` has pieces of its own
                with pieces[part].open("rb") as source:
                    try:  # within the file system, so that no byte passes through this process
                        while os.copy_file_range(source.fileno(), whole.fileno(), _STEP):
                            pass
                    except (AttributeError, OSError):  # not on this system, or file system: by bytes
                        shutil.copyfileobj(source, whole)
                        whole.flush()
                pieces[part].unlink()


@dataclass(frozen=True)
class TableFormat(TrainingFormat):
    """A format of tables that are named as it is: `rows`, of the rows or of the preferences.

    The rows of preferences, with their features, are `documents`. `rows/part-00000.parquet`, ..., or
    `rows/part-00000.csv`, ..., with a header. Trainers need ids and texts to the letter, formulas too.
    """

    name: str
    needs_features = False

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for preferences a second one where there are features."""
        rows = table_part(folder, ROWS, part, self.name)
        if part.preferences is not None:
            weights = weight_columns(part.preferences.collect_schema())
            ids = (name for name in training_set.ids if name != DOC)
            preferences = part.preferences.select(*ids, WINNER, LOSER, *weights)
            if self.name == "csv":
                as_text_columns(preferences).sink_csv(rows)
            else:
                sink_table(preferences, rows)
            if not training_set.features:
                return
            rows = table_part(folder, "documents", part, self.name)
        chunks = (chunk.drop(training_set.layout.columns_without_information) for chunk in part.rows)
        if self.name == "csv":
            booleans = cs.by_name(feature_names(training_set)) & cs.boolean()
            with rows.open("wb") as file:
                for number, chunk in enumerate(chunks):
                    as_text = as_text_columns(chunk.lazy().with_columns(booleans.cast(pl.Int8)))
                    as_text.collect().write_csv(file, include_header=number == 0)
        else:
            for _ in write_in_one_file(chunks, rows):
                pass

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script, which reads either format."""
        write_script(training_set, folder, "tables")


PARQUET, CSV = TableFormat("parquet"), TableFormat("csv")


_NumberedPart = tuple[int, LaidOut, int, int, Path]
"""The number of a part, it, its first row and group in the whole, and the folder where it is written."""


def write_training_sets(
    laid_out: Iterable[LaidOutSplits],
    splits: Sequence[Split],
    about: TrainingSet,
    form: TrainingFormat,
    memory: int,
    folder: Path,
    each: Callable[[Iterable[_NumberedPart], Callable[[_NumberedPart], None]], Iterator[None]] = one_by_one,
    on_part: Callable[[], None] = lambda: None,
    left_out: int = 0,
) -> dict[Split, dict[str, int]]:
    """Write each split into a directory of its own; return the number of its rows, groups and preferences.

    Args:
        laid_out: the rows.
        splits: the requested splits.
        about: what all rows have in common.
        form: of the files.
        memory: of a process that writes, in bytes.
        folder: where the directories are made.
        each: as that of an engine; by default each part is written as soon as it is laid out, while others are.
        on_part: called after each part.
        left_out: number of rows without features that were left out.

    Raises:
        SchemaError: a split has nothing to learn from.
    """
    sizes: dict[Split, Counter[str]] = {split: Counter() for split in splits}
    for split in splits:
        (folder / split).mkdir()

    def numbered() -> Iterator[_NumberedPart]:
        for split, parts in (of_split for rows in laid_out for of_split in rows.items()):
            for part in parts:
                size = sizes[split]
                yield size["parts"], part, size["rows"], size["groups"], folder / split
                size.update(parts=1, rows=part.n_rows, groups=part.n_groups, preferences=part.n_preferences)

    for _ in each(numbered(), partial(_write_part, form=form, about=about, memory=memory)):
        on_part()
    kinds = ("rows", "groups", *(("preferences",) if about.layout.weighted == "preference" else ()))
    for split, size in sizes.items():
        if not all(size[kind] for kind in kinds):
            message = f"there is nothing to learn from: {about.layout.nothing}. Add more days of logs."
            if len(sizes) > 1:
                share = "more" if split == "validation" else "less"
                message = f"{split}/ would be empty: {about.layout.nothing}. Set {share} apart with --validation."
            message += f" {left_out:,} rows without features were left out." if left_out else ""
            raise SchemaError(f"--layout {about.layout.name}: {message}")
    for split in splits:
        remove_unfinished(folder / split)
        form.finish(about, folder / split)
    return {split: {kind: size[kind] for kind in kinds} for split, size in sizes.items()}


def _write_part(part: _NumberedPart, form: TrainingFormat, about: TrainingSet, memory: int) -> None:
    number, laid_out, first_row, first_group, folder = part
    numbered, in_whole = pl.col(GROUP) + first_group, None
    if laid_out.preferences is not None:
        in_whole = laid_out.preferences.scan().with_columns(numbered, pl.col(WINNER_ROW, LOSER_ROW) + first_row)
    rows = (chunk.with_columns(numbered) for chunk in laid_out.chunks(memory))
    with whole_files(folder) as unfinished:
        form.write(about, TrainingPart(number, rows, in_whole), unfinished)
