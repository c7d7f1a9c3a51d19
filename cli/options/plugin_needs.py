"""What options need of a model, method, layout, format or learner; these are loaded for options that are given."""

from collections.abc import Callable, Iterable

from posbias.cli.options import names
from posbias.cli.options.effects import Need, Situation, only_where

# --- reading ----------------------------------------------------------------------------------------------------


def with_actions(asked: Situation) -> str | None:
    """A source whose events have names."""
    from posbias.io.forms import forms

    able = [form.name for form in forms() if form.has_actions]
    return None if asked["input_format"] in able else f"it applies only to --input-format {' and '.join(able)}"


# --- estimating -------------------------------------------------------------------------------------------------


def known_to_method(option: str) -> Need:
    """A method that takes the option, unless it is one for all."""

    def need(asked: Situation) -> str | None:
        from posbias.core.estimators import get_method, methods_that_take

        able = methods_that_take(option)
        if not able or get_method(asked["method"]).name in able:
            return None
        return f"--method {asked['method']} does not support it. Methods that do: {', '.join(able)}"

    return need


def cluster_column(asked: Situation) -> str | None:
    """Errors that are clustered by a column."""
    from posbias.core.estimators import get_method

    if asked["bootstrap"]:
        return "--bootstrap resamples queries"
    if asked["shape"] != "free":
        return f"the standard errors of --shape {asked['shape']} are clustered by query"
    if asked["cluster"] not in {None, "column", "two-way"}:
        return f"--cluster {asked['cluster']} does not use it"
    if "column" not in get_method(asked["method"]).clusters:
        return f"--method {asked['method']} does not support it"
    return None


def of_rows_only(asked: Situation) -> str | None:
    """A method that learns from rows."""
    able = names.methods_of_rows()
    return None if asked["method"] in able else f"only --method {' and '.join(able)} learn from rows"


random = only_where(
    lambda asked: asked["bootstrap"] > 0 or asked["method"] in names.methods_of_rows(),
    "only --bootstrap N, and methods that sample pages, are random",
)
"""A method that draws at random."""


def by_cell(asked: Situation) -> str | None:
    """A model with a propensity by cell; one that does not exist is for the command to refuse."""
    model = asked["model"]
    if model is None or model in names.cell_models() or model not in names.models():
        return None
    return f"under --model {model}, nothing is estimated by cell"


# --- weighting --------------------------------------------------------------------------------------------------


def known_to_layout(option: str) -> Need:
    """A layout that takes the option, unless it is one for all."""

    def need(asked: Situation) -> str | None:
        from posbias.core.training.layouts import get_layout, layouts_that_take

        able = layouts_that_take(option)
        takes = not able or get_layout(asked["layout"]).name in able
        return None if takes else f"it applies only to --layout {', '.join(able)}"

    return need


def weights(asked: Situation) -> str | None:
    """A layout whose rows have weights."""
    from posbias.core.training.layouts import get_layout

    layout = get_layout(asked["layout"])
    return f"--layout {layout.name} has rates, not click weights" if layout.weighted is None else None


def click_weights(asked: Situation) -> str | None:
    """Weights that are not posteriors."""
    from posbias.core.training.layouts import get_layout

    if "negatives" in get_layout(asked["layout"]).takes and asked["negatives"] == "posterior":
        return "--negatives posterior has no click weights"
    return None


def rate_by_propensity(asked: Situation) -> str | None:
    """Rates that are divided by propensities."""
    from posbias.core.training.layouts import get_layout

    if "rate" in get_layout(asked["layout"]).takes and asked["rate"] == "posterior":
        return "--rate posterior does not divide by propensities"
    return None


def known_to_format(option: str) -> Need:
    """A format that takes the option, unless it is one for all."""

    def need(asked: Situation) -> str | None:
        from posbias.io.formats import formats_that_take

        able = formats_that_take(option)
        return None if not able or asked["format"] in able else f"it applies only to --format {', '.join(able)}"

    return need


# --- learning ---------------------------------------------------------------------------------------------------


def known_to_learner(option: str) -> Need:
    """A learner that takes the option, unless it is one for all."""

    def need(asked: Situation) -> str | None:
        from posbias.core.learners.methods import get_learner, learners_that_take

        able = learners_that_take(option)
        takes = not able or get_learner(asked["learner"]).name in able
        return None if takes else f"it applies only to --learner {', '.join(able)}"

    return need


def of_a_fit(asked: Situation) -> str | None:
    """Propensities that a fit estimated."""
    from posbias.io.fits.read import is_own

    named = asked.values.get("propensities")
    return f"--propensities {named} has no smooth curve" if named is not None and is_own(named) else None


def learns_with_theta(asked: Situation) -> str | None:
    """A learner that takes propensities."""
    from posbias.core.learners.methods import get_learner

    learner = get_learner(asked["learner"])
    if learner.does_without is not None and asked[learner.does_without]:
        return f"--{learner.does_without.replace('_', '-')} takes no propensities"
    return None if learner.uses_propensities else f"--learner {learner.name} takes no propensities"


def learns_from_placed(asked: Situation) -> str | None:
    """A learner that needs to know which rows were placed at random."""
    from posbias.core.learners.methods import get_learner, learners_from_randomized

    if get_learner(asked["learner"]).needs_randomized:
        return None
    return f"it applies only to --learner {', '.join(learners_from_randomized())}"


# --- simulating -------------------------------------------------------------------------------------------------


def examined_by_cell(asked: Situation) -> str | None:
    """A model whose users examine by cell."""
    from posbias.core.simulation.parameters import CELL_MODELS

    return _of_models(asked, lambda model: model in CELL_MODELS)


def documents_differ(asked: Situation) -> str | None:
    """A model in which documents have click rates of their own."""
    from posbias.core.simulation.parameters import parameters_by_pair

    return _of_models(asked, lambda model: bool(parameters_by_pair(model)), "all documents have the same click rate")


def depends_on_theta(asked: Situation) -> str | None:
    """A model whose clicks depend on theta."""
    from posbias.core.simulation.parameters import uses_theta

    return _of_models(asked, uses_theta)


def users_are_satisfied(asked: Situation) -> str | None:
    """A model in which a document can satisfy."""
    from posbias.core.simulation.parameters import parameters_by_pair

    return _of_models(asked, lambda model: "satisfaction" in parameters_by_pair(model))


def has_parameters(asked: Situation) -> str | None:
    """A model with parameters that all documents share."""
    from posbias.core.simulation.parameters import shared_parameters

    return _of_models(asked, lambda model: bool(shared_parameters(model)))


def _of_models(asked: Situation, takes: Callable[[str], bool], reason: str | None = None) -> str | None:
    """A need of some models; one that does not exist is for the command to refuse."""
    model, known = asked["model"], names.models()
    if model not in known or takes(model):
        return None
    return f"under --model {model} {reason}" if reason else _only_with(filter(takes, known))


def _only_with(models: Iterable[str]) -> str:
    return f"it only works with --model {', '.join(models)}"
