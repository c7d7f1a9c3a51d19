"""`train`: validate options, learn a ranker from counted clicks, write its model and scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import polars as pl

from posbias.cli.options.groups import LearningOptions
from posbias.cli.work.requests import features_request
from posbias.core.arrays.count_table import Floats
from posbias.core.choices import PENALTIES, Balance, ServingEngine
from posbias.core.choices import LearningOptions as CoreOptions
from posbias.core.errors import IdentifiabilityError, SchemaError, UsageError
from posbias.core.errors import plural as counted_as
from posbias.core.evaluation.click_noise import noise_shares, sampled_units, unit_sums
from posbias.core.fit.propensities import ThetaEstimate, choose_propensities
from posbias.core.learners.auto import LOGGED, NAIVE
from posbias.core.learners.boosting import import_lightgbm
from posbias.core.learners.learning import (
    ROUND,
    TRAINING,
    VALIDATION,
    Learned,
    Learner,
    LearningData,
    balance_weights,
    get_learner,
    sample_negatives,
)
from posbias.core.learners.models import FactorModel, RowModel
from posbias.core.serving.formats import VERSIONS, first_names
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine
from posbias.io.fits.verdicts import unweighted_reason
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result
from posbias.io.jobs.training import context_scale_reasons, weights_from
from posbias.io.results.conclusions import GOOD, NOTE, Reason, reason
from posbias.io.training import rankers
from posbias.io.training.feature_parts import FeaturesRequest
from posbias.io.training.laid_out import covariance_of_theta, examination_of_cells

_MOST_FEATURES = 10
_LEAF_BOUNDS, _LEAVES = (10, 50), 100  # documents in a leaf: n / 100, within these bounds
_BALANCES: dict[Balance, list[str]] = {
    "sqrt": ["a query counts by the square root of its impressions (balance=sqrt)"],
    "query": ["all queries count alike (balance=query)"],
}
_AGAINST = {NAIVE: "naive clicks", LOGGED: "the log's own order"}


def _facts(learned: Learned, data: LearningData, measure: str) -> list[str]:
    """Return sentences on the training data, the loss of the last round, and the choice of the penalty."""
    held_out = f", {len(data.validation):,} of them held out" if len(data.validation) else ""
    facts = [f"learnt from {data.n_documents:,} documents of {int(data.query[-1]) + 1:,} queries{held_out}"]
    curve = learned.curve
    if curve.height:
        last = curve.filter(pl.col(ROUND) == learned.report.get("trees", curve[ROUND][-1])).row(-1, named=True)
        values = [f"{value:.5f} {name}" for name in (TRAINING, VALIDATION) if (value := last[name]) is not None]
        facts.append(f"round {last[ROUND]:,}: {measure} {', '.join(values)}")
    chosen_by = learned.report.get("regularization_chosen_by")
    if chosen_by is not None:
        penalties = [trial["regularization"] for trial in chosen_by["tried"]]
        facts.append(
            f"penalty {learned.report['regularization']:.3g}: the best of {len(penalties)} from {min(penalties):.3g} "
            f"to {max(penalties):.3g} for {chosen_by['impressions_apart']:,.0f} impressions that were set apart "
            f"({chosen_by['fits']} fits; --learner-options regularization=X: one)"
        )
    return facts


def _gains(reasons: Sequence[Reason]) -> str:
    """Return the end of a headline: the gains of a ranker over naive clicks and the log's own order."""
    gains = [reason.figures for reason in reasons if "gain" in reason.figures]
    return ": " + " and ".join(f"{each['gain']:+.1%} against {each['against']}" for each in gains) if gains else ""


