"""What judgments of search tools have in common: one file of (query, document, grade), written by parts."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import polars as pl

from posbias.core.errors import SchemaError, UsageError
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.judgments import GRADE
from posbias.io.formats.columns import with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat
from posbias.io.formats.pieces import join_pieces, open_pieces, write_whole_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.plain_text import as_text_columns


class JudgmentListFormat(TrainingFormat):
    """A format of judgments alone: features, debiased rates and counts stand beside it, in `rows`.

    Attributes:
        file: what is written.
        module: of Python's own, which reads it; none reads plain lines.
        read: the line of `load.py` that makes `grades`, a list, of the open `file`.
        about: `load.md`: what the file is for.
    """

    needs_features = False
    file: ClassVar[str]
    module: ClassVar[str | None] = None
    read: ClassVar[str]
    about: ClassVar[str]

    def check(self, layout: Layout) -> None:
        """It has a place for grades and none for weights."""
        if layout.weighted is not None or not layout.graded:
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: it holds grades and no weights. Write "
                "--layout judgments."
            )

    @abstractmethod
    def lines(self, judged: pl.DataFrame) -> pl.Series:
        """The text of whole groups.

        Args:
            judged: `group`, `query` and `doc` as text that is not empty, `grade`, and `index`, that of a search engine.
        """

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's piece."""
        with open_pieces(folder, part.number, self.file) as (piece,):
            for chunk in with_rows_beside(training_set, part, folder):
                ids = as_text_columns(chunk.lazy().select("query", "doc")).collect().cast(pl.String)
                _check_named(ids)
                index = pl.lit(training_set.search_index, pl.String).alias("index")
                write_whole_lines(self.lines(chunk.select(GROUP, GRADE, index).hstack(ids)), piece)

    def join(self, folder: Path) -> None:
        """Join the pieces."""
        join_pieces(folder, self.file)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the features, the script and what the file is for."""
        self.join(folder)
        write_features(training_set, folder)
        imported = f"import {self.module}\n" if self.module else ""
        script = _LOAD.replace("@FILE@", self.file).replace("@READ@", self.read).replace("@IMPORT@", imported)
        (folder / "load.py").write_text(script, encoding="utf-8")
        (folder / "load.md").write_text(self.about, encoding="utf-8")


def _check_named(ids: pl.DataFrame) -> None:
    """See that every query and document has a name.

    Raises:
        SchemaError: one has none.
    """
    for name in ids.columns:
        if ids[name].is_null().any() or (ids[name] == "").any():
            raise SchemaError(
                f"column {name!r}: a judgment is of a {name} without a name (empty), which no search tool takes. Leave "
                "its rows out of the log, or write --format parquet."
            )


def by_query(judged: pl.DataFrame, ratings: pl.Expr, names: Sequence[str]) -> pl.DataFrame:
    """One row a query: `query`, and the list of what is said of its documents.

    Args:
        judged: `group`, `query`, `doc`, `grade`.
        ratings: what is said of a document.
        names: the fields of `ratings`, as the tool knows them.
    """
    said = judged.select(GROUP, "query", ratings.struct.rename_fields(names).alias("ratings"))
    return said.group_by(GROUP, maintain_order=True).agg(pl.first("query"), "ratings")


def join_entries(folder: Path, file: str, start: str, end: str) -> None:
    """Join pieces whose lines are the entries of a JSON array, each behind a comma, between what stands around it."""
    join_pieces(folder, file, header=start)
    with (folder / file).open("rb+") as whole:
        whole.seek(len(start.encode()))
        whole.write(b" ")  # in the place of the first comma
        whole.seek(0, 2)
        whole.write(end.encode())


_LOAD = '''"""Counts the judgments of @FILE@ by grade; load.md says what they are for."""

@IMPORT@from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent

with (HERE / "@FILE@").open(encoding="utf-8", newline="") as file:
    @READ@
counts = ", ".join(f"{count:,} of grade {grade}" for grade, count in sorted(Counter(grades).items()))
print(f"{len(grades):,} judgments: {counts}")
'''
