"""From laid-out rows to the files of a trainer: rows are numbered, features brought, parts written and joined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.layouts import GROUP, Grouping, Layout
from posbias.core.layouts.preferences import LOSER_ROW, WINNER_ROW
from posbias.io.engines.engine import Engine
from posbias.io.layout_parts import LaidOut, Split, count, first_numbers, splits_of
from posbias.io.owned import remove_unfinished, whole_files
from posbias.io.progress import Progress
from posbias.io.training import TrainingFormat
from posbias.io.training.training_set import Feature, TrainingPart, TrainingSet


@dataclass(frozen=True)
class _NumberedPart:
    """A laid-out part with its place in the whole, and the features of its rows."""

    number: int
    laid_out: LaidOut
    first_row: int
    first_group: int
    features: pl.LazyFrame | None

    @property
    def training_part(self) -> TrainingPart:
        numbered = pl.col(GROUP) + self.first_group
        rows = self.laid_out.scan.with_columns(numbered)
        preferences = self.laid_out.scan_preferences
        if preferences is not None:
            preferences = preferences.with_columns(numbered, pl.col(WINNER_ROW, LOSER_ROW) + self.first_row)
        return TrainingPart(self.number, iter([rows.collect()]), preferences)


def write_training_sets(
    laid_out: Mapping[Split, Sequence[LaidOut]],
    layout: Layout,
    grouping: Grouping,
    form: TrainingFormat,
    engine: Engine,
    folder: Path,
    progress: Progress,
) -> dict[str, dict[str, int]]:
    """Write each split into a directory of its own; return the number of its rows and groups.

    Raises:
        SchemaError: a split has no rows.
    """
    sizes: dict[str, dict[str, int]] = {}
    with progress.stage("writing", sum(map(len, laid_out.values()))) as stage:
        for split, parts in splits_of(laid_out):
            n_rows, n_groups = count(parts)
            if not n_rows:
                raise SchemaError(_nothing_in(split, layout))
            target = folder / split
            target.mkdir()
            about = TrainingSet(layout.name, layout.ids(grouping), layout.label, (), n_rows, n_groups)
            for _ in engine.each(_numbered(parts), partial(_write_part, form=form, about=about, folder=target)):
                stage.advance()
            remove_unfinished(target)
            form.finish(about, target)
            sizes[split] = {"rows": n_rows, "groups": n_groups}
    return sizes


def _numbered(parts: Sequence[LaidOut]) -> Iterator[_NumberedPart]:
    for number, (part, first) in enumerate(zip(parts, first_numbers(parts), strict=True)):
        yield _NumberedPart(number, part, *first, None)


def _write_part(part: _NumberedPart, form: TrainingFormat, about: TrainingSet, folder: Path) -> None:
    with whole_files(folder) as unfinished:
        form.write(about, part.training_part, unfinished)


def _nothing_in(split: Split, layout: Layout) -> str:
    if split == "validation":
        return "--validation: chance sent nothing there. Take a larger share."
    if layout.name in ("clicked-group", "pairs"):
        return f"--layout {layout.name}: no click carries a weight, so that there is nothing to learn from."
    return f"--layout {layout.name}: there is nothing to learn from: no row is left for training."
