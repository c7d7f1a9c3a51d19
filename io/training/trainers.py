"""The files of LightGBM, XGBoost and CatBoost.

LightGBM also finds `train.tsv.position`, and then lambdarank corrects position bias itself, on top of the weights.
So the positions are written under another name.

XGBoost's own reader of text is deprecated since 3.1, warns, and misses the last bit of every fourth float; rankers
take one weight per group, which that text cannot hold. So the script reads both by other means, exactly.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import polars as pl
import polars.selectors as cs

from posbias.core.errors import SchemaError, UsageError
from posbias.core.schema import POSITION, WEIGHT
from posbias.core.training.layout import GRADE, GROUP, LOSER_ROW, WINNER_ROW, Layout, Weighted
from posbias.io.training.format import (
    TextFormat,
    check_no_preferences,
    feature_names,
    features_as_numbers,
    join_pieces,
    libsvm_lines,
    piece_path,
    write_lines,
    write_whole_lines,
)
from posbias.io.training.laid_out import TrainingPart, TrainingSet

_MOST_ROWS_OF_A_GROUP = 10_000  # LightGBM 4.7: "Number of rows 10001 exceeds upper limit of 10000 for a query"


class LightGBMFormat(TextFormat):
    """`train.tsv`, `train.tsv.weight`, `train.tsv.query`, and `positions.txt` where pages are ranked as shown."""

    name = "lightgbm"

    def check(self, layout: Layout) -> None:
        """LightGBM reads weights of rows and of groups only."""
        check_no_preferences(self, layout, "LightGBM")

    def files(self, training_set: TrainingSet) -> list[str]:
        """The files that pieces make."""
        layout = training_set.layout
        there = {"weight": layout.weighted is not None, "query": layout.ranked}
        files = ["train.tsv", *(f"train.tsv.{name}" for name, is_there in there.items() if is_there)]
        return [*files, "positions.txt"] if POSITION in training_set.ids else files

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append what of a chunk goes into each file."""
        layout = training_set.layout
        label = chunk.select(posbias_label=GRADE if layout.graded else layout.label)  # rankers take whole numbers
        columns = [label.hstack(features_as_numbers(training_set, chunk))]
        if layout.weighted is not None:
            columns.append(chunk.select("weight"))
        if layout.ranked:
            columns.append(_group_sizes(training_set, chunk).to_frame())
        if POSITION in training_set.ids:
            columns.append(chunk.select(POSITION))
        for of_file, piece in zip(columns, pieces, strict=True):
            write_lines(of_file, piece, null="nan")  # an empty field may hide how many columns there are