def _choice_reasons(chosen: Mapping[str, Any]) -> list[Reason]:
    """Return the parts of the ranker that `auto` chose, and its gains over naive clicks and the log's own order."""
    shares = {name: share for name, share in chosen["shares"].items() if round(share, 2)}
    if not chosen["queries"]:
        sentence = f"The ranker is {next(iter(shares))}: there are too few queries to compare it with others."
        return [Reason("ranker-chosen", NOTE, sentence)]
    if chosen["is_single"]:
        ranker = f"{next(iter(shares))} alone, clearly better than a blend"
    elif len(shares) == 1:
        ranker = f"{next(iter(shares))} alone; the log's order adds nothing to the features"
    else:
        parts = " and ".join(f"{share:.0%} {name}" for name, share in shares.items())
        ranker = f"a blend, {parts}; no single one is clearly better"
    reasons = [Reason("ranker-chosen", NOTE, f"The ranker is {ranker}.", shares, chosen["measure"])]
    for name, gain in chosen["against"].items():
        if not gain["of"] > 0:
            continue
        value, low, high = (gain[name] / gain["of"] for name in ("difference", "ci_low", "ci_high"))
        words = "beats" if low > 0 else "loses to" if high < 0 else "may be no better and no worse than"
        sentence = (
            f"It {words} {_AGAINST[name]} by clicks of {chosen['queries']:,} queries held out in turn, corrected for "
            f"position: {value:+.1%} (95 % interval {low:+.1%} to {high:+.1%})."
        )
        figures = {"against": _AGAINST[name], "gain": value, "ci_low": low, "ci_high": high}
        severity = GOOD if low > 0 else NOTE
        reasons.append(Reason("ranker-compared", severity, sentence, figures, chosen["measure"]))
    return reasons


def _importance(table: pl.DataFrame) -> list[Printed]:
    """Return a heading and a table of the features with the largest gains."""
    total = float(table["gain"].sum()) or 1.0
    top = table.head(_MOST_FEATURES)
    rest = table.height - _MOST_FEATURES
    columns = (
        Column("feature", tuple(top["feature"]), label=True, text=True),
        Column("share of gain", tuple(f"{gain / total:.1%}" for gain in top["gain"])),
        Column("splits", tuple(f"{splits:,}" for splits in top["splits"])),
    )
    return ["feature importance", PrintedTable(columns, f"and {rest:,} more" if rest > 0 else "")]


@dataclass(frozen=True)
class LearningRequest:
    """A request to learn a ranker."""

    learner: Learner
    options: CoreOptions  # of the learner
    given: LearningOptions  # of the command line
    propensities: str | None  # the directory of a fit, or a table
    score: str | None  # the column of the ranker's score, where the learner takes one
    features: FeaturesRequest

    @property
    def uses_propensities(self) -> bool:
        """Whether the learner takes propensities with these options."""
        switch = self.learner.theta_for
        return self.learner.uses_propensities and (switch is None or getattr(self.options, switch))

    @property
    def settings(self) -> dict[str, object]:
        """The options that the learner takes, where they have a value."""
        return {
            name: value
            for name, value in vars(self.options).items()
            if name in self.learner.takes and value is not None
        }


def learning_request(given: LearningOptions, propensities: str | None) -> LearningRequest:
    """Validate the options of a learner.

    Raises:
        UsageError: a value is out of range, or features or propensities that the learner needs are missing.
        MissingExtraError: LightGBM is not installed.
    """
    learner = get_learner(given.learner)
    if not 0 <= given.validation < 1:
        raise UsageError(f"--validation {given.validation:g}: must be at least 0 and below 1, e.g. 0.1.")
    options = CoreOptions(**(given.learner_options or {}), early_stopping=given.early_stopping, seed=given.seed)
    if given.early_stopping is not None and not given.validation:
        raise UsageError("--early-stopping needs held-out queries: say, --validation 0.1.")
    if given.early_stopping is not None and options.margin_penalty:
        raise UsageError(
            "--early-stopping: with margin_penalty the loss depends on how large scores are, and not on their order "
            "alone. Leave one of them out."
        )
    has_features = bool(given.features or given.feature)
    if learner.needs_features and not has_features:
        raise UsageError(
            f"--learner {learner.name}: learns from features. Name them: --features TABLE, or --feature COLUMN of the "
            "log."
        )
    if not learner.needs_features and has_features:
        raise UsageError(f"--learner {learner.name}: learns without features. Leave --features and --feature out.")
    if "trees" not in learner.takes and given.for_engine is not None:
        raise UsageError(
            f"--for {given.for_engine}: has no effect here: search engines load trees, and --learner {learner.name} "
            "makes none. Leave it out."
        )
    score = given.ranker_score if "ranker_score" in learner.takes else None
    request = LearningRequest(learner, options, given, propensities, score, features_request(given, score))
    if request.uses_propensities and propensities is None:
        raise UsageError(
            f"--learner {learner.name}: needs propensities. Name a directory of `posbias fit`: --propensities DIR."
        )
    if "trees" in learner.takes:
        import_lightgbm()  # takes a second where scikit-learn and pandas are installed
    return request


