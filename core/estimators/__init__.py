"""Methods of estimating theta, from sufficient statistics or from impressions with features.

A method is a subclass of `Estimator` or of `MethodOfRows`, with a line in a table of `core.choices`.
"""

from dataclasses import fields

from posbias.core.choices import ESTIMATORS, METHODS_OF_ROWS, Room
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.estimators.estimate import EstimationOptions, Estimator, Method
from posbias.core.shapes import FREE, get_shape
from posbias.core.standard_errors.cluster import FEWEST_REPLICATES

MOST_REPLICATES = 10_000
"""Most replicates of a bootstrap: the error of an interval's ends is then a hundredth of its width."""

_OTHER_ESTIMATE = ("cluster", "bootstrap", "shape", "cell_form")
"""Options that change the estimate and that not all methods support."""

_METHODS = Room[Method](ESTIMATORS | METHODS_OF_ROWS, "--method")

get_method, methods_that_take = _METHODS.get, _METHODS.that_take


def get_estimator(name: str) -> Estimator:
    """Return the method of this name that estimates from statistics.

    Raises:
        UsageError: there is none, or it needs the features of every impression.
    """
    method = get_method(name)
    if not isinstance(method, Estimator):
        raise UsageError(f"--method {name}: needs the features of every impression, and there are only counts.")
    return method


def check_method(name: str, plan: StatisticsPlan, options: EstimationOptions) -> None:
    """Check that a method supports the options, before the log is read.

    Raises:
        UsageError: there is no such method, or it does not support an option.
    """
    method = get_method(name)
    for option in fields(EstimationOptions):
        value = getattr(options, option.name)
        if option.name in _OTHER_ESTIMATE and value != option.default and option.name not in method.takes:
            able = ", ".join(methods_that_take(option.name))
            flag = f"--{option.name.replace('_', '-')}"
            raise UsageError(f"{flag} {value}: --method {name} does not support it. Methods that do: {able}.")
    if options.shape != FREE:
        get_shape(options.shape)
    if options.shape not in {FREE, "power"} and plan.cell:
        raise UsageError(
            f"--shape {options.shape}: is a curve over positions, and cells differ by {', '.join(plan.cell)} as well "
            "(--cell). Use --shape power, or --cell-form product, an effect for each position and each value."
        )
    if options.shape != FREE and options.cell_form == "free":
        raise UsageError(f"--cell-form free: leaves each cell a number, and --shape {options.shape} is a form.")
    if options.cell_form is not None and not plan.cell:
        raise UsageError(f"--cell-form {options.cell_form}: cells are positions. Name their other columns with --cell.")
    if options.shape != FREE and plan.model.beside_position:
        raise UsageError(
            f"--shape {options.shape}: a shape over positions says nothing about {plan.model.beside_position}. "
            "Use --model pbm, or leave the shape free."
        )
    by_query = options.cluster in {None, "query"}
    form = "--cell-form product" if options.cell_form == "product" else f"--shape {options.shape}"
    if (options.shape != FREE or options.cell_form == "product") and not (by_query and not options.bootstrap):
        given = "--bootstrap" if options.bootstrap else "--cluster"
        raise UsageError(f"{form}: its standard errors are clustered by query. Leave out {given}.")
    if "cluster" in method.takes and options.cluster is not None and options.cluster not in method.clusters:
        able = [other.name for other in _METHODS.plugins.values() if options.cluster in other.clusters]
        raise UsageError(f"--cluster {options.cluster}: only --method {', '.join(able)} supports it.")
    if options.bootstrap and not by_query:
        raise UsageError(f"--bootstrap: it resamples queries. Leave out --cluster {options.cluster}.")
    if options.cluster in {"column", "two-way"} and not plan.clusters:
        raise UsageError(f"--cluster {options.cluster}: name the column of clusters with --cluster-column COLUMN.")
    if options.bootstrap and not FEWEST_REPLICATES <= options.bootstrap <= MOST_REPLICATES:
        raise UsageError(
            f"--bootstrap {options.bootstrap}: at least {FEWEST_REPLICATES} replicates make an interval, and more than "
            f"{MOST_REPLICATES:,} make it no better."
        )
    method.check(plan)
