"""From laid-out rows to the files of a trainer: rows are numbered, features brought, parts written and joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.training.layouts import GROUP, Grouping, Layout
from posbias.core.training.layouts.preferences import LOSER_ROW, WINNER_ROW
from posbias.io.engines.engine import Engine
from posbias.io.features.chunks import chunks, rows_per_chunk
from posbias.io.features.of_parts import FeaturedRows, FeaturesOfPart
from posbias.io.features.rows import held
from posbias.io.formats import TrainingFormat
from posbias.io.layouts.parts import LaidOut, Split, first_numbers, splits_of
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.progress import Progress
from posbias.io.temporary.files import remove_unfinished, whole_files

_SHARE_OF_FEATURES = 4  # of the memory: those of a part, if they fit, are held as long as it is written


def write_training_sets(
    rows: FeaturedRows,
    layout: Layout,
    grouping: Grouping,
    form: TrainingFormat,
    engine: Engine,
    folder: Path,
    progress: Progress,
    search_index: str | None = None,
) -> dict[Split, dict[str, int]]:
    """Write each split into a directory of its own; return the number of its rows, groups and preferences.

    `search_index` is for formats that name the index of a search engine.

    Raises:
        SchemaError: a split has nothing to learn from.
    """
    splits = splits_of(rows.parts)
    sizes: dict[Split, dict[str, int]] = {split: _size([part for part, _ in parts], layout) for split, parts in splits}
    for split, size in sizes.items():
        if not all(size.values()):
            left_out = f" {rows.left_out:,} rows without features were left out." if rows.left_out else ""
            raise SchemaError(_nothing_in(split, layout, alone=len(sizes) == 1) + left_out)
    about = TrainingSet(layout, layout.ids(grouping), rows.features, search_index)
    with progress.stage("writing", sum(map(len, rows.parts.values()))) as stage:
        for split, parts in splits:
            target = folder / split
            target.mkdir()
            write = partial(_write_part, form=form, about=about, folder=target, memory=engine.memory)
            for _ in engine.each(_numbered(parts), write):
                stage.advance()
            remove_unfinished(target)
            form.finish(about, target)
    return sizes


@dataclass(frozen=True)
class _NumberedPart:
    """A laid-out part, its features, and its place in the whole."""

    number: int
    laid_out: LaidOut
    features: FeaturesOfPart
    first_row: int
    first_group: int

    def training_part(self, n_features: int, memory: int) -> TrainingPart:
        numbered = pl.col(GROUP) + self.first_group
        preferences = None if self.laid_out.preferences is None else self.laid_out.preferences.scan()
        if preferences is not None:
            preferences = preferences.with_columns(numbered, pl.col(WINNER_ROW, LOSER_ROW) + self.first_row)
        return TrainingPart(self.number, self._chunks(numbered, n_features, memory), preferences)

    def _chunks(self, numbered: pl.Expr, n_features: int, memory: int) -> Iterator[pl.DataFrame]:
        rows = self.laid_out.rows.scan()
        names = rows.collect_schema().names()
        others = [name for name in names if name not in {own.meta.output_name() for own in self.features.own}]
        tables = tuple(held(table, memory // _SHARE_OF_FEATURES) for table in self.features.tables)
        features = FeaturesOfPart(self.features.own, tables)
        for chunk in chunks(rows, rows_per_chunk(n_features, memory)):
            yield features.bring(chunk, others).with_columns(numbered)


def _numbered(parts: Sequence[tuple[LaidOut, FeaturesOfPart]]) -> Iterator[_NumberedPart]:
    places = first_numbers([part for part, _ in parts])
    for number, ((part, features), first) in enumerate(zip(parts, places, strict=True)):
        yield _NumberedPart(number, part, features, *first)


def _write_part(part: _NumberedPart, form: TrainingFormat, about: TrainingSet, folder: Path, memory: int) -> None:
    with whole_files(folder) as unfinished:
        form.write(about, part.training_part(len(about.features), memory), unfinished)


def _size(parts: Sequence[LaidOut], layout: Layout) -> dict[str, int]:
    size = {"rows": sum(part.n_rows for part in parts), "groups": sum(part.n_groups for part in parts)}
    if layout.weighted == "preference":
        size["preferences"] = sum(part.n_preferences for part in parts)
    return size


def _nothing_in(split: Split, layout: Layout, *, alone: bool) -> str:
    """Why there is nothing to learn from, in words."""
    if alone:
        return f"--layout {layout.name}: there is nothing to learn from: {layout.nothing}. Add more days of logs."
    share = "more" if split == "validation" else "less"
    return f"--layout {layout.name}: {split}/ would be empty: {layout.nothing}. Set {share} apart with --validation."
