"""Formats of LightGBM, XGBoost and CatBoost, and of judgments (query, document, grade) for search tools.

LightGBM would read a file `train.tsv.position`, and lambdarank would then correct position bias itself, on top of the
weights: positions are written under another name.

XGBoost's own reader of text is deprecated since 3.1, and misses the last bit of every fourth float; its rankers take
one weight per group, which that text cannot hold. The script therefore parses the files itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar
from urllib.parse import quote

import polars as pl
import polars.selectors as cs

from posbias.core.errors import SchemaError, UsageError
from posbias.core.schema import POSITION, WEIGHT
from posbias.core.training.layout import GRADE, GROUP, LOSER_ROW, WINNER_ROW, Layout, Weighted
from posbias.core.training.weights import CELL_NUMBER
from posbias.io import training
from posbias.io.results.tables import as_text_columns
from posbias.io.training.format import (
    TextFormat,
    check_no_preferences,
    feature_names,
    join_pieces,
    libsvm_lines,
    piece_path,
    write_lines,
    write_script,
    write_whole_lines,
)
from posbias.io.training.laid_out import TrainingPart, TrainingSet, as_numbers

_MOST_ROWS_OF_A_GROUP = 10_000  # LightGBM 4.7: "Number of rows 10001 exceeds upper limit of 10000 for a query"


class LightGBMFormat(TextFormat):
    """`train.tsv`, `train.tsv.weight`, `train.tsv.query`, and `positions.txt` where pages are ranked as shown."""

    name = "lightgbm"

    def check(self, layout: Layout) -> None:
        """Check that the layout has no preferences: LightGBM reads weights of rows and of groups only."""
        check_no_preferences(self, layout, "LightGBM")

    def files(self, training_set: TrainingSet) -> list[str]:
        """Return the names of the files that are written in pieces."""
        files = {
            "train.tsv": True,
            "train.tsv.weight": training_set.layout.weighted is not None,
            "train.tsv.query": training_set.layout.ranked,
            "positions.txt": POSITION in training_set.ids,
        }
        return [name for name, is_written in files.items() if is_written]

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append labels and features, weights, sizes of groups, and positions to their files.

        Raises:
            SchemaError: a group has more rows than LightGBM accepts.
        """
        layout = training_set.layout
        label = chunk.select(posbias_label=GRADE if layout.graded else layout.label)  # rankers need integer labels
        columns = [label.hstack(as_numbers(chunk, training_set.features))]
        if layout.weighted is not None:
            columns.append(chunk.select("weight"))
        if layout.ranked:
            sizes = chunk[GROUP].rle().struct.field("len")
            largest = sizes.arg_max()
            if largest is not None and sizes[largest] > _MOST_ROWS_OF_A_GROUP:
                query = chunk["query"][int(sizes.head(largest).sum())]
                advice = "Write --layout pointwise, which has no groups, or --format catboost."
                if layout.rows_are_impressions:
                    advice = "Rank each page on its own (--layout-options group=session), or write --format catboost."
                raise SchemaError(
                    f"query {query!r} has a group of {sizes[largest]:,} rows, and LightGBM ranks at most "
                    f"{_MOST_ROWS_OF_A_GROUP:,} together (--layout {layout.name}). {advice}"
                )
            columns.append(sizes.to_frame())
        if POSITION in training_set.ids:
            columns.append(chunk.select(CELL_NUMBER if CELL_NUMBER in chunk.columns else POSITION))
        for rows, piece in zip(columns, pieces, strict=True):
            write_lines(rows, piece, null="nan")  # LightGBM may miscount columns if fields are empty


_LARGEST_SINGLE = 3.4028234663852886e38
_WEIGHTS: dict[Weighted | None, str] = {"row": "rows.weight", "group": "groups.weight"}


