"""CatBoost: tab-separated rows, a column description, and pairs by row number."""

from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.core.schema import WEIGHT
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.layout import Weighted
from posbias.core.training.layouts.preferences import LOSER_ROW, WINNER_ROW
from posbias.io.formats.columns import feature_names, with_rows_beside, write_features
from posbias.io.formats.format import TrainingFormat, with_saving
from posbias.io.formats.pieces import join_pieces, open_pieces, piece_path, write_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_DATA, _DESCRIPTION, _PAIRS = "train.tsv", "train.cd", "train.pairs"
_LINE_ENDS = r"[\n\r]+"

_WEIGHT: dict[Weighted | None, str] = {"row": "Weight", "group": "GroupWeight"}  # what CatBoost calls the column
_WHY = {
    "Logloss": "Logloss takes the weight of each row.",
    "QueryRMSE": "QueryRMSE takes the weight of each row; the pairwise losses (YetiRank, PairLogit) take none of rows.",
    "QuerySoftMax": "QuerySoftMax takes the weight of each group: twice the weight is the group twice.",
    "PairLogit": "PairLogit takes the weight of each pair.",
    "YetiRank": "YetiRank takes the debiased rates as they are; all rows weigh the same.",
}


class CatBoostFormat(TrainingFormat):
    """`train.tsv`, `train.cd`, and for pairs `train.pairs`: the rows of winner and loser, from 0, and the weight."""

    name = "catboost"
    rank = 5

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Append the chunks to this part's pieces."""
        before = _before_features(training_set.layout)
        with open_pieces(folder, part.number, _DATA) as (piece,):
            for chunk in with_rows_beside(training_set, part, folder):
                columns = chunk.select(pl.col(name).alias(f"posbias_{name}") for name in before)
                write_lines(columns.hstack(_features(training_set, chunk)), piece)
        if part.preferences is not None:
            pairs = part.preferences.select(WINNER_ROW, LOSER_ROW, "weight")
            pairs.sink_csv(piece_path(folder, _PAIRS, part.number), include_header=False, separator="\t")

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join the pieces; write the column description, the features and the script."""
        join_pieces(folder, _DATA)
        if training_set.layout.weighted == "preference":
            join_pieces(folder, _PAIRS)
        (folder / _DESCRIPTION).write_text(_description(training_set), encoding="utf-8")
        write_features(training_set, folder)
        loss = _loss(training_set.layout)
        unscored = loss == "YetiRank"  # of which CatBoost reports nothing of its own
        in_pairs = training_set.layout.weighted == "preference"
        texts = {
            "LOSS": loss,
            "METRIC": '\n    "custom_metric": ["NDCG:top=10;hints=skip_train~false"],' if unscored else "",
            "WHY": _WHY[loss],
            "PAIRS": ', "pairs": str(folder / "train.pairs")' if in_pairs else "",
        }
        script = _LOAD
        for placeholder, text in texts.items():
            script = script.replace(f"@{placeholder}@", text)
        script = with_saving(script, "model.save_model(str(target))", "cbm")
        (folder / "load.py").write_text(script, encoding="utf-8")


def _loss(layout: Layout) -> str:
    """The loss that takes the weights where the layout has them."""
    if layout.weighted == "row":
        return "QueryRMSE" if layout.ranked else "Logloss"
    if layout.weighted == "group":
        return "QuerySoftMax"
    return "PairLogit" if layout.weighted == "preference" else "YetiRank"


def _before_features(layout: Layout) -> dict[str, str]:
    """The first columns, and what CatBoost calls them."""
    columns = {} if layout.weighted == "preference" else {layout.label: "Label"}
    if layout.ranked:
        columns[GROUP] = "GroupId"
    if layout.weighted in _WEIGHT:
        columns[WEIGHT] = _WEIGHT[layout.weighted]
    return columns


def _features(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.DataFrame:
    """The features of a chunk: texts as they are but on one line, since CatBoost splits lines even within quotes."""
    features = chunk.select(feature_names(training_set))
    return features.with_columns(cs.boolean().cast(pl.Int8), cs.string().str.replace_all(_LINE_ENDS, " "))


def _description(training_set: TrainingSet) -> str:
    """What each column of `train.tsv` is, one line each."""
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


_LOAD = '''"""Trains CatBoost on these files.

@WHY@
train.tsv has what train.cd says of its columns, rows/ what else is known of each row, in the same order.
"""

import os
import sys
from pathlib import Path

import catboost

HERE = Path(__file__).resolve().parent
PARAMETERS = {
    "loss_function": "@LOSS@",@METRIC@
    "iterations": 100,
    "random_seed": 1,
    "verbose": False,
    "allow_writing_files": False,
}


def read(folder: Path) -> catboost.Pool:
    """The rows of a folder."""
    more = {"column_description": str(folder / "train.cd")@PAIRS@}
    return catboost.Pool(str(folder / "train.tsv"), **more)


train = read(HERE)
validation = HERE.parent / "validation"
exists = (validation / "train.tsv").is_file() and (validation / "train.tsv").stat().st_size
model = catboost.train(train, PARAMETERS, eval_set=read(validation) if exists else None)
scores = "; ".join(f"{on}: {metric} {x:.4f}" for on, of in model.get_best_score().items() for metric, x in of.items())
print(f"{train.num_row():,} rows, {train.num_col()} features; {scores}")
'''
