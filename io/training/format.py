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
"""Directory of the table of rows, with one file per part."""

_SCRIPTS = Path(__file__).parent / "scripts"
_PIECE = ".piece"
_STEP = 1 << 30  # bytes copied at once


class TrainingFormat(Plugin):
    """Format of a training set: `write` once per part, in any order and in any process, then `finish` once."""

    needs_features: ClassVar[bool] = True  # whether the trainer needs at least one feature

    def check(self, layout: Layout) -> None:
        """Check that the format can carry a layout.

        Raises:
            UsageError: it cannot; the message says why, and what to use instead.
        """

    def carries(self, layout: Layout) -> bool:
        """Return whether the format can carry a layout."""
        try:
            self.check(layout)
        except UsageError:
            return False
        return True

    @abstractmethod
    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one part, chunk by chunk.

        Raises:
            SchemaError: the trainer would reject these rows.
        """

    @abstractmethod
    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces of all parts, and write `load.py`."""


def check_no_preferences(form: TrainingFormat, layout: Layout, trainer: str) -> None:
    """Check that a layout has no preferences, for a trainer that reads none.

    Raises:
        UsageError: the layout has weighted preferences.
    """
    if layout.weighted == "preference":
        raise UsageError(
            f"--format {form.name} cannot carry --layout {layout.name}: {trainer} makes its own pairs of the rows of a "
            "group. Write --layout clicked-group, where these carry the same weights, or --format catboost, which "
            "reads pairs."
        )


class TextFormat(TrainingFormat):
    """A format of text files, and a table `rows` with all columns other than features, row by row as in these files."""

    file_names: ClassVar[tuple[str, ...]] = ()  # files written in pieces, if they are the same for all layouts

    def files(self, training_set: TrainingSet) -> Sequence[str]:
        """Return the names of the files that are written in pieces."""
        del training_set
        return self.file_names

    @abstractmethod
    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append rows to the piece of each file."""

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write a part: one piece of each file, and a file of the table `rows`."""
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
    """Write `load.py`, `features.json` if there are features, and `load.md` if `about` names a text on the file's use.

    The script is the same for all training sets of a format: it detects the files beside it.
    """
    if training_set.features:
        write_features(training_set.features, folder)
    shutil.copyfile(_SCRIPTS / f"{name}.py.txt", folder / "load.py")
    if about:
        shutil.copyfile(_SCRIPTS / f"{about}.md.txt", folder / "load.md")


def feature_names(training_set: TrainingSet) -> list[str]:
    """Return the names of the features in their order."""
    return [feature.name for feature in training_set.features]


def libsvm_lines(training_set: TrainingSet, chunk: pl.DataFrame, *start: pl.Series, first: int) -> pl.Series:
    """Return lines `label qid:1 0:0.5 2:1`, as XGBoost and RankLib read them. Missing values are left out.

    Args:
        training_set: the training set of the chunk.
        chunk: rows with features.
        start: fields before the features, the label first.
        first: number of the first feature.
    """
    features = as_numbers(chunk, training_set.features).with_columns(cs.float().fill_nan(None))
    values = [pl.concat_str(pl.lit(f"{k}:"), name) for k, name in enumerate(features.columns, first)]
    return features.select(line=pl.concat_str(*start, *values, separator=" ", ignore_nulls=True))["line"]


def table_part(folder: Path, table: str, part: TrainingPart, suffix: str) -> Path:
    """Return the file of a part in the directory of a table, which is created if needed."""
    (folder / table).mkdir(exist_ok=True)
    return folder / table / f"part-{part.number:05d}.{suffix}"


def piece_path(folder: Path, file: str, part: int) -> Path:
    """Return the path of a part's piece of a file."""
    return folder / f"{file}.{part:05d}{_PIECE}"


@contextmanager
def open_pieces(folder: Path, part: int, *files: str) -> Generator[list[BinaryIO]]:
    """Open a part's pieces of several files for writing."""
    with ExitStack() as stack:
        yield [stack.enter_context(piece_path(folder, file, part).open("wb")) for file in files]


def write_lines(rows: pl.DataFrame, piece: BinaryIO, null: str = "") -> None:
    """Append rows to a piece as tab-separated values without a header; texts with a tab, quote or line end are quoted.

    Floats have the fewest digits that parse to the same number.
    """
    rows.write_csv(piece, include_header=False, separator="\t", null_value=null)


def write_whole_lines(lines: pl.Series, piece: BinaryIO) -> None:
    """Append lines to a piece, unquoted."""
    lines.to_frame().write_csv(piece, include_header=False, quote_style="never")


def join_pieces(folder: Path, file: str, *pieces_of: str, header: str = "") -> None:
    """Join pieces in the order of their parts into a file, and remove them.

    Args:
        folder: directory of the pieces.
        file: the file to write.
        pieces_of: files whose pieces are joined, one file after the other; by default those of `file`.
        header: text before the pieces.
    """
    with (folder / file).open("wb") as whole:
        whole.write(header.encode())
        whole.flush()
        for name in pieces_of or (file,):
            pieces = {path.name[len(name) + 1 : -len(_PIECE)]: path for path in folder.glob(f"{name}.*{_PIECE}")}
            for part in sorted(filter(str.isdigit, pieces), key=int):  # `train.tsv.weight` has pieces of its own
                with pieces[part].open("rb") as source:
                    try:  # copied by the file system, not through this process
                        while os.copy_file_range(source.fileno(), whole.fileno(), _STEP):
                            pass
                    except (AttributeError, OSError):  # not supported by the system, or the file system
                        shutil.copyfileobj(source, whole)
                        whole.flush()
                pieces[part].unlink()


@dataclass(frozen=True)
class TableFormat(TrainingFormat):
    """Tables of the rows, as `rows/part-00000.parquet`, ..., or `rows/part-00000.csv`, ..., with a header.

    For layouts with preferences, `rows` are the preferences, and `documents` their rows, if there are features. Texts
    are written unchanged, even if a spreadsheet would take them for formulas.
    """

    name: str
    needs_features = False

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for preferences a second one if there are features."""
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
        """Write the features and the script, which reads both formats."""
        write_script(training_set, folder, "tables")


PARQUET, CSV = TableFormat("parquet"), TableFormat("csv")


_NumberedPart = tuple[int, LaidOut, int, int, Path]
"""Number of a part, the part, the numbers of its first row and group in the split, and the directory of the split."""


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
    """Write each split into its own directory; return its numbers of rows, groups and preferences.

    Args:
        laid_out: laid-out rows.
        splits: the requested splits.
        about: properties that all rows share.
        form: format of the files.
        memory: memory of a writing process, in bytes.
        folder: parent of the directories.
        each: `Engine.each`; by default parts are written one by one, as soon as they are laid out.
        on_part: called after each part.
        left_out: number of rows without features that were left out, for the message.

    Raises:
        SchemaError: a split has no rows, no groups, or no preferences, or the trainer would reject its rows.
    """
    sizes: dict[Split, Counter[str]] = {split: Counter() for split in splits}
    for split in splits:
        (folder / split).mkdir()

    def numbered() -> Iterator[_NumberedPart]:
        for split, parts in (item for rows in laid_out for item in rows.items()):
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
    group, preferences = pl.col(GROUP) + first_group, None
    if laid_out.preferences is not None:
        preferences = laid_out.preferences.scan().with_columns(group, pl.col(WINNER_ROW, LOSER_ROW) + first_row)
    rows = (chunk.with_columns(group) for chunk in laid_out.chunks(memory))
    with whole_files(folder) as unfinished:
        form.write(about, TrainingPart(number, rows, preferences), unfinished)