class XGBoostFormat(TextFormat):
    """`train.svm`, and `rows.weight` or `groups.weight`."""

    name = "xgboost"

    def check(self, layout: Layout) -> None:
        """Check that the layout has no preferences and, if ranked, no weights of rows: XGBoost cannot read them.

        Raises:
            UsageError: it has.
        """
        if layout.ranked and layout.weighted == "row":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: XGBoost's rankers take one weight per "
                "group, none per row. Write --layout clicked-group, which has one per group, or pointwise; --format "
                f"lightgbm and catboost carry {layout.name}."
            )
        check_no_preferences(self, layout, "XGBoost")

    def files(self, training_set: TrainingSet) -> list[str]:
        """Return the names of the files that are written in pieces."""
        weights = _WEIGHTS.get(training_set.layout.weighted)
        return ["train.svm", weights] if weights else ["train.svm"]

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append rows, and the weight of each row or group.

        Raises:
            SchemaError: a feature exceeds single precision, in which XGBoost computes.
        """
        floats = chunk.select(feature_names(training_set)).select(cs.float().fill_nan(None))
        for name in floats.columns:
            value = floats.select(pl.col(name).abs().max()).item()
            if value is not None and value > _LARGEST_SINGLE:
                raise SchemaError(
                    f"feature {name!r} reaches {value} in size, and XGBoost takes nothing above {_LARGEST_SINGLE:.4g}. "
                    "Leave such values empty, or write --format lightgbm."
                )
        layout = training_set.layout
        start = [chunk[GRADE if layout.graded and layout.ranked else layout.label]]
        if layout.ranked:
            start.append(chunk.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series())
        write_whole_lines(libsvm_lines(training_set, chunk, *start, first=0), pieces[0])
        for piece in pieces[1:]:
            weighted = chunk.filter(pl.col(GROUP).is_first_distinct()) if layout.weighted == "group" else chunk
            write_lines(weighted.select("weight"), piece)


_PAIRS = "train.pairs"
_LINE_ENDS = r"[\n\r]+"

_WEIGHT: dict[Weighted | None, str] = {"row": "Weight", "group": "GroupWeight"}  # CatBoost's names of the column


class CatBoostFormat(TextFormat):
    """`train.tsv`, `train.cd`, and for pairs `train.pairs`: the rows of winner and loser, from 0, and the weight."""

    name = "catboost"
    file_names = ("train.tsv",)

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append rows; line ends in texts become blanks, as CatBoost splits lines even within quotes."""
        columns = chunk.select(pl.col(name).alias(f"posbias_{name}") for name in _before_features(training_set.layout))
        features = chunk.select(feature_names(training_set))
        features = features.with_columns(cs.boolean().cast(pl.Int8), cs.string().str.replace_all(_LINE_ENDS, " "))
        write_lines(columns.hstack(features), pieces[0])

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write a part: a piece of the rows and, for preferences, a piece of the pairs."""
        super().write(training_set, part, folder)
        if part.preferences is not None:
            pairs = part.preferences.select(WINNER_ROW, LOSER_ROW, "weight")
            pairs.sink_csv(piece_path(folder, _PAIRS, part.number), include_header=False, separator="\t")

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the column description, the features and the script."""
        super().finish(training_set, folder)
        if training_set.layout.weighted == "preference":
            join_pieces(folder, _PAIRS)
        kinds = [(kind, "") for kind in _before_features(training_set.layout).values()]
        names = list[str]()
        for feature in training_set.features:
            name = " ".join(feature.name.split())
            while name in names:
                name += "_"
            names.append(name)
            kinds.append(("Num" if feature.categories is None else "Categ", name))
        lines = [f"{k}\t{kind}\t{name}".rstrip() + "\n" for k, (kind, name) in enumerate(kinds)]
        (folder / "train.cd").write_text("".join(lines), encoding="utf-8")


def _before_features(layout: Layout) -> dict[str, str]:
    """Map the columns before the features to CatBoost's names of them."""
    columns = {} if layout.weighted == "preference" else {layout.label: "Label"}
    if layout.ranked:
        columns[GROUP] = "GroupId"
    if layout.weighted in _WEIGHT:
        columns[WEIGHT] = _WEIGHT[layout.weighted]
    return columns


