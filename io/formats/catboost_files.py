"""CatBoost: tab-separated rows, a column description, and pairs by row number."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import polars as pl
import polars.selectors as cs

from posbias.core.schema import WEIGHT
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.layout import Weighted
from posbias.core.training.layouts.preferences import LOSER_ROW, WINNER_ROW
from posbias.io.formats.format import TextFormat, feature_names, join_pieces, piece_path, write_lines
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

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
