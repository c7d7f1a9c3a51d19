"""From options to a click model that has no propensity by cell."""

from posbias.cli.options.options import EstimationOptions
from posbias.core.browsing.em import EMOptions
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.priors import BetaPrior
from posbias.io.browsing.trust import read_trust
from posbias.io.jobs.click_models import PageFit


def requested_page_fit(name: str, estimation: EstimationOptions, prior: BetaPrior | None) -> PageFit:
    """The click model of a name, and how it is to be fitted.

    Raises:
        UsageError: it is unknown, or the clicks cannot tell what it asks for.
        SchemaError: trust bias is given by a table that says something else.
    """
    model = get_click_model(name)
    if model.name == "tpbm" and estimation.trust is None:
        raise UsageError(
            "--model tpbm: clicks alone do not tell trust bias from attractiveness: P(click) = alpha_k gamma + beta_k "
            "stays the same if gamma is stretched or moved and alpha and beta are changed to fit, so that every such "
            "curve explains the log equally well. Give alpha and beta of each position, e.g. from an experiment with "
            "judged documents: --trust FILE."
        )
    trust = {} if estimation.trust is None else read_trust(estimation.trust)
    em = EMOptions(prior=prior, passes=estimation.max_iterations or EMOptions.passes, fixed=trust)
    return PageFit(model, em, estimation.trust, estimation.csv)
