"""Refusal of options on the command line that would have no effect.

Options of posbias.toml and the environment may be meant for several commands and methods, and are ignored where they
have no effect; an option typed for a command is meant for it. The rules, and how to write them, are in options.toml.
Plug-ins are loaded only for options that are given.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from posbias.cli.options.groups import SETTINGS
from posbias.cli.options.option import METHODS, ROWS, declaration, declarations
from posbias.core.choices import CLICK_MODELS, FORMATS, LAYOUTS, LEARNERS, MODELS, settings_of
from posbias.core.errors import UsageError
from posbias.io.sources import NAMES as SOURCES
from posbias.io.sources import event_source

if TYPE_CHECKING:
    from posbias.cli.options.groups import LogOptions
    from posbias.core.counts.counting_plan import StatisticsPlan
    from posbias.io.log.exports import Export
    from posbias.io.stores.store import Statistics


@dataclass(frozen=True)
class Situation:
    """A command with the values of its parameters, which are also attributes."""

    command: str
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type of the option
        return self.values[name]

    def is_set(self, name: str) -> bool:
        """Whether an option has a truthy value or the integer 0, or the tracker named by --input-format sets it."""
        value = self.values[name]
        form = self.values.get("input_format")
        if form in SOURCES and f"--{name.replace('_', '-')}" in event_source(form).options:
            return True
        return bool(value) or (value == 0 and type(value) is int)

    def holds(self, condition: str) -> bool | None:
        """Whether a condition of options.toml holds; None if the command has none of its options."""
        names, _, values = condition.partition("=")
        known = [name for name in names.split("|") if name in self.values]
        if not known:
            return None
        if not values:
            return any(map(self.is_set, known))
        return str(self.values[known[0]]) in [
            name for value in values.split(",") for name in CHOICES.get(value, [value])
        ]

    @property
    def inputs(self) -> list[str]:
        """Logs or statistics, as named by the user."""
        return cast("list[str]", self.values.get("inputs") or self.values.get("logs") or [])

    @cached_property
    def collected(self) -> "list[Statistics]":
        """The inputs, where they are statistics; looked up on first use."""
        from posbias.io.stores.store import find_statistics

        return find_statistics(self.inputs)

    @cached_property
    def export(self) -> "Export | None":
        """The inputs, where they are counts of a warehouse; looked up on first use."""
        from posbias.cli.options.inputs import export_of

        return export_of(self.inputs, cast("LogOptions", self))

    @property
    def plan(self) -> "StatisticsPlan | None":
        """The plan of statistics or of counts of a warehouse; None for a log."""
        from posbias.io.counting.warehouse import about_export

        if self.collected:
            return self.collected[0].metadata.plan
        return None if self.export is None else about_export(self.export).counted.plan()


CHOICES: Mapping[str, list[str]] = {
    "rows": [*ROWS],
    "trackers": [*SOURCES],
    "page_models": [name for name in CLICK_MODELS if name not in MODELS],
}
"""Lists of values, by their names in conditions."""


def check_effects(given: Mapping[str, str], situation: Situation) -> None:
    """Check that options of the command line have an effect.

    Args:
        given: the options as typed, by parameter name.
        situation: the command with all values.

    Raises:
        UsageError: an option has no effect.
    """
    for name, typed in given.items():
        reason = why_without_effect(name, situation)
        if reason is not None:
            raise UsageError(f"{typed}: has no effect here: {reason}. Leave it out.")


def why_without_effect(option: str, situation: Situation) -> str | None:
    """Return why an option or a setting NAME=VALUE, by parameter name, has no effect; None if it has an effect."""
    parameter = next((name for name, kind in SETTINGS.items() if option in settings_of(kind)), option)
    rules = _expand(declaration(situation.command, parameter).get("rules", ()))
    return next((reason for rule in rules if (reason := _reason(rule, option, situation))), None)


def _expand(rules: list[Any]) -> Iterator[Mapping[str, str]]:
    """Replace names of lists by the rules in the list, and names of functions by tables."""
    for rule in rules:
        if isinstance(rule, str) and rule in REASONS:
            yield {"reason_of": rule}
        else:
            yield from _expand(declarations().rules[rule]) if isinstance(rule, str) else [rule]


def _reason(rule: Mapping[str, str], option: str, o: Situation) -> str | None:
    """Return why an option has no effect by a rule; None if the rule does not apply."""
    if o.command not in rule.get("commands", o.command).split() or rule.get("setting", option) != option:
        return None
    if "when" in rule and not o.holds(rule["when"]):
        return None
    if "taken_by" in rule:
        return lacks_plugin(rule["taken_by"], o, option)
    if "reason_of" in rule:
        return REASONS[rule["reason_of"]](o, option)
    if ("requires" in rule and o.holds(rule["requires"]) is not False) or (
        "excludes" in rule and not o.holds(rule["excludes"])
    ):
        return None
    return re.sub(r"\{(\w+)\}", lambda match: str(o.values[match[1]]), rule["reason"])


def lacks_plugin(kind: str, o: Situation, option: str) -> str | None:
    """Return why a method, layout, format or learner does not take an option; unknown names are refused elsewhere."""
    if kind not in o.values:
        return None
    if kind == "method":
        from posbias.core.estimators import methods_that_take as takers
    elif kind == "layout":
        from posbias.core.training.layout import layouts_that_take as takers
    elif kind == "format":
        from posbias.io.training import formats_that_take as takers
    else:
        from posbias.core.learners.learning import learners_that_take as takers
    names, name = takers(option), o.values[kind]
    if not names or name in names or name not in PLUGINS[kind]:
        return None
    if kind == "method":
        return f"--method {name} does not support it. Methods that do: {', '.join(names)}"
    return f"it applies only to --{kind} {', '.join(names)}"


PLUGINS = {"method": METHODS, "layout": LAYOUTS, "format": FORMATS, "learner": LEARNERS}
"""Names of plug-ins by the option that takes them."""


def needs_log(o: Situation, _: str) -> str | None:
    """Return why an option about reading logs has no effect on statistics."""
    if "input_format" not in o.values or not o.collected:
        return None
    return f"{o.inputs[0]} holds statistics, and this option is about reading logs"


def needs_rows(o: Situation, _: str) -> str | None:
    """Return why an option about reading rows has no effect on counts of a warehouse."""
    if "input_format" not in o.values or o.export is None:
        return None
    return f"{o.inputs[0]} holds counts of a warehouse, and this option is about reading logs"


def needs_days(o: Situation, _: str) -> str | None:
    """Return why periods have no effect: the days of the rows are not known."""
    if o.plan is not None:
        return None if o.plan.period else "the statistics were collected without days"
    dated = o.timestamp is not None or o.date is not None
    return None if dated else "it takes --timestamp COLUMN, also where a column of times is recognised"


def needs_text_files(o: Situation, _: str) -> str | None:
    """Return why an option about text files has no effect: all files are Parquet or Arrow."""
    typed = (".parquet", ".pq", ".arrow", ".ipc", ".feather")
    if not all(name.lower().endswith(typed) for name in (*o.inputs, *(o.clicks or ()))):
        return None
    return "it is about files of text, and Parquet and Arrow are none"


def needs_clusters(o: Situation, _: str) -> str | None:
    """Return why a column of clusters has no effect: the method does not use it."""
    from posbias.core.estimators import get_method

    if "method" not in o.values or "column" in get_method(o.method).clusters:
        return None
    return f"--method {o.method} does not support it"


def needs_contexts(o: Situation, _: str) -> str | None:
    """Return why shrinkage has no effect: there is a single context."""
    contexts = o.context if o.plan is None else o.plan.context
    return None if contexts else "only contexts are shrunk (--context COLUMN)"


def needs_click_weights(o: Situation, option: str) -> str | None:
    """Return why an option of click weights has no effect: a layout has none, or does not divide by propensities."""
    if "layout" not in o.values:
        return None
    from posbias.core.training.layout import get_layout

    layout = get_layout(o.layout)
    if layout.weighted is None and option != "min_propensity":
        return f"--layout {layout.name} has rates, not click weights"
    if "negatives" in layout.takes and o.negatives == "posterior":
        return "--layout-options negatives=posterior has no click weights"
    by_posterior = "rate" in layout.takes and o.rate == "posterior" and option == "min_propensity"
    return "--layout-options rate=posterior does not divide by propensities" if by_posterior else None


def needs_curve(o: Situation, _: str) -> str | None:
    """Return why a smooth curve cannot be chosen: a user's own propensity table has none."""
    from posbias.io.fits.saved_fit import is_table_or_power

    named = o.values.get("propensities")
    return f"--propensities {named} has no smooth curve" if named is not None and is_table_or_power(named) else None


