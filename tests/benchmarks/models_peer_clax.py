"""Train a click model of CLAX on a log; run by the interpreter of CLAX's own environment, see `models.py`.

    PEER_PYTHON tests/benchmarks/models_peer_clax.py LOG MODEL

As `scale_peer_clax.py` does: adamw(0.01), batches of 4,096 sessions, up to 100 epochs, early stopping by the loss on a
tenth of the sessions. SDBN is its DBN whose continuation is fixed.
"""

import sys
from importlib import import_module
from typing import Any

from scale_peer_clax import EPOCHS, LEARNING_RATE, POSITIONS, VALIDATION_SHARE, Batches, read_sessions

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gctr": ("GlobalCTRModel", ()),
    "rctr": ("RankCTRModel", ("positions",)),
    "dctr": ("DocumentCTRModel", ("query_doc_pairs",)),
    "rdctr": ("DocumentRankCTRModel", ("positions", "query_doc_pairs")),
    "pbm": ("PositionBasedModel", ("positions", "query_doc_pairs")),
    "ubm": ("UserBrowsingModel", ("positions", "query_doc_pairs")),
    "cm": ("CascadeModel", ("query_doc_pairs",)),
    "dcm": ("DependentClickModel", ("positions", "query_doc_pairs")),
    "ccm": ("ClickChainModel", ("query_doc_pairs",)),
    "dbn": ("DynamicBayesianNetwork", ("query_doc_pairs",)),
    "sdbn": ("DynamicBayesianNetwork", ("query_doc_pairs", "fix_continuation")),
}
"""By the name of a model, the class, and what it is given."""


def main() -> None:
    """Read, train."""
    log, name = sys.argv[1:]
    clax, nnx, optax = (import_module(module) for module in ("clax", "flax.nnx", "optax"))
    columns, n_pairs = read_sessions(log)
    cut = round(len(columns["clicks"]) * (1 - VALIDATION_SHARE))
    training = Batches({key: values[:cut] for key, values in columns.items()})
    validation = Batches({key: values[cut:] for key, values in columns.items()})
    kind, given = KINDS[name]
    known = {"positions": POSITIONS, "query_doc_pairs": n_pairs, "fix_continuation": True}
    model: Any = getattr(clax, kind)(**{key: known[key] for key in given}, rngs=nnx.Rngs(42))
    trainer: Any = clax.Trainer(optimizer=optax.adamw(LEARNING_RATE), epochs=EPOCHS)
    epochs: Any = trainer.train(model, training, validation)
    sys.stdout.write(f"{len(epochs)} epochs\n")


if __name__ == "__main__":
    main()
