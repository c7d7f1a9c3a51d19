"""Ratings for Quepid, as its import takes them: CSV with the header `query,docid,rating`."""

from pathlib import Path
from typing import ClassVar

import polars as pl

from posbias.io.formats.judgment_lists import JudgmentListFormat
from posbias.io.formats.pieces import join_pieces

_LINE_ENDS = r"[\r\n]+"  # the import splits lines before it looks for quotes


class QuepidFormat(JudgmentListFormat):
    """`ratings.csv`; a text that holds a comma or a quote is quoted, and stands on one line."""

    name = "quepid"
    rank = 10
    file: ClassVar[str] = "ratings.csv"
    module = "csv"
    read: ClassVar[str] = 'grades = [row["rating"] for row in csv.DictReader(file)]'

    def lines(self, judged: pl.DataFrame) -> pl.Series:
        """A line each."""
        texts = judged.select(pl.col("query", "doc").str.replace_all(_LINE_ENDS, " "), "grade")
        return pl.Series([texts.write_csv(include_header=False).rstrip("\n")])

    def join(self, folder: Path) -> None:
        """Join the pieces below the header."""
        join_pieces(folder, self.file, header="query,docid,rating\n")

    about: ClassVar[str] = """# Ratings for Quepid

`ratings.csv` has the columns `query,docid,rating` that *Import* of a case takes (*Ratings*, *CSV*). Queries that the
case lacks are added. Ratings are whole numbers from 0: give the case a scorer of that scale, 0 to 4 for `--grades 5`.

`rows/` has the debiased rate of each line, its error and its counts, in the same order.
"""