_NOT_IN_A_FIELD = [
    "%",
    *map(
        chr, [*range(0x21), *range(0x7F, 0xA1), 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    ),
    "\ufeff",
]
"""Characters of ids that are percent-encoded: some tool takes them for blanks, which separate fields."""


class JudgmentFormat(TextFormat):
    """A format with grades and without weights; `load.md` describes its use."""

    needs_features = False
    instead: ClassVar[str] = (
        "it holds grades and no weights. Write --layout judgments."  # end of the message of `check`
    )

    def check(self, layout: Layout) -> None:
        """Check that the layout has grades and no weights.

        Raises:
            UsageError: it has weights, or no grades.
        """
        if layout.weighted is not None or not layout.graded:
            instead = self.instead.format(trainers=", ".join(training.trainers_that_carry(layout)))
            raise UsageError(f"--format {self.name} cannot carry --layout {layout.name}: {instead}")


class RankLibFormat(JudgmentFormat):
    """`judgments.txt`: queries as comments (`# qid:1: red shoes`), then a line for each document.

    The learning-to-rank plugins of Elasticsearch and OpenSearch read it, too: `4 qid:1 1:9.8 # doc query`.
    """

    name = "ranklib"
    file_names = ("judgments.txt", "queries.txt")  # `finish` joins both into the first
    instead = (
        "a line of RankLib holds a grade and no weight. Write --layout judgments, or this layout in the format of "
        "another trainer: {trainers}."
    )

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append lines and queries; queries are numbered from 1, control characters in ids become blanks."""
        lines, queries = pieces
        texts = as_text_columns(chunk.lazy().select("query", "doc")).collect()
        one_line = pl.all().cast(pl.String).str.replace_all(r"[\x00-\x1f]+", " ").fill_null("")
        ids = texts.select(one_line).with_columns(chunk[GROUP] + 1)
        start = [chunk[GRADE], ids.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series()]
        rows = libsvm_lines(training_set, chunk, *start, first=1).to_frame()
        rows = rows.hstack(ids).select(pl.concat_str("line", pl.lit(" # "), "doc", pl.lit("\t"), "query"))
        write_whole_lines(rows.to_series(), lines)
        first = ids.filter(pl.col(GROUP).is_first_distinct())
        heads = first.select(pl.concat_str(pl.lit("# qid:"), GROUP, pl.lit(": "), "query"))
        write_whole_lines(heads.to_series(), queries)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces, the queries first; write the features, the script and `load.md`."""
        file, queries = self.file_names
        join_pieces(folder, file, queries, file)
        write_script(training_set, folder, self.name, self.name)


@dataclass(frozen=True, kw_only=True)
class JudgmentListFormat(JudgmentFormat):
    """A format of judgments only; features, debiased rates and counts are in the table `rows`."""

    name: str
    file: str  # name of the file
    # Picklable function from whole groups to lines; columns `group`, `query` and `doc` (non-empty texts), `grade`, and
    # `index`, the search engine's index
    lines: Callable[[pl.DataFrame], pl.Series]
    header: str = ""  # text before the lines
    end: str = ""  # text after the lines, if these are entries of a JSON array, each after a comma
    takes: tuple[str, ...] = ()

    def files(self, training_set: TrainingSet) -> Sequence[str]:
        """Return the name of the file."""
        del training_set
        return (self.file,)

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append whole groups.

        Raises:
            SchemaError: a query or a document is empty.
        """
        ids = as_text_columns(chunk.lazy().select("query", "doc")).collect().cast(pl.String)
        for name in ids.columns:
            if ids[name].is_null().any() or (ids[name] == "").any():
                raise SchemaError(
                    f"column {name!r}: a judgment is of a {name} without a name (empty), which no search tool takes. "
                    "Leave its rows out of the log, or write --format parquet."
                )
        index = pl.lit(training_set.search_index, pl.String).alias("index")
        write_whole_lines(self.lines(chunk.select(GROUP, GRADE, index).hstack(ids)), pieces[0])

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the features, the script and `load.md`."""
        join_pieces(folder, self.file, header=self.header)
        if self.end:
            with (folder / self.file).open("rb+") as whole:
                whole.seek(len(self.header.encode()))
                whole.write(b" ")  # over the comma of the first entry
                whole.seek(0, 2)
                whole.write(self.end.encode())
        write_script(training_set, folder, "judgments", self.name)


def _qrels_lines(judged: pl.DataFrame) -> pl.Series:
    """Return one line per judgment; blanks in ids are percent-encoded."""
    codes = [quote(character) for character in _NOT_IN_A_FIELD]
    ids = pl.col("query", "doc").str.replace_many(_NOT_IN_A_FIELD, codes)
    line = pl.concat_str("query", pl.lit(" 0 "), "doc", pl.lit(" "), GRADE)
    return judged.with_columns(ids).select(line).to_series()


def _opensearch_lines(judged: pl.DataFrame) -> pl.Series:
    """Return one line per query, with ratings as texts."""
    rated = _by_query(judged, pl.struct(docId="doc", rating=pl.col(GRADE).cast(pl.String)))
    return "," + rated.select(pl.struct("query", "ratings").struct.json_encode()).to_series()


def _elasticsearch_lines(judged: pl.DataFrame) -> pl.Series:
    """Return one line per query."""
    rated = _by_query(judged, pl.struct(_index="index", _id="doc", rating=GRADE))
    request = pl.struct(id="query", template_id=pl.lit("search"), params=pl.struct("query"), ratings="ratings")
    return "," + rated.select(request.struct.json_encode()).to_series()


def _quepid_lines(judged: pl.DataFrame) -> pl.Series:
    """Return one line per judgment; line ends in texts become blanks, as the import splits lines within quotes."""
    texts = judged.select(pl.col("query", "doc").str.replace_all(r"[\r\n]+", " "), GRADE)
    return pl.Series([texts.write_csv(include_header=False).rstrip("\n")])


def _by_query(judged: pl.DataFrame, ratings: pl.Expr) -> pl.DataFrame:
    """Return one row per query: `query`, and the list `ratings` of its documents."""
    rated = judged.select(GROUP, "query", ratings.alias("ratings"))
    return rated.group_by(GROUP, maintain_order=True).agg(pl.first("query"), "ratings")


QRELS = JudgmentListFormat(name="qrels", file="judgments.qrels", lines=_qrels_lines)
"""TREC qrels, `query 0 doc grade`, for trec_eval, ir_measures, pytrec_eval and ranx."""

_ARRAY_END = "]\n}\n"

OPENSEARCH = JudgmentListFormat(
    name="opensearch",
    file="judgments.json",
    lines=_opensearch_lines,
    header="""{
"name": "posbias",
"description": "Judgments from clicks, corrected for position bias",
"type": "IMPORT_JUDGMENT",
"judgmentRatings": [
""",
    end=_ARRAY_END,
)
"""The body of `PUT _plugins/_search_relevance/judgments`, an import of OpenSearch's Search Relevance Workbench."""

ELASTICSEARCH = JudgmentListFormat(
    name="elasticsearch",
    file="rank_eval.json",
    lines=_elasticsearch_lines,
    header="""{
"metric": {"dcg": {"k": 10, "normalize": true}},
"templates": [{"id": "search", "template": {"inline": {"query": {"multi_match": {"query": "{{query}}"}}}}}],
"requests": [
""",
    end=_ARRAY_END,
    takes=("search_index",),
)
"""The body of `POST INDEX/_rank_eval` of Elasticsearch and OpenSearch: metric, template, one request per query."""

QUEPID = JudgmentListFormat(name="quepid", file="ratings.csv", lines=_quepid_lines, header="query,docid,rating\n")
"""CSV with the columns of Quepid's import of ratings; texts with a comma or quote are quoted."""
