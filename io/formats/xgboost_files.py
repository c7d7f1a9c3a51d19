"""XGBoost: LibSVM text, and weights in a file of their own that the script reads.

XGBoost's own reader of text is deprecated since 3.1, warns, and misses the last bit of every fourth float; rankers
take one weight per group, which that text cannot hold. So the script reads both by other means, exactly.
"""

from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.core.errors import SchemaError, UsageError
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.judgments import GRADE
from posbias.core.training.layouts.layout import Weighted
from posbias.io.formats.columns import feature_names, libsvm_lines, with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat, with_saving
from posbias.io.formats.pieces import join_pieces, open_pieces, write_lines, write_whole_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_DATA = "train.svm"
_LARGEST_SINGLE = 3.4028234663852886e38
_WEIGHTS: dict[Weighted | None, str] = {"row": "rows.weight", "group": "groups.weight"}


class XGBoostFormat(TrainingFormat):
    """`train.svm`, and `rows.weight` or `groups.weight`."""

    name = "xgboost"
    rank = 4

    def check(self, layout: Layout) -> None:
        """Its rankers have a place for weights of groups only."""
        if layout.ranked and layout.weighted == "row":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: XGBoost's rankers take one weight per "
                "group, none per row. Write --layout clicked-group, which has one per group, or pointwise; --format "
                f"lightgbm and catboost carry {layout.name}."
            )
        if layout.weighted == "preference":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: XGBoost makes its own pairs of the rows "
                "of a group. Write --layout clicked-group, where these carry the same weights, or --format catboost, "
                "which reads pairs."
            )

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's pieces."""
        with open_pieces(folder, part.number, *_files(training_set)) as (data, *weights):
            for chunk in with_rows_beside(training_set, part, folder):
                _check_finite(training_set, chunk)
                write_whole_lines(libsvm_lines(training_set, chunk, *_start(training_set, chunk), first=0), data)
                for piece in weights:
                    write_lines(_weights(training_set, chunk), piece)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the features and the script."""
        for file in _files(training_set):
            join_pieces(folder, file)
        write_features(training_set, folder)
        (folder / "load.py").write_text(_load_script(training_set), encoding="utf-8")


def _files(training_set: TrainingSet) -> list[str]:
    weights = _WEIGHTS.get(training_set.layout.weighted)
    return [_DATA, weights] if weights else [_DATA]


def _start(training_set: TrainingSet, chunk: pl.DataFrame) -> list[pl.Series]:
    """What stands before the features: the label, and the group where rows are ranked."""
    layout = training_set.layout
    label = chunk[GRADE if layout.graded and layout.ranked else layout.label]
    if not layout.ranked:
        return [label]
    return [label, chunk.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series()]


def _weights(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.DataFrame:
    """One weight per row, or the one of each group."""
    of_groups = training_set.layout.weighted == "group"
    return (chunk.filter(pl.col(GROUP).is_first_distinct()) if of_groups else chunk).select("weight")


def _check_finite(training_set: TrainingSet, chunk: pl.DataFrame) -> None:
    """See that the features are numbers that XGBoost takes: it computes in single precision.

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


def _load_script(training_set: TrainingSet) -> str:
    """`load.py` for the layout."""
    ranked = training_set.layout.ranked
    weights = _WEIGHTS.get(training_set.layout.weighted)
    of = {"rows.weight": "row", "groups.weight": "group"}
    texts = {
        "ABOUT": f"{weights} has the weight of each {of[weights]}" if weights else "every row weighs the same",
        "LINE": "label, group and features" if ranked else "label and features",
        "ROWS": "rows, labels, qid" if ranked else "rows, labels",
        "BY_QUERY": ", query_id=True" if ranked else "",
        "WEIGHTS": f'    weights = np.loadtxt(folder / "{weights}", ndmin=1)\n' if weights else "",
        "MORE": ("weight=weights, " if weights else "") + ("qid=qid, " if ranked else ""),
        "PARAMETERS": '"rank:ndcg", "lambdarank_normalization": False, "eval_metric": "ndcg@10"'
        if ranked
        else '"binary:logistic", "eval_metric": "logloss"',
    }
    script = _LOAD if weights else _LOAD.replace("import numpy as np\n", "")
    for placeholder, text in texts.items():
        script = script.replace(f"@{placeholder}@", text)
    return with_saving(script, "model.save_model(target)", "json")


_LOAD = '''"""Trains XGBoost on these files; scikit-learn reads their LibSVM text (pip install xgboost scikit-learn).

train.svm has @LINE@, the first of features.json as number 0, missing values left out;
@ABOUT@; rows/ has what else is known of each row, in the same order.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_svmlight_file

HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
TYPES = ["q" if feature["categories"] is None else "c" for feature in FEATURES]
PARAMETERS = {"objective": @PARAMETERS@, "seed": 1}


def read(folder: Path) -> xgb.DMatrix:
    """The rows of a folder."""
    path = str(folder / "train.svm")
    @ROWS@ = load_svmlight_file(path, n_features=len(FEATURES), zero_based=True@BY_QUERY@)
@WEIGHTS@    return xgb.DMatrix(rows, labels, @MORE@feature_types=TYPES, enable_categorical=True)


train = read(HERE)
data = [(train, "training")]
validation = HERE.parent / "validation"
if (validation / "train.svm").is_file() and (validation / "train.svm").stat().st_size:
    data.append((read(validation), "validation"))
metrics = {}
model = xgb.train(PARAMETERS, train, 100, evals=data, evals_result=metrics, verbose_eval=False)
last = "; ".join(f"{name} {metric} {x[-1]:.4f}" for name, of in metrics.items() for metric, x in of.items())
print(f"{train.num_row():,} rows, {train.num_col()} features; {last}")
'''