def _group_sizes(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.Series:
    """The number of rows of each group of a chunk, in order.

    Raises:
        SchemaError: a group has more rows than LightGBM takes.
    """
    sizes = chunk[GROUP].rle().struct.field("len")
    largest = sizes.arg_max()
    if largest is None or sizes[largest] <= _MOST_ROWS_OF_A_GROUP:
        return sizes
    query = chunk["query"][int(sizes.head(largest).sum())]
    advice = "Write --layout pointwise, which has no groups, or --format catboost."
    if training_set.layout.shows_impressions:
        advice = "Rank each page on its own (--layout-options group=session), or write --format catboost."
    raise SchemaError(
        f"query {query!r} has a group of {sizes[largest]:,} rows, and LightGBM ranks at most {_MOST_ROWS_OF_A_GROUP:,} "
        f"together (--layout {training_set.layout.name}). {advice}"
    )


_LARGEST_SINGLE = 3.4028234663852886e38
_WEIGHTS: dict[Weighted | None, str] = {"row": "rows.weight", "group": "groups.weight"}


class XGBoostFormat(TextFormat):
    """`train.svm`, and `rows.weight` or `groups.weight`."""

    name = "xgboost"

    def check(self, layout: Layout) -> None:
        """Check the layout: XGBoost's rankers have weights of groups only."""
        if layout.ranked and layout.weighted == "row":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: XGBoost's rankers take one weight per "
                "group, none per row. Write --layout clicked-group, which has one per group, or pointwise; --format "
                f"lightgbm and catboost carry {layout.name}."
            )
        check_no_preferences(self, layout, "XGBoost")

    def files(self, training_set: TrainingSet) -> list[str]:
        """The files that pieces make."""
        weights = _WEIGHTS.get(training_set.layout.weighted)
        return ["train.svm", weights] if weights else ["train.svm"]

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append some rows, and the weight of each, or the one of each group."""
        _check_finite(training_set, chunk)
        layout = training_set.layout
        start = [chunk[GRADE if layout.graded and layout.ranked else layout.label]]
        if layout.ranked:
            start.append(chunk.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series())
        write_whole_lines(libsvm_lines(training_set, chunk, *start, first=0), pieces[0])
        for piece in pieces[1:]:
            weighted = chunk.filter(pl.col(GROUP).is_first_distinct()) if layout.weighted == "group" else chunk
            write_lines(weighted.select("weight"), piece)


def _check_finite(training_set: TrainingSet, chunk: pl.DataFrame) -> None:
    """Check that the features are numbers that XGBoost takes: it computes in single precision.

    Raises:
        SchemaError: one is not.
    """
    floats = chunk.select(feature_names(training_set)).select(cs.float().fill_nan(None))
    for name in floats.columns:
        value = floats.select(pl.col(name).abs().max()).item()
        if value is not None and value > _LARGEST_SINGLE:
            raise SchemaError(
                f"feature {name!r} reaches {value} in size, and XGBoost takes nothing above {_LARGEST_SINGLE:.4g}. "
                "Leave such values empty, or write --format lightgbm."
            )


_PAIRS = "train.pairs"
_LINE_ENDS = r"[\n\r]+"

_WEIGHT: dict[Weighted | None, str] = {"row": "Weight", "group": "GroupWeight"}  # what CatBoost calls the column


class CatBoostFormat(TextFormat):
    """`train.tsv`, `train.cd`, and for pairs `train.pairs`: the rows of winner and loser, from 0, and the weight."""

    name = "catboost"
    made = ("train.tsv",)  # that of pairs is not made of chunks

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append some rows, texts on one line each, since CatBoost splits lines even within quotes."""
        columns = chunk.select(pl.col(name).alias(f"posbias_{name}") for name in _before_features(training_set.layout))
        features = chunk.select(feature_names(training_set))
        on_lines = features.with_columns(cs.boolean().cast(pl.Int8), cs.string().str.replace_all(_LINE_ENDS, " "))
        write_lines(columns.hstack(on_lines), pieces[0])

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks, and the pairs, to this part's pieces."""
        super().write(training_set, part, folder)
        if part.preferences is not None:
            pairs = part.preferences.select(WINNER_ROW, LOSER_ROW, "weight")
            pairs.sink_csv(piece_path(folder, _PAIRS, part.number), include_header=False, separator="\t")

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the column description, the features and the script."""
        super().finish(training_set, folder)
        if training_set.layout.weighted == "preference":
            join_pieces(folder, _PAIRS)
        (folder / "train.cd").write_text(_description(training_set), encoding="utf-8")


def _before_features(layout: Layout) -> dict[str, str]:
    """The first columns, and what CatBoost calls them."""
    columns = {} if layout.weighted == "preference" else {layout.label: "Label"}
    if layout.ranked:
        columns[GROUP] = "GroupId"
    if layout.weighted in _WEIGHT:
        columns[WEIGHT] = _WEIGHT[layout.weighted]
    return columns


def _description(training_set: TrainingSet) -> str:
    """Descriptions of the columns of `train.tsv`, one line each."""
    kinds = [(kind, "") for kind in _before_features(training_set.layout).values()]
    names = list[str]()
    for feature in training_set.features:
        name = " ".join(feature.name.split())
        while name in names:
            name += "_"
        names.append(name)
    features = zip(training_set.features, names, strict=True)
    kinds += [("Num" if feature.categories is None else "Categ", name) for feature, name in features]
    return "".join(f"{k}\t{kind}\t{name}".rstrip() + "\n" for k, (kind, name) in enumerate(kinds))
