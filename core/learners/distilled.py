"""The ranker as a teacher: what it knows beyond the features reaches a model of the features alone.

A ranker orders by more than the features that are learnt from. Where it puts a document says something of gamma then,
which a model of x alone has to throw away: P(click | x, k) = theta_k E[gamma | x, k] depends on k twice.

    stage 1   gamma1 = E[gamma | x, z]: the likelihood of clicks given theta, on features and on z, what the ranker
              knows: its score, or the mean log position of the document. Trees start from the rate of the documents
              with such a z, sum C_d / sum E_d over each twentieth of them.
    labels    y_d = gamma1_d + Z_d (C_d / E_d - gamma1_d),   C_d clicks, E_d = sum_e n_de theta_e
    stage 2   gamma = E[y | x]: the likelihood of y given the features, an impression each. Averaged over z it is
              E[gamma | x], whatever the ranker knew.

Z_d is the credibility of the document's own clicks beside those of its like:

    Var(gamma_d | x, z) = rho v_d,   v_d = gamma1_d (1 - gamma1_d),   A_d = sum_e n_de theta_e^2
    rho = sum_d {(C_d - E_d gamma1_d)^2 - E_d gamma1_d + A_d gamma1_d^2} / sum_d v_d (E_d^2 - A_d), within [0, 1]
    Z_d = rho v_d E_d^2 / (rho v_d E_d^2 + E_d gamma1_d - A_d (gamma1_d^2 + rho v_d))

It is 0 where every document was shown once, and goes to 1 as it is shown more often.

Sources: Vapnik & Vashist 2009 (features that only learning has); Lopez-Paz, Bottou, Schölkopf & Vapnik 2016 (through
soft labels); Bühlmann 1967 (credibility).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.choices import LearningOptions
from posbias.core.learners import learning
from posbias.core.learners.learning import ClickLikelihood, Grown, Learned, Learner, LearningData, Loss, OnRound
from posbias.core.learners.trees import PBM, DocumentsAtPositions

_GROUPS = 20
_TINY = 1e-12


def learn_distilled(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Learn from features and the ranker, then its labels from features alone."""
    return distil(learner, data, options, on_round, taught(data, options, on_round))


def distil(
    learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound, teacher: tuple[Grown, Floats]
) -> Learned:
    """Stage 2, given the trees of stage 1 and the logits of gamma1, shape (D,)."""
    grown, logits = teacher
    learnt, apart = learning.likelihoods(data, *learner.examined(data))
    own, gamma = data.counts.take(data.learnt).only_cells(data.known), learning.sigmoid(logits)
    label, spread = soft_labels(own, data.theta, gamma[data.learnt])
    losses = (TaughtLikelihood.of(learnt, label), TaughtLikelihood.of(apart, gamma[data.apart]))
    learned = learning.grow(learning.binned(data, options), losses, options, on_round).learned(learner.objective)
    gain, _ = grown.trees.gain_and_splits(grown.best)
    share = float(gain[-1] / (gain.sum() or 1.0))
    return replace(learned, report=learned.report | {"share_of_gain_of_ranker": share, "spread_within_alike": spread})


class TaughtLikelihood(ClickLikelihood):
    """The likelihood of labels; the learning curve is that of clicks."""

    label: Floats

    @classmethod
    def of(cls, likelihood: ClickLikelihood, label: Floats) -> "TaughtLikelihood":
        """The loss with a label of each document, shape (D,)."""
        labelled = cls(likelihood.counts, likelihood.theta)
        labelled.label = label
        return labelled

    def labels(self, gamma: Floats) -> Floats:  # noqa: ARG002 - labels that do not change
        """n_d y_d, shape (D,)."""
        return self.impressions * self.label


def ranker_knowledge(data: LearningData) -> Floats:
    """Z of each document, shape (D,): the ranker's score, or else minus the mean log position, nan if never shown."""
    if data.knowledge is not None:
        return data.knowledge
    counts = data.counts
    shown = counts.sum_by_unit(counts.impressions)
    of_positions = counts.sum_by_unit(counts.impressions * -np.log(data.position[counts.cell]))
    return np.divide(of_positions, shown, out=np.full(len(shown), np.nan), where=shown > 0)


