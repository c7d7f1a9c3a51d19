#!/usr/bin/env bash
# ultr-bias-toolkit 0.0.5: AllPairsEstimator fits c(k, k') = examination_k x relevance_{k k'} to the documents that stood at
# both positions, with a relevance of its own for each pair (Agarwal et al. 2019). The table of relevances is looked up by
# the product k * k', so that pairs with one product share a number: positions 1 and 6 with 2 and 3, 1 and 8 with 2 and 4;
# 36 numbers for the 45 pairs of ten positions. Documents that swap 2 and 3 are better than those that swap 1 and 6 in most
# logs, and the difference goes into the positions: on clicks without any noise the minimum of its loss is off by up to a
# quarter here (scipy finds it, in seconds; the package's own training, with torch, ends at the same numbers), while the
# same loss with a number for each pair finds every position exactly.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==2.3.3 numpy==2.4.6 scipy==1.17.1 tqdm==4.67.1
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps ultr-bias-toolkit==0.0.5
cd "$folder"
cat > torch.py <<'PYTHON'
"""What the package's model takes from torch, in numpy: tables whose rows are looked up, and a sigmoid."""
import sys
import types

import numpy as np


class Tensor(np.ndarray):
    def squeeze(self, dim=None):
        return self[..., 0]


class Module:
    def __call__(self, *values):
        return self.forward(*values)


class Embedding(Module):
    def __init__(self, rows, columns):
        self.weight = np.zeros((rows, columns)).view(Tensor)

    def forward(self, index):
        return self.weight[index]


class Sigmoid(Module):
    def forward(self, values):
        return 1 / (1 + np.exp(-values))


class Sequential(Module):
    def __init__(self, *modules):
        self.modules = modules

    def forward(self, values):
        for module in self.modules:
            values = module(values)
        return values


nn = types.SimpleNamespace(Module=Module, Embedding=Embedding, Sigmoid=Sigmoid, Sequential=Sequential)
data = types.ModuleType("torch.utils.data")
data.Dataset = data.DataLoader = object
sys.modules |= {"torch.utils": types.ModuleType("torch.utils"), "torch.utils.data": data}
PYTHON
cat > try.py <<'PYTHON'
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from ultr_bias_toolkit.bias.intervention_harvesting.all_pairs import AllPairsPBM
from ultr_bias_toolkit.bias.intervention_harvesting.util import build_intervention_sets

ATTENTION = np.array([1.0, 0.8, 0.6, 0.5, 0.4, 0.4, 0.3, 0.2, 0.2, 0.1])


def log(positions):
    """A document for each pair of positions, the better the higher both are; clicked exactly as often as it should be."""
    rows = []
    for doc, (one, other) in enumerate(combinations(positions, 2)):
        relevance = 0.9 if one + other <= 6 else 0.5 if one + other <= 10 else 0.2
        for position in (one, other):
            clicks = round(1000 * relevance * ATTENTION[position - 1])
            rows += [("q", doc, position, int(i < clicks)) for i in range(1000)]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "position", "click"])


class OwnIndex(AllPairsPBM):
    """The same with a row for each pair."""

    def forward(self, k, k_prime):
        size = len(self.examination.modules[0].weight)
        row = np.minimum(k, k_prime) * size + np.maximum(k, k_prime)
        return (self.examination(k) * self.relevance(row)).squeeze(dim=-1)


def fit(frame, kind, size):
    """The minimum of the package's loss, with its model, found by scipy instead of Adam."""
    sets = build_intervention_sets(frame, "query_id", "doc_id")
    sets = sets[sets.position_0 != sets.position_1]
    k, k_prime = sets.position_0.to_numpy(), sets.position_1.to_numpy()
    model = kind(size)
    tables = [model.examination.modules[0].weight, model.relevance.modules[0].weight]
    rows = [np.unique(k), np.unique(k * k_prime) if kind is AllPairsPBM else np.unique(
        np.minimum(k, k_prime) * (size + 1) + np.maximum(k, k_prime))]

    def loss(values):
        tables[0][rows[0], 0], tables[1][rows[1], 0] = np.split(values, [len(rows[0])])
        p = model(k, k_prime)
        return -(sets.c_0 * np.log(p) + sets.not_c_0 * np.log(1 - p)).sum()

    found = minimize(loss, np.zeros(len(rows[0]) + len(rows[1])), options={"gtol": 1e-6, "maxiter": 2000})
    loss(found.x)
    examination = np.asarray(model.examination(np.arange(1, size + 1))).ravel()
    return examination / examination[0], len(rows[1])


frame = log(range(1, 11))
shared, n_shared = fit(frame, AllPairsPBM, 10)
own, n_own = fit(frame, OwnIndex, 10)
print("true                       ", ATTENTION)
print(f"the package, {n_shared} relevances ", shared.round(3))
print(f"one for each of {n_own} pairs   ", own.round(3))
print("off by                     ", [f"{error:+.0%}" for error in shared / ATTENTION - 1])
assert n_own == 45 and n_shared < 45
assert np.abs(own / ATTENTION - 1).max() < 0.01 and np.abs(shared / ATTENTION - 1).max() > 0.1
PYTHON
venv/bin/python try.py