def learn(
    counted: CountedLog, theta: ThetaEstimate | None, request: LearningRequest, engine: Engine, result: Result
) -> None:
    """Learn a ranker, and write its model, its scores and learned propensities.

    Args:
        counted: clicks and impressions by document and cell.
        theta: the propensities; 1 everywhere if None, or if the learner takes none.
        request: learner, options and features.
        engine: for the documents and their features.
        result: to write into.

    Raises:
        IdentifiabilityError: no click has a propensity, or no row was placed at random.
    """
    learner, options, given = request.learner, request.options, request.given
    cells = counted.statistics.cells
    examination, covariance = np.ones(len(cells)), None
    if theta is not None and request.uses_propensities:
        chosen = choose_propensities(theta.propensities, given.propensity)
        result.content["learnt_with"] = weights_from(given.propensity, chosen)
        examination = examination_of_cells(cells, chosen.table)
        covariance = covariance_of_theta(cells, chosen.table, theta)
        by_cell, across = counted.statistics.counts_by_cell(), learner.source == "counts"
        result.reasons += context_scale_reasons(counted, counted.plan, by_cell, chosen.table, engine, across=across)
    documents = _with_served_features(
        rankers.prepare(
            counted, examination, learner, request.features, request.score, given.validation, engine, result.progress
        ),
        given.for_engine,
        result,
    )
    leaf = min(max(documents.data.n_documents // _LEAVES, _LEAF_BOUNDS[0]), _LEAF_BOUNDS[1])
    options = replace(options, leaf_documents=options.leaf_documents or leaf)
    data, share = documents.data, options.negative_share if "negative_share" in learner.takes else 1.0
    balance = options.balance if "balance" in learner.takes else "traffic"
    data = replace(data, weight=balance_weights(data, balance), covariance=covariance)
    leaks = [] if counted.plan.weighted else list(_click_features(documents))
    result.reasons += [*documents.reasons, *leaks]
    _check_clicks(documents, result)
    if data.randomized is not None and not data.randomized.n_entries:
        placed = " or ".join(map(str, counted.plan.randomized))
        raise IdentifiabilityError(f"no row has {placed} (--randomized-where), so there is nothing to learn from.")
    sampled = sample_negatives(data, share, given.seed)
    with result.progress.stage("learning", _rounds(learner, options), unit="rounds") as stage:
        learned = learner.learn(sampled, options, stage.advance)
    if learned.propensities is not None:
        rankers.write_learned_propensities(counted.statistics.cells, learned.propensities, result.folder)
    section = rankers.write_model(
        learned, documents.features, result.folder, is_probability=learner.is_probability, ids=documents.ids
    )
    with result.progress.stage("writing", len(documents.parts)) as stage:
        scores = documents.by_part(_scores(learned.model, documents))
        parts = (rankers.with_scores(rows, values, is_probability=learner.is_probability) for rows, values in scores)
        rankers.write_scores(parts, result.folder, stage)
    about = {"name": learner.name, "reference": learner.reference, "measure": learner.measure, **learned.report}
    if "balance" in learner.takes:
        about["balance"] = balance
    sizes = {"documents": data.n_documents, "held_out": len(data.validation), "queries": int(data.query[-1]) + 1}
    result.content |= {"learner": about, "model": section, "documents": sizes, "features": documents.report}
    result.facts += [*_facts(learned, data, learner.measure), *_BALANCES.get(balance, [])]
    chosen = _choice_reasons(learned.report["chosen"]) if "chosen" in learned.report and not leaks else []
    source = f"{data.n_documents:,} documents of {counted_as(sizes['queries'], 'queries')}"
    result.headline = f"a ranker is learnt from {source}" + _gains(chosen)
    result.reasons += [*chosen, *(reason(*warning) for warning in learned.warnings.items())]
    propensities = f"--propensities {quote(request.propensities or 'FIT')}"
    result.next = f"posbias predict LATER_LOGS {propensities} --scores {result.target}/scores.parquet -o predicted"
    if learned.importance is not None:
        result.printed += _importance(rankers.named_importance(learned.importance, documents.features))
    if sampled is not data:
        about["negative_share"], sizes["left_out"] = share, data.n_documents - sampled.n_documents
        result.facts.append(
            f"{sizes['left_out']:,} documents without a click left out; each of the others without one counts "
            f"{1 / share:.3g} times"
        )


def _with_served_features(
    documents: rankers.Documents, engine: ServingEngine | None, result: Result
) -> rankers.Documents:
    """Return documents with features as `engine` computes them: in single precision, perhaps with 0 for missing.

    Raises:
        SchemaError: a feature is text.
    """
    features = documents.data.features
    if engine is None or features is None:
        return documents
    if features.categorical:
        text = first_names([features.names[number] for number in features.categorical])
        raise SchemaError(
            f"--for {engine}: {text} is text, and a feature is a number there. Leave it out, or give it as numbers; "
            "without --for, `posbias export` carries text as a query for each set of values."
        )
    is_zero = any(missing == "zero" for _, missing in VERSIONS[engine])
    result.facts.append(f"features are singles{', and 0 where they are missing' if is_zero else ''}, as in {engine}")
    served = replace(features, rows=rankers.as_served(features.rows, missing_as_zero=is_zero))
    return replace(documents, data=replace(documents.data, features=served))


def _click_features(documents: rankers.Documents) -> Iterator[Reason]:
    """Yield a reason if features are computed from the clicks of this log: they correlate with the clicks' noise."""
    data = documents.data
    if data.features is None or (data.counts.clicks % 1).any():  # the variance of sums of weights is unknown
        return
    sums = unit_sums(data.counts.only_cells(data.known), data.theta)
    at = sampled_units(data.query, len(data.features.names))
    shares = noise_shares(data.features.rows[at], at, sums, data.query, documents.across_queries)
    if shares.any():
        names = ", ".join(repr(name) for name, share in zip(data.features.names, shares, strict=True) if share)
        figures = {"features": names, "share": float(shares.max())}
        yield reason("feature-made-of-clicks", figures, number=np.count_nonzero(shares))


def _rounds(learner: Learner, options: CoreOptions) -> int:
    """Return the largest number of trees, passes of a network, or steps of factors."""
    if "epochs" in learner.takes:
        return options.epochs
    if "steps" in learner.takes:
        several = "regularization" in learner.takes and options.regularization is None
        return options.steps * (1 + len(PENALTIES) if several else 1)
    return options.trees * learner.n_fits


def _check_clicks(documents: rankers.Documents, result: Result) -> None:
    """Check that clicks have propensities, and add a reason about clicks in cells without a propensity.

    Raises:
        IdentifiabilityError: no click has a propensity.
    """
    data = documents.data
    has_propensity = data.known[data.counts.cell]
    clicks, learnt = float(data.counts.clicks.sum()), float(data.counts.clicks[has_propensity].sum())
    result.content["clicks"] = {"learnt": learnt, "without_propensity": clicks - learnt}
    if not learnt:
        raise IdentifiabilityError(
            "there is nothing to learn from: no click lies in a cell that has a propensity. Add more days of logs."
        )
    if learnt < clicks:
        result.reasons.append(unweighted_reason(clicks - learnt, clicks, "nothing is learnt there"))


def _scores(model: RowModel | FactorModel, documents: rankers.Documents) -> Floats:
    data = documents.data
    if isinstance(model, RowModel) and data.features is not None:
        return model.scores(data.features.rows)
    if isinstance(model, FactorModel) and data.item is not None:
        return model.scores(data.query, data.item)
    raise TypeError(f"no scores of a {type(model).__name__}")
