"""The script beside a model that scores new rows without posbias."""

from typing import Literal

_SHARED = '''"""Scores rows of features with the model beside this file.

    python load.py ROWS.parquet > scores.csv        (or ROWS.csv)

or, from Python: `score(rows)` with a Polars frame that has the columns of features.json.
"""

import json
import sys
from pathlib import Path

@IMPORTS@
HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
@MODEL@

def encode(rows: pl.DataFrame) -> np.ndarray:
    """Text as its place among the categories, booleans as 0 and 1, what is missing as nan."""
    columns = []
    for feature in FEATURES:
        column = rows[feature["name"]]
        if feature["categories"] is not None:
            column = column.cast(pl.String).cast(pl.Enum(feature["categories"]), strict=False).to_physical()
        columns.append(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return np.column_stack(columns)


def score(rows: pl.DataFrame) -> np.ndarray:
    """The score of each row: the larger, the more relevant."""
    @SCORE@


if __name__ == "__main__":
    path = Path(sys.argv[1])
    rows = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    names = {feature["name"] for feature in FEATURES}
    others = rows.select(name for name in rows.columns if name not in names)
    print(others.with_columns(score=pl.Series(score(rows))).write_csv(), end="")
'''

_TREES = {
    "IMPORTS": "import lightgbm as lgb\nimport numpy as np\nimport polars as pl\n",
    "MODEL": 'MODEL = lgb.Booster(model_file=str(HERE / "model.txt"))\n',
    "SCORE": "return MODEL.predict(encode(rows), raw_score=True)",
}

_NETWORK = {
    "IMPORTS": "import numpy as np\nimport polars as pl\n",
    "MODEL": """with np.load(HERE / "model.npz", allow_pickle=False) as file:
    MODEL = dict(file)
LAYERS = sum(name.startswith("weight_") for name in MODEL)
""",
    "SCORE": """hidden = np.nan_to_num(np.clip((encode(rows) - MODEL["mean"]) / MODEL["scale"], -5.0, 5.0))
    for layer in range(LAYERS):
        hidden = hidden @ MODEL[f"weight_{layer}"] + MODEL[f"bias_{layer}"]
        if layer < LAYERS - 1:
            hidden = np.maximum(hidden, 0.0)
    return hidden[:, 0]""",
}

_FACTORS = '''"""Scores queries and documents with the factors beside this file.

    python load.py ROWS.parquet > scores.csv        (or ROWS.csv; columns `query` and `doc`)

or, from Python: `score(rows)` with a Polars frame. What was never seen has bias and factors 0.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).resolve().parent
with np.load(HERE / "model.npz", allow_pickle=False) as file:
    MODEL = dict(file)


def numbers(rows: pl.DataFrame, column: str, name: str) -> np.ndarray:
    """The place of each id among those that have factors, -1 where it has none."""
    known = pl.read_parquet(HERE / name).with_row_index("number")
    asked = rows.select(pl.col(column).cast(known.schema[column], strict=False))
    found = asked.join(known, on=column, how="left", maintain_order="left")
    return found["number"].cast(pl.Int64).fill_null(-1).to_numpy()


def score(rows: pl.DataFrame) -> np.ndarray:
    """The score of each row: the larger, the more relevant."""
    padded = {name: np.concatenate([array, np.zeros_like(array[:1])]) for name, array in MODEL.items() if array.ndim}
    query, doc = numbers(rows, "query", "queries.parquet"), numbers(rows, "doc", "documents.parquet")
    biases = padded["query_bias"][query] + padded["item_bias"][doc]
    return MODEL["mean"] + biases + (padded["query_factors"][query] * padded["item_factors"][doc]).sum(axis=1)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    rows = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    print(rows.select("query", "doc").with_columns(score=pl.Series(score(rows))).write_csv(), end="")
'''


def load_script(kind: Literal["trees", "network", "factors"]) -> str:
    """`load.py` for a kind of model."""
    if kind == "factors":
        return _FACTORS
    script = _SHARED
    for placeholder, text in (_TREES if kind == "trees" else _NETWORK).items():
        script = script.replace(f"@{placeholder}@", text)
    return script
