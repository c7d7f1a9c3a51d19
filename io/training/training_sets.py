"""From laid-out rows to the files of a trainer: parts are numbered, get their features, are written and joined."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.choices import Grouping
from posbias.core.errors import SchemaError
from posbias.core.training.layout import GROUP, LOSER_ROW, WINNER_ROW, Layout
from posbias.io.engines.engine import Engine
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.progress import Progress
from posbias.io.training.feature_parts import FeaturedRows, FeaturesOfPart, chunks, rows_per_chunk
from posbias.io.training.format import TrainingFormat
from posbias.io.training.laid_out import Feature, LaidOut, LaidOutSplits, Split, TrainingPart, TrainingSet, splits_of


@dataclass(frozen=True)
class TrainingFiles:
    """The requested files."""

    layout: Layout  # of the rows
    grouping: Grouping  # what stands together
    form: TrainingFormat  # of the files
    search_index: str | None = None  # for formats that name the index of a search engine

    def about(self, features: tuple[Feature, ...]) -> TrainingSet:
        """Properties that all rows share."""
        return TrainingSet(self.layout, self.layout.ids(self.grouping), features, self.search_index)


def write_training_sets(
    rows: FeaturedRows, files: TrainingFiles, engine: Engine, folder: Path, progress: Progress
) -> dict[Split, dict[str, int]]:
    """Write each split into a directory of its own; return the number of its rows, groups and preferences.

    Raises:
        SchemaError: a split has nothing to learn from.
    """
    splits, about = splits_of(rows.parts), files.about(rows.features)
    written: dict[Split, _Written] = {split: _Written(about, files.form, folder / split) for split, _ in splits}
    numbered = [written[split].number(*part) for split, parts in splits for part in parts]
    sizes = _sizes(written, f" {rows.left_out:,} rows without features were left out." if rows.left_out else "")
    with progress.stage("writing", len(numbered)) as stage:
        for _ in engine.each(numbered, partial(_write_part, form=files.form, about=about, memory=engine.memory)):
            stage.advance()
    for of_split in written.values():
        of_split.finish()
    return sizes


def write_as_laid_out(
    laid_out: Iterable[LaidOutSplits], splits: Sequence[Split], files: TrainingFiles, engine: Engine, folder: Path
) -> dict[Split, dict[str, int]]:
    """Write rows without features: each part is written as soon as it is laid out, while others are.

    Raises:
        SchemaError: a split has nothing to learn from.
    """
    about, no_features = files.about(()), FeaturesOfPart()
    written: dict[Split, _Written] = {split: _Written(about, files.form, folder / split) for split in splits}
    for rows in laid_out:
        for split, parts in splits_of(rows):
            for part in parts:
                _write_part(written[split].number(part, no_features), files.form, about, engine.memory)
    sizes = _sizes(written)
    for of_split in written.values():
        of_split.finish()
    return sizes


@dataclass
class _Written:
    """A split that is being written."""

    about: TrainingSet  # what all rows have in common
    form: TrainingFormat  # of the files
    folder: Path  # where
    n_parts: int = 0  # number of parts so far
    rows: int = 0  # of these, as groups and preferences are
    groups: int = 0  # of these
    preferences: int = 0  # of these; 0 in layouts that have none

    def __post_init__(self) -> None:
        self.folder.mkdir()

    def number(self, part: LaidOut, features: FeaturesOfPart) -> "_NumberedPart":
        """The next part, with its place in the whole."""
        numbered = _NumberedPart(self.n_parts, part, features, self.rows, self.groups, self.folder)
        self.n_parts += 1
        self.rows += part.n_rows
        self.groups += part.n_groups
        self.preferences += part.n_preferences
        return numbered

    @property
    def size(self) -> dict[str, int]:
        """How much there is to learn from."""
        size = {"rows": self.rows, "groups": self.groups}
        return size | {"preferences": self.preferences} if self.about.layout.weighted == "preference" else size

    def finish(self) -> None:
        """Write the files about all parts."""
        remove_unfinished(self.folder)
        self.form.finish(self.about, self.folder)


def _sizes(written: Mapping[Split, _Written], left_out: str = "") -> dict[Split, dict[str, int]]:
    """How much each split has.

    Raises:
        SchemaError: one has nothing to learn from.
    """
    for split, of_split in written.items():
        if not all(of_split.size.values()):
            layout = of_split.about.layout
            message = f"there is nothing to learn from: {layout.nothing}. Add more days of logs."
            if len(written) > 1:
                share = "more" if split == "validation" else "less"
                message = f"{split}/ would be empty: {layout.nothing}. Set {share} apart with --validation."
            raise SchemaError(f"--layout {layout.name}: {message}{left_out}")
    return {split: of_split.size for split, of_split in written.items()}


@dataclass(frozen=True)
class _NumberedPart:
    """A laid-out part, its features, its place in the whole, and where it is written."""

    number: int
    laid_out: LaidOut
    features: FeaturesOfPart
    first_row: int
    first_group: int
    folder: Path

    def training_part(self, n_features: int, memory: int) -> TrainingPart:
        numbered = pl.col(GROUP) + self.first_group
        preferences = None if self.laid_out.preferences is None else self.laid_out.preferences.scan()
        if preferences is not None:
            preferences = preferences.with_columns(numbered, pl.col(WINNER_ROW, LOSER_ROW) + self.first_row)
        return TrainingPart(self.number, self._chunks(numbered, n_features, memory), preferences)

    def _chunks(self, numbered: pl.Expr, n_features: int, memory: int) -> Iterator[pl.DataFrame]:
        rows = self.laid_out.rows
        names = rows.scan().collect_schema().names()
        others = [name for name in names if name not in {own.meta.output_name() for own in self.features.own}]
        features = self.features.held(memory)
        for chunk in chunks(rows, rows_per_chunk(n_features, memory)):
            yield features.bring(chunk, others).with_columns(numbered)


def _write_part(part: _NumberedPart, form: TrainingFormat, about: TrainingSet, memory: int) -> None:
    with whole_files(part.folder) as unfinished:
        form.write(about, part.training_part(len(about.features), memory), unfinished)
