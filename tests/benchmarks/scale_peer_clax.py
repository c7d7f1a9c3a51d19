"""Train a click model of CLAX on a log; run by the interpreter of CLAX's own environment, see `scale_peers.py`.

    PEER_PYTHON tests/benchmarks/scale_peer_clax.py LOG MODEL OUTPUT

As in the baselines of its experiments: adamw(0.01), batches of 4,096 sessions, up to 100 epochs, early stopping by
the loss on a tenth of the sessions. (With adamw(0.003) and 50 epochs, as in its README, it does not come to stop, and
theta is further off.) Sessions are arrays in memory, which costs less than its data loaders. Written is what
P(examined) is relative to the first cell.
"""

import math
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

POSITIONS = 10
BATCH = 4_096
EPOCHS, LEARNING_RATE = 100, 0.01
VALIDATION_SHARE = 0.1

_DOCS = 10_000_000  # more than there are documents


class Batches:
    """Sessions, shape (S, K), in batches, as often as asked.

    Attributes:
        columns: by the names that CLAX knows them by.
    """

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return math.ceil(len(self.columns["clicks"]) / BATCH)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for number in range(len(self)):
            yield {name: values[number * BATCH : (number + 1) * BATCH] for name, values in self.columns.items()}


def read_sessions(log: str) -> tuple[dict[str, NDArray[Any]], int]:
    """Sessions of equal length, as `scale_log.py` writes them, and the number of pairs."""
    parquet: Any = import_module("pyarrow.parquet")
    pandas: Any = import_module("pandas")
    table = parquet.read_table(log, columns=["query", "doc", "position", "click"])
    query, doc, position, click = (table[name].to_numpy() for name in table.column_names)
    pair, pairs = pandas.factorize(query * _DOCS + doc)
    shape = (-1, POSITIONS)
    columns: dict[str, NDArray[Any]] = {
        "query_doc_ids": pair.astype(np.int32).reshape(shape),
        "positions": position.astype(np.int32).reshape(shape),
        "clicks": click.astype(np.float32).reshape(shape),
        "mask": np.ones(click.shape, dtype=np.bool_).reshape(shape),
    }
    return columns, len(pairs)


def examination(model: Any, name: str) -> dict[str, NDArray[Any]]:  # noqa: ANN401 # CLAX has no types
    """P(examined) by cell, relative to the first cell."""
    position, previous = np.meshgrid(np.arange(1, POSITIONS + 1), np.arange(POSITIONS), indexing="ij")
    if name == "pbm":
        theta = np.asarray(model.examination.prob({"positions": position[:, 0]}))
        return {"position": position[:, 0], "propensity": theta / theta[0]}
    above = previous < position
    theta = np.asarray(model.examination.prob({"examination_idx": (position * POSITIONS + previous)[above]}))
    return {"position": position[above], "previous_click": previous[above], "propensity": theta / theta[0]}


def main() -> None:
    """Read, train, write."""
    log, name, output = sys.argv[1:]
    clax, nnx, optax = (import_module(module) for module in ("clax", "flax.nnx", "optax"))
    pandas: Any = import_module("pandas")
    columns, n_pairs = read_sessions(log)
    cut = round(len(columns["clicks"]) * (1 - VALIDATION_SHARE))
    training = Batches({name: values[:cut] for name, values in columns.items()})
    validation = Batches({name: values[cut:] for name, values in columns.items()})
    kind: Any = clax.PositionBasedModel if name == "pbm" else clax.UserBrowsingModel
    model = kind(query_doc_pairs=n_pairs, positions=POSITIONS, rngs=nnx.Rngs(42))
    trainer: Any = clax.Trainer(optimizer=optax.adamw(LEARNING_RATE), epochs=EPOCHS)
    epochs: Any = trainer.train(model, training, validation)
    sys.stdout.write(f"{len(epochs)} epochs\n")
    pandas.DataFrame(examination(model, name)).to_parquet(output)


if __name__ == "__main__":
    main()
