"""Layouts part by part: what of a training set is the same for every trainer, kept until all of it is known.

Only ids, labels and weights are kept, in memory where the log is, else on disk. Features come later; where there are
none, rows are written as they come, and nothing is kept.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import Grouping
from posbias.core.schema import DOC, QUERY, SESSION
from posbias.core.training.layouts import GROUP, LayoutOfPages
from posbias.core.training.layouts.layout import RowsOfPairs
from posbias.core.training.split import in_validation
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, Parts
from posbias.io.progress import Progress, Stage
from posbias.io.temporary.kept import KeptFrame, keep

Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")

_MOST_ROWS_AT_ONCE = 1 << 21  # of pages: they and their copies take about 500 MB
_OTHER_SEED = 1  # so that pieces of a bucket are no buckets


@dataclass(frozen=True)
class LaidOut:
    """Some rows of a layout, whole groups, numbered within them."""

    rows: KeptFrame
    preferences: KeptFrame | None  # among them, where a preference has a weight
    n_rows: int  # number of rows
    n_groups: int  # number of groups
    n_preferences: int = 0  # number of preferences; 0 in other layouts


LaidOutSplits = dict[Split, list[LaidOut]]
Kept = TypeVar("Kept")


class PairsOfParts(Protocol):
    """The documents of a log, part by part: a log that was counted, for one."""

    @property
    def pairs(self) -> tuple[KeptFrame, ...]:
        """Those of each part."""
        ...

    @property
    def parts(self) -> Iterator[PairsOfPart]:
        """The same, with their signatures."""
        ...


@dataclass(frozen=True)
class RowBuffer:
    """Where laid-out rows are kept, and how they are split."""

    folder: Path | None  # on disk; None keeps them in memory
    validation: float = 0.0  # the share of queries or sessions that are set apart for validation
    by: Grouping = "query"  # which of the two
    # whether rows are written as soon as they are laid out, so that memory holds those of a few parts
    passes_on: bool = False

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that are asked for."""
        return SPLITS if self.validation else SPLITS[:1]

    def split(self, frame: pl.DataFrame) -> dict[Split, pl.DataFrame]:
        """The rows of each split."""
        if not self.validation:
            return {"training": frame}
        apart = in_validation(frame[QUERY if self.by == "query" else SESSION], self.validation)
        return {"training": frame.filter(~apart), "validation": frame.filter(apart)}

    def keep(
        self,
        name: str,
        rows: pl.DataFrame,
        preferences: pl.DataFrame | None = None,
        *,
        quickly: bool = False,
        is_whole_part: bool = True,
    ) -> list[LaidOut]:
        """Rows and preferences, kept; nothing where there are no rows.

        Args:
            name: of the files, if there are any.
            rows: of a part.
            preferences: among them.
            quickly: in more room.
            is_whole_part: whether these are all rows of the part; where they are not, they wait for the others on disk.
        """
        folder = None if self.passes_on and is_whole_part else self.folder
        kept = keep_rows(folder, name, rows, preferences, quickly=quickly)
        return [] if kept is None else [kept]


def keep_rows(
    folder: Path | None, name: str, rows: pl.DataFrame, preferences: pl.DataFrame | None, *, quickly: bool = False
) -> LaidOut | None:
    """Keep rows of whole groups, numbered from 0, in memory or in a directory; None where there are no rows."""
    if not rows.height:
        return None
    size = rows.height, int(rows[GROUP][-1]) + 1, 0 if preferences is None else preferences.height
    kept = None if preferences is None else keep(preferences, folder, f"preferences-{name}")
    return LaidOut(keep(rows, folder, f"rows-{name}", quickly=quickly), kept, *size)


def lay_out_pairs(
    pairs: PairsOfParts,
    by_signature: Floats,
    rows_of: RowsOfPairs,
    engine: Engine,
    buffer: RowBuffer,
    progress: Progress,
) -> Generator[LaidOutSplits]:
    """Lay out counts by pair, part by part, as they are asked for.

    Args:
        pairs: the documents of each part.
        by_signature: what `rows_of` needs to know of each signature, shape (J, S).
        rows_of: the layout.
        engine: where the parts are.
        buffer: how and where the rows are kept.
        progress: is told.
    """
    items = ((part, by_signature.take(part.signature, axis=0)) for part in pairs.parts)
    work = partial(_lay_out_pairs, rows_of=rows_of, buffer=buffer)
    with progress.stage("weighting", len(pairs.pairs)) as stage:
        yield from _advancing(engine.each(items, work), stage)


def count_documents(counted: CountedLog, engine: Engine) -> int:
    """How many documents a log has, each with its query."""
    if counted.plan.context:
        return sum(engine.each(counted.pairs, _count_documents))
    return counted.statistics.n_pairs


def _count_documents(pairs: KeptFrame) -> int:
    return pairs.load().select(pl.struct(QUERY, DOC).n_unique()).item()


def _lay_out_pairs(item: tuple[PairsOfPart, Floats], rows_of: RowsOfPairs, buffer: RowBuffer) -> LaidOutSplits:
    part, by_signature = item
    return {
        split: buffer.keep(f"{split}-{part.number:05d}", rows_of(pairs, by_signature), quickly=True)
        for split, pairs in buffer.split(part.kept.load()).items()
    }


@dataclass(frozen=True)
class PageLayout:
    """How pages are laid out."""

    layout: LayoutOfPages
    grouping: Grouping  # what stands together
    # makes weighted pages, as from `weighted_pages`, of whole pages. It travels: no lambda.
    weigh: Callable[[pl.DataFrame], pl.DataFrame]

    def rows(self, impressions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The rows, and the preferences where the layout has them."""
        return self.layout.rows(self.weigh(impressions), self.grouping)


def lay_out_pages(pages: Parts, layout: PageLayout, buffer: RowBuffer, progress: Progress) -> Generator[LaidOutSplits]:
    """Lay out pages, bucket by bucket, as they are asked for.

    A bucket that a frequent query makes large is laid out in pieces, where that is possible.
    """
    with progress.stage("weighting", pages.number) as stage:
        yield from _advancing(pages.map(partial(_lay_out_bucket, layout=layout, buffer=buffer)), stage)


def _lay_out_bucket(number: int, impressions: pl.LazyFrame, layout: PageLayout, buffer: RowBuffer) -> LaidOutSplits:
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION if layout.grouping == "session" else QUERY).hash(_OTHER_SEED) % n_pieces
    found: list[LaidOutSplits] = []
    for piece in range(n_pieces):
        shown = (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
        found.append(
            {
                split: buffer.keep(f"{split}-{number:05d}-{piece:05d}", *layout.rows(part), is_whole_part=n_pieces == 1)
                for split, part in buffer.split(shown).items()
            }
        )
    return together(found, buffer)


def _advancing(parts: Iterator[LaidOutSplits], stage: Stage) -> Iterator[LaidOutSplits]:
    for part in parts:
        stage.advance()
        yield part


def together(parts: Iterable[LaidOutSplits], buffer: RowBuffer) -> LaidOutSplits:
    """The rows of all parts, by split."""
    found = LaidOutSplits({split: [] for split in buffer.splits})
    for part in parts:
        for split, rows in part.items():
            found[split].extend(rows)
    return found


def splits_of(found: Mapping[Split, Sequence[Kept]]) -> list[tuple[Split, Sequence[Kept]]]:
    """The splits that were asked for, training first."""
    return [(split, found[split]) for split in SPLITS if split in found]
