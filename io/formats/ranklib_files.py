"""RankLib, and the judgment lists of learning to rank in Elasticsearch and OpenSearch: `4 qid:1 1:9.8 # doc query`."""

from pathlib import Path

import polars as pl

from posbias.core.errors import UsageError
from posbias.core.training.layouts import GROUP, Layout
from posbias.io import formats
from posbias.io.formats.columns import libsvm_lines, with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat
from posbias.io.formats.pieces import join_pieces, open_pieces, write_whole_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.plain_text import as_text_columns

_FILE, _QUERIES = "judgments.txt", "queries.txt"


class RankLibFormat(TrainingFormat):
    """`judgments.txt`: the queries as comments (`# qid:1: red shoes`), then a line for each document."""

    name = "ranklib"
    rank = 6
    needs_features = False

    def check(self, layout: Layout) -> None:
        """It has a place for grades and none for weights."""
        if layout.weighted is not None or not layout.graded:
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: a line of RankLib holds a grade and no "
                "weight. Write --layout judgments, or this layout in the format of another trainer: "
                f"{', '.join(formats.trainers_that_carry(layout))}."
            )

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's pieces."""
        with open_pieces(folder, part.number, _FILE, _QUERIES) as (lines, queries):
            for chunk in with_rows_beside(training_set, part, folder):
                ids = _ids(chunk)
                start = [chunk["grade"], ids.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series()]
                rows = libsvm_lines(training_set, chunk, *start, first=1).to_frame()
                rows = rows.hstack(ids).select(pl.concat_str("line", pl.lit(" # "), "doc", pl.lit("\t"), "query"))
                write_whole_lines(rows.to_series(), lines)
                first = ids.filter(pl.col(GROUP).is_first_distinct())
                heads = first.select(pl.concat_str(pl.lit("# qid:"), GROUP, pl.lit(": "), "query"))
                write_whole_lines(heads.to_series(), queries)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces, the queries first; write the features, the script and what it is for."""
        join_pieces(folder, _FILE, _QUERIES, _FILE)
        write_features(training_set, folder)
        (folder / "load.py").write_text(_LOAD, encoding="utf-8")
        (folder / "load.md").write_text(_ABOUT, encoding="utf-8")


def _ids(chunk: pl.DataFrame) -> pl.DataFrame:
    """The number of the query, from 1, and query and document as texts on one line."""
    ids = as_text_columns(chunk.lazy().select("query", "doc")).collect()
    return ids.select(pl.all().cast(pl.String).str.replace_all(r"[\x00-\x1f]+", " ").fill_null("")).with_columns(
        chunk[GROUP] + 1
    )


_LOAD = '''"""Reads judgments.txt; load.md says what else does. Features are numbered as in features.json, from 1."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

HERE = Path(__file__).resolve().parent

features, grades, queries = load_svmlight_file(str(HERE / "judgments.txt"), query_id=True)
counts = ", ".join(f"{np.sum(grades == grade):,} of grade {grade:.0f}" for grade in np.unique(grades))
print(f"{len(grades):,} judgments of {len(np.unique(queries)):,} queries: {counts}")
'''

_ABOUT = """# Judgments for RankLib, and for learning to rank in Elasticsearch and OpenSearch

`judgments.txt` begins with the queries, `# qid:1: red shoes`; then comes a line for each query and document:

    4 qid:1 1:9.8 2:3 # doc-17	red shoes

that is the grade, the query, the features by number from 1 in the order of `features.json`, and, after `#`, document
and query, apart by a tab. Missing values are left out; a text is its place among the categories of `features.json`.
`rows/` has ids, impressions, clicks and the debiased rate of each line, in the same order.

RankLib trains on it, LambdaMART by NDCG@10 (on the validation part, where there is one, with
`-validate ../validation/judgments.txt`):

    java -jar RankLib.jar -train judgments.txt -ranker 6 -metric2t NDCG@10 -save model.txt

Without features it is the judgment list that the learning-to-rank plugins' examples start from (`4 qid:1 # 7555 rambo`
below `# qid:1: rambo`): have the plugin log its features for these queries and documents, and put them into the lines.
"""
