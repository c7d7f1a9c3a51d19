"""LightGBM: tab-separated rows, with weights and group sizes in files beside them that it finds by their names.

LightGBM also finds `train.tsv.position`, and then lambdarank corrects position bias itself, on top of the weights.
So the positions are written under another name.
"""

from pathlib import Path

import polars as pl

from posbias.core.errors import SchemaError, UsageError
from posbias.core.schema import POSITION
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.judgments import GRADE
from posbias.io.formats.columns import features_as_numbers, with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat, with_saving
from posbias.io.formats.pieces import join_pieces, open_pieces, write_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_MOST_ROWS_OF_A_GROUP = 10_000  # LightGBM 4.7: "Number of rows 10001 exceeds upper limit of 10000 for a query"

_DATA, _WEIGHTS, _GROUPS, _POSITIONS = "train.tsv", "train.tsv.weight", "train.tsv.query", "positions.txt"


class LightGBMFormat(TrainingFormat):
    """`train.tsv`, `train.tsv.weight`, `train.tsv.query`, and `positions.txt` where pages are ranked as shown."""

    name = "lightgbm"
    rank = 2

    def check(self, layout: Layout) -> None:
        """LightGBM reads weights of rows and of groups only."""
        if layout.weighted == "preference":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: LightGBM makes its own pairs of the rows "
                "of a group. Write --layout clicked-group, where these carry the same weights, or --format catboost, "
                "which reads pairs."
            )

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's pieces."""
        with open_pieces(folder, part.number, *_files(training_set)) as pieces:
            for chunk in with_rows_beside(training_set, part, folder):
                for columns, piece in zip(self._columns(training_set, chunk), pieces, strict=True):
                    write_lines(columns, piece, null="nan")  # an empty field may hide how many columns there are

    def _columns(self, training_set: TrainingSet, chunk: pl.DataFrame) -> list[pl.DataFrame]:
        """What of a chunk goes into each file."""
        layout = training_set.layout
        label = chunk.select(posbias_label=GRADE if layout.graded else layout.label)  # rankers take whole numbers
        columns = [label.hstack(features_as_numbers(training_set, chunk))]
        if layout.weighted is not None:
            columns.append(chunk.select("weight"))
        if layout.ranked:
            columns.append(_group_sizes(training_set, chunk).to_frame())
        if POSITION in training_set.ids:
            columns.append(chunk.select(POSITION))
        return columns

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the features and the script."""
        for file in _files(training_set):
            join_pieces(folder, file)
        write_features(training_set, folder)
        script = _LOAD.replace("@FILES@", "\n".join(_described(training_set)))
        script = script.replace("@PARAMETERS@", _RANKING if training_set.layout.ranked else _BINARY)
        (folder / "load.py").write_text(with_saving(script, "model.save_model(str(target))", "txt"), encoding="utf-8")


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
        advice = "Keep pages apart (--group session), or write --format catboost."
    raise SchemaError(
        f"query {query!r} has a group of {sizes[largest]:,} rows, and LightGBM ranks at most {_MOST_ROWS_OF_A_GROUP:,} "
        f"together (--layout {training_set.layout.name}). {advice}"
    )


def _files(training_set: TrainingSet) -> list[str]:
    """The files that pieces make."""
    files = [_DATA]
    if training_set.layout.weighted is not None:
        files.append(_WEIGHTS)
    if training_set.layout.ranked:
        files.append(_GROUPS)
    if POSITION in training_set.ids:
        files.append(_POSITIONS)
    return files


def _described(training_set: TrainingSet) -> list[str]:
    """What `load.py` says of the files."""
    about = {
        _DATA: "label, then the features in the order of features.json; no header",
        _WEIGHTS: "the weight of each row; LightGBM finds it by its name",
        _GROUPS: "the number of rows of each group; LightGBM finds it by its name",
        _POSITIONS: "the position of each row, under a name that LightGBM does not find",
    }
    lines = [f"{file:17} {about[file]}" for file in _files(training_set)]
    lines.append("rows/             what else is known of each row, in the same order")
    return lines + (_ADVICE_WITH_POSITIONS if POSITION in training_set.ids else [])


_ADVICE_WITH_POSITIONS = [
    "",
    "Each row's push is multiplied by its own weight: a click by 1/propensity, what it is ranked above by 1.",
    "In --layout clicked-group both sides weigh the same. LightGBM can also estimate position bias by itself, instead",
    "of the weights, never on top of them: remove train.tsv.weight and rename positions.txt to train.tsv.position.",
]

_BINARY = '"objective": "binary",\n    "metric": "binary_logloss",'
_RANKING = """"objective": "lambdarank",
    "lambdarank_norm": False,  # else weights do not count as they stand
    "metric": "ndcg",
    "eval_at": [10],"""

_LOAD = '''"""Trains LightGBM on these files.

@FILES@
"""

import json
import os
import sys
from pathlib import Path

import lightgbm as lgb

HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
CATEGORICAL = [k for k, feature in enumerate(FEATURES) if feature["categories"] is not None]
PARAMETERS = {
    @PARAMETERS@
    "precise_float_parser": True,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}

train = lgb.Dataset(str(HERE / "train.tsv"), categorical_feature=CATEGORICAL, params=PARAMETERS)
data = {"training": train}
validation = HERE.parent / "validation" / "train.tsv"
if validation.is_file() and validation.stat().st_size:
    data["validation"] = train.create_valid(str(validation), params=PARAMETERS)
metrics = {}
model = lgb.train(PARAMETERS, train, 100, list(data.values()), list(data), callbacks=[lgb.record_evaluation(metrics)])
last = "; ".join(f"{name} {metric} {x[-1]:.4f}" for name, of in metrics.items() for metric, x in of.items())
print(f"{train.num_data():,} rows, {train.num_feature()} features; {last}")
'''
