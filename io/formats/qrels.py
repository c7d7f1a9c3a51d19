"""TREC qrels, `query 0 doc grade`: what trec_eval, ir_measures, pytrec_eval and ranx evaluate runs with."""

from typing import ClassVar
from urllib.parse import quote

import polars as pl

from posbias.io.formats.judgment_lists import JudgmentListFormat

_NOT_IN_A_FIELD = [
    "%",
    *map(
        chr, [*range(0x21), *range(0x7F, 0xA1), 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    ),
    "\ufeff",
]
"""Fields stand between blanks, and what counts as one differs by tool; `%` marks what is written in their place."""


class QrelsFormat(JudgmentListFormat):
    """`judgments.qrels`; blanks in ids are percent-encoded."""

    name = "qrels"
    rank = 7
    file: ClassVar[str] = "judgments.qrels"
    read: ClassVar[str] = 'grades = [line.split(" ")[3].strip() for line in file]'

    def lines(self, judged: pl.DataFrame) -> pl.Series:
        """A line each."""
        codes = [quote(character) for character in _NOT_IN_A_FIELD]
        ids = pl.col("query", "doc").str.replace_many(_NOT_IN_A_FIELD, codes)
        line = pl.concat_str("query", pl.lit(" 0 "), "doc", pl.lit(" "), "grade")
        return judged.with_columns(ids).select(line).to_series()

    about: ClassVar[str] = """# Judgments as TREC qrels

`judgments.qrels` has a line `query 0 document grade` for each query and document. In ids, a blank, a line end or
`%` is percent-encoded, as fields stand between blanks: `red shoes` is `red%20shoes` (Python: `urllib.parse.unquote`
undoes it). A run that is evaluated must name them alike.

    ir_measures judgments.qrels run.txt nDCG@10
    trec_eval -m ndcg_cut.10 judgments.qrels run.txt

Grades are whole numbers from 0; `rows/` has the debiased rate of each line, its error and its counts, in the same
order.
"""
