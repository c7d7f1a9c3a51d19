"""Leaving out one cluster at a time where there are many cells: several clusters together, by conjugate gradients.

    (H - H_g) d = s,    x = H d

The preconditioner is H^-1, so that what iterations have to find is one cluster's part in the whole: the eigenvalues of
H^-1 (H - H_g) lie between 0 and 1, most of them close to 1, and a dozen iterations give all digits. One costs a product
with H^-1 for all clusters together, and a pass over the entries of the clusters' units; H itself is not needed, as the
directions p are kept with H p:

    r = s, z = H^-1 r, p = z, Hp = r;    A p = Hp - H_g p,  a = r'z / p'Ap,  x += a Hp,  r -= a Ap,
    z = H^-1 r,  b = r'z / (the one before),  p = z + b p,  Hp = r + b Hp

Source: Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers, sum_by_number

_MOST_ITERATIONS = 60
_PRECISION = 1e-13  # of x, in the norm of (H - H_g)^-1, relative to the score


@dataclass(frozen=True)
class ClusterEntries:
    """The entries of the units of B clusters on the F free cells."""

    place: Integers  # shape (R,), b F + k for an entry of cluster b in the free cell k
    share: Floats  # shape (R,), p_je
    weight: Floats  # shape (M,), w_bj of each unit of a cluster
    start: Integers  # shape (M + 1,), where the entries of each of these begin; one at least has each
    shape: tuple[int, int]  # (B, F)

    def information_times(self, vectors: Floats) -> Floats:
        """H_b v_b = sum_j w_bj (p_j * v - p_j (p_j'v)) of each cluster, both of shape (B, F)."""
        product = self.share * vectors.ravel()[self.place]
        mean = np.add.reduceat(product, self.start[:-1]) if len(product) else product
        length = np.diff(self.start)
        product -= self.share * np.repeat(mean, length)
        product *= np.repeat(self.weight, length)
        n_clusters, n_free = self.shape
        return sum_by_number(self.place, product, n_clusters * n_free).reshape(self.shape)


def adjust_together(scores: Floats, inverse: Floats, entries: ClusterEntries) -> tuple[Floats, Flags]:
    """x_b = H (H - H_b)^-1 s_b of B clusters.

    Args:
        scores: s, shape (B, F).
        inverse: H^-1, shape (F, F).
        entries: of the clusters.

    Returns:
        x, shape (B, F), and for which clusters it was found to all digits, shape (B,); not where H - H_b is singular,
        or nearly so.
    """
    x, r = np.zeros_like(scores), scores.copy()
    p = r @ inverse
    of_x = r.copy()  # H p
    before = first = np.einsum("bk,bk->b", r, p)
    todo = first > 0
    for _ in range(_MOST_ITERATIONS):
        if not todo.any():
            break
        change = of_x - entries.information_times(p)
        bent = np.einsum("bk,bk->b", p, change)
        going = todo & (bent > 0)
        step = np.divide(before, bent, out=np.zeros_like(bent), where=going)[:, np.newaxis]
        x += step * of_x
        r -= step * change
        z = r @ inverse
        after = np.einsum("bk,bk->b", r, z)
        todo = going & (after > _PRECISION**2 * first)
        ratio = np.divide(after, before, out=np.zeros_like(after), where=todo)[:, np.newaxis]
        p = z + ratio * p
        of_x = r + ratio * of_x
        before = after
    return x, (first <= 0) | ~todo & (before <= _PRECISION**2 * first)
