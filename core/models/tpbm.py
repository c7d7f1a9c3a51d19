"""The trust-bias position-based model: what stands high is clicked because it stands there."""

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio, at_position
from posbias.core.models.click_model import ClickModel
from posbias.core.priors import BetaPrior
from posbias.core.schema import POSITION

RELEVANCE = Parameter("relevance", "unit", prior=BetaPrior(0.5, 2.0))
CLICK_IF_RELEVANT = Parameter("click_if_relevant", "position", start=0.6)
CLICK_IF_NOT = Parameter("click_if_not_relevant", "position", start=0.1)


class TrustBiasModel(ClickModel):
    """TPBM: P(C_r = 1) = theta_k (eps+_k gamma_qd + eps-_k (1 - gamma_qd)) = alpha_k gamma_qd + beta_k.

    Its parameters are p_k = theta_k eps+_k = alpha_k + beta_k and q_k = theta_k eps-_k = beta_k, a click's
    probability at position k on a relevant document and on another. Clicks do not change under

        gamma -> (gamma - u) / (v - u),   p -> q + v (p - q),   q -> q + u (p - q)

    so that they tell gamma, p and q at best up to such a change; predictions are the same under all of them. Here gamma
    is on the scale on which it is spread evenly from 0 to 1, its prior. Theta and eps are not told apart at all, which
    is why this model has no propensities.
    """

    name = "tpbm"
    reference = "Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM)"
    about = "PBM in which what stands high is clicked for that alone"
    parameters = (RELEVANCE, CLICK_IF_RELEVANT, CLICK_IF_NOT)
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Each impression says whether its document is relevant, as far as a click or its absence tells that."""
        gamma, p, q = self._values(parameters, pages)
        clicked = np.where(pages.click, gamma * p, gamma * (1 - p))
        relevant = clicked / np.where(pages.click, gamma * p + (1 - gamma) * q, 1 - gamma * p - (1 - gamma) * q)
        return {
            RELEVANCE.name: Ratio(relevant, np.ones(gamma.shape)),
            CLICK_IF_RELEVANT.name: Ratio(relevant * pages.click, relevant),
            CLICK_IF_NOT.name: Ratio((1 - relevant) * pages.click, 1 - relevant),
        }

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Gamma p + (1 - gamma) q."""
        gamma, p, q = self._values(parameters, pages)
        return gamma * p + (1 - gamma) * q

    @staticmethod
    def _values(parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats, Floats]:
        p, q = (at_position(parameters[name.name], pages.position) for name in (CLICK_IF_RELEVANT, CLICK_IF_NOT))
        return parameters[RELEVANCE.name][pages.unit], p, q
