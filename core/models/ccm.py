"""The click chain model: whether users go on after a click depends on how relevant the document was."""

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.models.cascade import CascadeModel, Posterior
from posbias.core.models.click_model import ATTRACTIVENESS

AFTER_SKIP = Parameter("continuation_after_skip", "one", start=0.9)
AFTER_IRRELEVANT = Parameter("continuation_after_irrelevant_click", "one", start=0.7)
AFTER_RELEVANT = Parameter("continuation_after_relevant_click", "one", start=0.3)


class ClickChainModel(CascadeModel):
    """CCM: k(0) = tau_1, k(1) = tau_2 (1 - a_qd) + tau_3 a_qd.

    Attractiveness and relevance are one here: after a click the document turns out relevant with probability a_qd, so
    that whether users go on says something about it, too.
    """

    name = "ccm"
    reference = "Guo et al. 2009 (WWW), by EM (Chuklin, Markov & de Rijke 2015)"
    about = "users go on after a click, the less often the better the document"
    parameters = (ATTRACTIVENESS, AFTER_SKIP, AFTER_IRRELEVANT, AFTER_RELEVANT)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Tau 1 after a skip; tau 2 or tau 3 after a click, by relevance."""
        skipped, irrelevant, relevant = (
            float(parameters[tau.name]) for tau in (AFTER_SKIP, AFTER_IRRELEVANT, AFTER_RELEVANT)
        )
        a = parameters[ATTRACTIVENESS.name][pages.unit]
        return np.full(a.shape, skipped), irrelevant * (1 - a) + relevant * a

    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:
        """Whether a clicked document was relevant is expected from whether its user went on."""
        irrelevant, relevant = (float(parameters[tau.name]) for tau in (AFTER_IRRELEVANT, AFTER_RELEVANT))
        decided = pages.click & posterior.followed
        a, on = parameters[ATTRACTIVENESS.name][pages.unit[decided]], posterior.went_on[decided]
        k = irrelevant * (1 - a) + relevant * a
        relevant_on, relevant_off = on * a * relevant / k, (1 - on) * a * (1 - relevant) / (1 - k)

        def there(values: Floats) -> Floats:
            everywhere = np.zeros(decided.shape)
            everywhere[decided] = values
            return everywhere

        clicked, was_relevant = decided.astype(np.float64), there(relevant_on + relevant_off)
        skipped = posterior.examined * (posterior.followed & ~pages.click)
        return {
            ATTRACTIVENESS.name: Ratio(pages.click + was_relevant, posterior.examined + clicked),
            AFTER_SKIP.name: Ratio(skipped * posterior.went_on, skipped),
            AFTER_IRRELEVANT.name: Ratio(there(on - relevant_on), clicked - was_relevant),
            AFTER_RELEVANT.name: Ratio(there(relevant_on), was_relevant),
        }
