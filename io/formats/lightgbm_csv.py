"""LightGBM in one file: CSV with a header, whose columns it finds by name."""

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from posbias.core.training.layouts import GROUP, Layout
from posbias.io.formats.columns import distinct, feature_names, features_as_numbers, with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat
from posbias.io.formats.group_limit import check_group_sizes
from posbias.io.formats.lightgbm_files import (
    MOST_ROWS_OF_A_GROUP,
    SAVE_MODEL,
    check_no_preferences,
    has_weights,
    lightgbm_parameters,
    whole_label,
)
from posbias.io.formats.pieces import join_pieces, open_pieces, write_lines
from posbias.io.formats.saving import with_saving
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_FILE = "train.csv"
_LABEL, _WEIGHT = "label", "weight"


class LightGBMCsvFormat(TrainingFormat):
    """`train.csv`: `label`, the features, then `group` and `weight`, as far as the layout has them."""

    name = "lightgbm-csv"
    rank = 3

    def check(self, layout: Layout) -> None:
        """It has no place for weights of preferences."""
        check_no_preferences(self.name, layout)

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's piece."""
        with open_pieces(folder, part.number, _FILE) as (piece,):
            for chunk in with_rows_beside(training_set, part, folder):
                if training_set.layout.ranked:
                    check_group_sizes(training_set, chunk, self.name, MOST_ROWS_OF_A_GROUP)
                columns = [
                    chunk.select(posbias_label=whole_label(training_set)),
                    features_as_numbers(training_set, chunk),
                    chunk.select(pl.col(name).alias(f"posbias_{name}") for name in _not_learnt(training_set)),
                ]
                write_lines(pl.concat(columns, how="horizontal"), piece, separator=",", null="nan")

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces below the header; write the features and the script."""
        names = [_LABEL, *_plain_names(feature_names(training_set)), *_not_learnt(training_set)]
        join_pieces(folder, _FILE, header=",".join(names) + "\n")
        write_features(training_set, folder)
        columns = [f'"{name}_column": "name:{name}",' for name in (_LABEL, *_not_learnt(training_set))]
        script = _LOAD.replace("@COLUMNS@", "\n    ".join(columns))
        script = script.replace("@PARAMETERS@", lightgbm_parameters(training_set))
        (folder / "load.py").write_text(with_saving(script, SAVE_MODEL, "txt"), encoding="utf-8")


def _not_learnt(training_set: TrainingSet) -> list[str]:
    """The last columns. LightGBM counts them as features that it never uses: behind the others they shift nothing."""
    columns = [GROUP] if training_set.layout.ranked else []
    return [*columns, _WEIGHT] if has_weights(training_set) else columns


def _plain_names(names: list[str]) -> Iterator[str]:
    """Names that LightGBM takes: different from each other and from the other columns, letters, digits and `_`."""
    return distinct((re.sub(r"\W", "_", name) for name in names), taken={_LABEL, _WEIGHT, GROUP})


_LOAD = '''"""Trains LightGBM on train.csv: label, features in the order of features.json, and what is not learnt from.

The columns behind the features count as features that are never used: to predict rows of features alone, call
model.predict(rows, predict_disable_shape_check=True). rows/ has what else is known of each row, in order.
"""

import json
import os
import sys
from pathlib import Path

import lightgbm as lgb

HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
with (HERE / "train.csv").open("rb") as file:
    HEADER = len(file.readline())
CATEGORICAL = [k for k, feature in enumerate(FEATURES) if feature["categories"] is not None]
PARAMETERS = {
    "header": True,
    @COLUMNS@
    @PARAMETERS@
    "precise_float_parser": True,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}

train = lgb.Dataset(str(HERE / "train.csv"), categorical_feature=CATEGORICAL, params=PARAMETERS)
data = {"training": train}
validation = HERE.parent / "validation" / "train.csv"
if validation.is_file() and validation.stat().st_size > HEADER:
    data["validation"] = train.create_valid(str(validation), params=PARAMETERS)
metrics = {}
model = lgb.train(PARAMETERS, train, 100, list(data.values()), list(data), callbacks=[lgb.record_evaluation(metrics)])
last = "; ".join(f"{name} {metric} {x[-1]:.4f}" for name, of in metrics.items() for metric, x in of.items())
print(f"{train.num_data():,} rows, {len(FEATURES)} features; {last}")
'''