def taught(data: LearningData, options: LearningOptions, on_round: OnRound) -> tuple[Grown, Floats]:
    """Stage 1: its trees, and the logit of gamma1 of each document, also of those held out, shape (D,)."""
    features, z = learning.features_of(data), ranker_knowledge(data)
    rows = DocumentsAtPositions(features, np.arange(data.n_documents), z)
    whole = rows.binned("ranker", learning.tree_options(options))
    counts = data.weighted.only_cells(data.known)
    start = rate_of_alike(counts, data.theta, z, data.learnt)
    learnt, apart = learning.likelihoods(data, counts, data.theta)
    losses = FromOffset(learnt, start[data.learnt]), FromOffset(apart, start[data.apart])
    sets = learning.split_rows(whole, data.held_out)
    grown = learning.grow(sets, losses, options, on_round)
    scores = start.copy()
    scores[data.learnt] += grown.trees.scores()
    if sets[1]:
        scores[data.apart] += grown.trees.scores_apart()[0]
    return grown, scores


def rate_of_alike(counts: CountTable, theta: Floats, z: Floats, learnt: np.ndarray) -> Floats:
    """The logit of C / E of the documents to learn from with such a z, shape (D,)."""
    known = z[learnt][np.isfinite(z[learnt])]
    edges = np.unique(np.quantile(known, np.arange(1, _GROUPS) / _GROUPS)) if len(known) else np.zeros(0)
    group = np.where(np.isfinite(z), np.searchsorted(edges, z, side="right"), len(edges) + 1)
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(counts.impressions * theta[counts.cell])
    mean = clicks[learnt].sum() / max(examined[learnt].sum(), _TINY)
    of_group = [np.bincount(group[learnt], values[learnt], len(edges) + 2) for values in (clicks, examined)]
    rate = np.clip((of_group[0] + mean) / (of_group[1] + 1.0), *learning.RATES)  # as if one more had been examined
    return np.log(rate / (1 - rate))[group]


class FromOffset(Loss):
    """A loss of scores that are added to given ones."""

    def __init__(self, loss: Loss, offset: Floats) -> None:
        """Take the scores that are there, shape (n,)."""
        self.loss, self.offset = loss, offset

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradients of the loss at the sums."""
        return self.loss.gradients(self.offset + scores)

    def per_impression(self, scores: Floats) -> float:
        """The likelihood of the loss at the sums."""
        return self.loss.per_impression(self.offset + scores)


def soft_labels(counts: CountTable, theta: Floats, gamma: Floats) -> tuple[Floats, float]:
    """Y of each document, shape (D,), and rho.

    Args:
        counts: of the documents, in cells that have a theta.
        theta: in (0, 1], shape (K,).
        gamma: gamma1, shape (D,), in (0, 1).
    """
    shown, of_entry = counts.impressions, theta[counts.cell]
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(shown * of_entry)
    squares, v = counts.sum_by_unit(shown * of_entry**2), gamma * (1 - gamma)
    left = float((v * np.maximum(examined**2 - squares, 0.0)).sum())
    beyond = float(((clicks - examined * gamma) ** 2 - examined * gamma + squares * gamma**2).sum())
    rho = min(max(beyond / left, 0.0), 1.0) if left > _TINY else 0.0
    signal = rho * v * examined**2
    noise = np.maximum(examined * gamma - squares * (gamma**2 + rho * v), _TINY)
    own = np.divide(clicks, examined, out=gamma.copy(), where=examined > 0)
    return np.clip(gamma + signal / (signal + noise) * (own - gamma), *learning.RATES), rho


DISTILLED = replace(
    PBM,
    name="distilled",
    reference="Lopez-Paz et al. 2016",
    family=learn_distilled,
    n_fits=2,
    takes=(*PBM.takes, "ranker_score"),
)
