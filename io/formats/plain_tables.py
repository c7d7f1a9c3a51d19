"""What Parquet and CSV hold of a training set, and the script that reads either."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from posbias.core.schema import DOC
from posbias.core.training.layouts.preferences import LOSER, WINNER
from posbias.core.training.replicates import weight_columns
from posbias.io.formats.columns import ROWS, feature_names, table_part, write_features
from posbias.io.formats.format import TrainingFormat, with_saving
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_DOCUMENTS = "documents"
"""The folder of the documents of preferences, with their features."""
_SCAN = {
    "parquet": "pl.scan_parquet(files, glob=False)",
    # Polars leaves the quotes of a header doubled.
    "csv": "pl.scan_csv(files, glob=False, infer_schema=False).rename(lambda name: name.replace('\"\"', '\"'))",
}


class PlainFormat(TrainingFormat):
    """A format of tables that are named as it is: `rows`, of the rows or the preferences, and a script for both."""

    needs_features = False

    @abstractmethod
    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write the preferences of a part."""

    @abstractmethod
    def write_rows(self, training_set: TrainingSet, chunks: Iterator[pl.DataFrame], path: Path) -> None:
        """Write the rows of a part."""

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for preferences a second one where there are features."""
        rows = table_part(folder, ROWS, part, self.name)
        if part.preferences is None:
            self.write_rows(training_set, part.rows, rows)
            return
        self.write_preferences(_preferences(training_set, part.preferences), rows)
        if training_set.features:
            self.write_rows(training_set, part.rows, table_part(folder, _DOCUMENTS, part, self.name))

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script."""
        write_features(training_set, folder)
        (folder / "load.py").write_text(plain_load_script(training_set, self.name), encoding="utf-8")


def plain_rows(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.DataFrame:
    """The columns of a chunk that are worth reading."""
    return chunk.drop(training_set.layout.left_out)


def _preferences(training_set: TrainingSet, preferences: pl.LazyFrame) -> pl.LazyFrame:
    """The preferences with their weights."""
    weights = weight_columns(preferences.collect_schema())
    return preferences.select(*preference_columns(training_set), *weights)


def preference_columns(training_set: TrainingSet) -> list[str]:
    """The columns that say what a preference is."""
    return [*(name for name in training_set.ids if name != DOC), WINNER, LOSER]


def plain_load_script(training_set: TrainingSet, suffix: str) -> str:
    """`load.py` for files of that suffix, `parquet` or `csv`.

    With features it trains scikit-learn, without it counts rows.
    """
    if not feature_names(training_set):
        return _COUNT.replace("@SCAN@", _SCAN[suffix]).replace("@SUFFIX@", suffix)
    script = _PREFER if training_set.layout.weighted == "preference" else _FIT
    for placeholder, text in {"SCAN": _SCAN[suffix], "SUFFIX": suffix, **_learner(training_set)}.items():
        script = script.replace(f"@{placeholder}@", text)
    return with_saving(script, "skops.io.dump(model, target)", "skops")


def _learner(training_set: TrainingSet) -> dict[str, str]:
    """What the rows are learnt with: the debiased rate is as sure as its impressions are many."""
    label = training_set.layout.label
    if training_set.layout.graded:
        return {"LEARNER": "Regressor", "WEIGHT": "impressions", "LABEL": label, "METRIC": "R2"}
    return {"LEARNER": "Classifier", "WEIGHT": "weight", "LABEL": label, "METRIC": "accuracy"}


_COUNT = '''"""Reads these files with Polars. There are no features in them to learn from."""

from pathlib import Path

import polars as pl

HERE = Path(__file__).resolve().parent


def read(folder: Path) -> pl.DataFrame:
    """All parts of a folder."""
    files = sorted((folder / "rows").glob("part-*.@SUFFIX@"))
    return @SCAN@.collect()


rows = read(HERE)
print(f"{rows.height:,} rows with the columns {', '.join(rows.columns)}; add features with --features FILE to train")
'''

_FIT = '''"""Trains scikit-learn on these files, each row with its weight."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import polars as pl
import skops.io
from sklearn.ensemble import HistGradientBoosting@LEARNER@

HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and weights of a folder; a text is its place among the categories."""
    files = sorted((folder / "rows").glob("part-*.@SUFFIX@"))
    columns = [
        pl.col(feature["name"]).cast(pl.Enum(feature["categories"]), strict=False).to_physical()
        if feature["categories"] is not None
        else pl.col(feature["name"]).cast(pl.Float64)
        for feature in FEATURES
    ]
    target = pl.struct(label=pl.col("@LABEL@").cast(pl.Float64), weight=pl.col("@WEIGHT@").cast(pl.Float64))
    table = @SCAN@
    rows = table.select(*columns, __target=target).collect()
    labels, weights = rows["__target"].struct.unnest()
    return rows.drop("__target").cast(pl.Float64).to_numpy(), labels.to_numpy(), weights.to_numpy()


features, labels, weights = read(HERE)
model = HistGradientBoosting@LEARNER@(max_iter=100, random_state=1).fit(features, labels, sample_weight=weights)
print(f"{len(labels):,} rows, @METRIC@ {model.score(features, labels, sample_weight=weights):.4f}")
validation = HERE.parent / "validation"
if (validation / "rows").is_dir():
    features, labels, weights = read(validation)
    print(f"validation: {len(labels):,} rows, @METRIC@ {model.score(features, labels, sample_weight=weights):.4f}")
'''

_PREFER = '''"""Trains a linear ranker on these files: the winner's features less the loser's, weighted by pair."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import polars as pl
import skops.io
from sklearn.linear_model import LogisticRegression

HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
NUMBERS = [pl.col(feature["name"]).cast(pl.Float64) for feature in FEATURES if feature["categories"] is None]


def read(folder: Path) -> pl.DataFrame:
    """All parts of a table."""
    files = sorted(folder.glob("part-*.@SUFFIX@"))
    return @SCAN@.collect()


def differences(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of each pair: what the winner's numeric features are ahead by, missing values as 0, and the weight."""
    pairs, documents = read(folder / "rows"), read(folder / "documents").unique(["query", "doc"])
    winners, losers = (
        pairs.join(documents, left_on=["query", side], right_on=["query", "doc"], how="left", maintain_order="left")
        for side in ("winner", "loser")
    )
    ahead = winners.select(NUMBERS).to_numpy() - losers.select(NUMBERS).to_numpy()
    return np.nan_to_num(ahead), pairs["weight"].cast(pl.Float64).to_numpy()


ahead, weights = differences(HERE)
both_ways = np.concatenate([ahead, -ahead]), np.repeat([1, 0], len(ahead))
model = LogisticRegression(fit_intercept=False).fit(*both_ways, sample_weight=np.tile(weights, 2))
print(f"{len(ahead):,} pairs, {model.score(*both_ways, sample_weight=np.tile(weights, 2)):.4f} of the weight in order")
'''