def needs_learner(o: Situation, option: str) -> str | None:
    """Return why propensities, or rows placed at random, have no effect on a learner."""
    if "learner" not in o.values:
        return None
    from posbias.core.learners.learning import get_learner, randomized_learners

    learner = get_learner(o.learner)
    if option == "randomized_where":
        names = ", ".join(randomized_learners())
        return None if learner.needs_randomized else f"it applies only to --learner {names}"
    if learner.theta_for is not None and not o.values[learner.theta_for]:
        return f"--learner-options {learner.theta_for}=false takes no propensities"
    return None if learner.uses_propensities else f"--learner {learner.name} takes no propensities"


def needs_merging(o: Situation, _: str) -> str | None:
    """Return why --gate has no effect: no day is added to statistics."""
    if len(o.collected) > 1 or o.into is not None:
        return None
    return "days are let into a store where statistics are merged, or with --into STORE"


def needs_simulated_model(o: Situation, option: str) -> str | None:
    """Return why an option has no effect on a simulated click model; unknown models are refused elsewhere."""
    from posbias.core.simulation.options import CELL_MODELS, parameters_by_pair, shared_parameters, uses_theta

    def takes(model: str) -> bool:
        match option:
            case "eta" | "theta":
                return uses_theta(model)
            case "satisfaction":
                return "satisfaction" in parameters_by_pair(model)
            case "parameters":
                return bool(shared_parameters(model))
            case "attractiveness_scale" | "click_noise":
                return bool(parameters_by_pair(model))
            case _:
                return model in CELL_MODELS

    if o.model not in CLICK_MODELS or takes(o.model):
        return None
    if option in {"attractiveness_scale", "click_noise"}:
        return f"under --model {o.model} all documents have the same click rate"
    return f"it only works with --model {', '.join(filter(takes, CLICK_MODELS))}"


def needs_text(o: Situation, _: str) -> str | None:
    """Return why an option about text features has no effect: the ranker has none."""
    from posbias.io.training.rankers import read_model

    is_text = (feature.categories is not None for feature in read_model(o.ranker).section.features)
    return None if any(is_text) else f"{o.ranker} has no features that are text"


def needs_picture(o: Situation, _: str) -> str | None:
    """Return why --chart has no effect: the report is a page, with all charts."""
    return None if o.output.suffix.lower() in {".svg", ".png"} else "a page has them all"


REASONS: Mapping[str, Callable[[Situation, str], str | None]] = {
    function.__name__: function
    for function in (
        *(needs_log, needs_rows, needs_days, needs_text_files, needs_clusters, needs_contexts, needs_click_weights),
        *(needs_curve, needs_learner, needs_merging, needs_simulated_model, needs_text, needs_picture),
    )
}
"""Functions that return a reason, by their names in rules."""
