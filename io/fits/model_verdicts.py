"""Whether the model holds, in words: what was tested and what follows where it does not hold."""

import numpy as np

from posbias.core.fit.fit import Fit
from posbias.core.fit.model_tests import ATTRACTIVENESS, CLICKS_ABOVE, LAST_CLICK, ModelTests
from posbias.core.fit.other_models import OtherModels
from posbias.core.models import model_names
from posbias.core.standard_errors.score_test import ScoreTest
from posbias.io.fits.cells_in_words import cell_in_words

_NAMES = {"pbm": "the position-based model", "ubm": "the user browsing model"}
_HOLDS = {
    ATTRACTIVENESS: "documents that are clicked more lose as much by position as others",
    CLICKS_ABOVE: "clicks do not depend on the number of clicks above",
    LAST_CLICK: "clicks do not depend on where the last click above was",
}


def model_verdicts(fit: Fit) -> list[str]:
    """What was tested, where nothing speaks against the estimate."""
    tests = fit.model_tests
    if tests is None or not tests.found:
        return []
    p_values = tests.adjusted
    passed = [f"{_HOLDS[name]} (p = {p_values[name]:.1g})" for name in tests.found if name not in tests.rejected]
    said = [f"consistent with {_model(fit)}: {'; '.join(passed)}."] if passed else []
    if tests.why_no_pages and fit.statistics.plan.model.name == "pbm":
        said.append(f"whether clicks depend on clicks above is not tested: {tests.why_no_pages}.")
    return said


def model_warnings(fit: Fit) -> list[str]:
    """What does not hold, and what follows."""
    tests = fit.model_tests
    if tests is None:
        return []
    p_values = tests.adjusted
    said: list[str] = []
    if ATTRACTIVENESS in tests.rejected and tests.attractiveness is not None:
        said.append(_by_attractiveness(fit, tests.attractiveness, p_values[ATTRACTIVENESS]))
    if tests.depends_on_clicks_above:
        said.append(_by_clicks_above(fit, tests))
    return said


def other_model(fit: Fit, found: OtherModels | None) -> list[str]:
    """Which other click model explains the clicks, where one does so by more than chance."""
    if found is None or found.better is None:
        return []
    best, fitted = found.better, fit.statistics.plan.model.name
    if best.name in model_names():
        follow = f"Its propensities (--model {best.name}) hold where users do not differ in how readily they click."
    else:
        follow = "It has no propensity by position."
    gain = f"{best.gain:.2g} (standard error {best.std_error:.1g}) above that of {fitted}, {found.log_likelihood:.3f}"
    said = (
        f"of the click models, {best.name} predicts held-out clicks best: its log-likelihood per impression is {gain}. "
        f"{follow} `posbias evaluate LOGS --models {fitted},{best.name}` compares them on the whole log."
    )
    return [said]


def _by_attractiveness(fit: Fit, found: ScoreTest, p_value: float) -> str:
    propensity = fit.free.propensity
    lowest = int(np.nanargmin(propensity))
    ratio = float(propensity[lowest] ** found.test.difference)
    loss, attractive, others = ("less", "large", "small") if ratio > 1 else ("more", "small", "large")
    return (
        f"documents that are clicked more lose {loss} by position (p = {p_value:.1g}): at {cell_in_words(fit, lowest)} "
        f"their propensity is about {ratio:.2g} times that of other documents of their query. "
        f"{_capital(_model(fit))} does not hold: weights of low positions are too {attractive} for attractive "
        f"documents and too {others} for others. A ranker that knows more of the user or the time than this log tells "
        "looks the same (--stratify, --timestamp), and so do devices that show positions differently (--context)."
    )


def _by_clicks_above(fit: Fit, tests: ModelTests) -> str:
    p_values, found = tests.adjusted, list[str]()
    if CLICKS_ABOVE in tests.rejected and tests.clicks_above is not None:
        found.append(f"{_apart(tests.clicks_above)} below a click (p = {p_values[CLICKS_ABOVE]:.1g})")
    if LAST_CLICK in tests.rejected and tests.last_click is not None:
        found.append(f"{_apart(tests.last_click)} directly below the only click (p = {p_values[LAST_CLICK]:.1g})")
    said = f"the same document at the same position is clicked {' and '.join(found)}. "
    if tests.users_may_differ:
        return said + (
            "Where that is because users or devices differ, propensities are right as means over them (--context tells "
            "devices apart); where a click above changes what is looked at below, weights are off (--model ubm)."
        )
    never = tests.clicks_above is not None and not tests.clicks_above.observed
    return (
        f"{said}{_capital(_model(fit))} does not hold: its propensities are means over what was clicked above, and "
        "weights are off where pages differ in that. "
        + ("No page has two clicks: the log keeps one click per page, or users stop at a click. " if never else "")
        + "Compare with --model ubm."
    )


def _apart(found: ScoreTest) -> str:
    """How far clicks are from what the model expects, e.g. `43% less often`."""
    ratio = found.observed / found.expected
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} often than expected"


def _model(fit: Fit) -> str:
    name = fit.statistics.plan.model.name
    return _NAMES.get(name, f"--model {name}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
