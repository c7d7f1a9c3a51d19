"""What is said of click models that were judged by held-out clicks."""

from collections.abc import Sequence

import polars as pl

from posbias.cli.report.table import Column, Printed, PrintedTable, first
from posbias.core.judging.tables import JUDGED
from posbias.core.models.tpbm import TrustBiasModel
from posbias.core.wording import counted, population
from posbias.io.browsing.judge import Judged

_SURE = 0.05
_MOSTLY = 0.5


def tables(models: pl.DataFrame, sessions: int) -> list[Printed]:
    """The models, the best first."""
    rows = models.to_dicts()

    def column(heading: str, name: str, decimals: int = 4, spare: int = 0) -> Column:
        return Column(
            heading, first("-" if row[name] is None else f"{row[name]:.{decimals}f}" for row in rows), "", spare
        )

    def below_best(heading: str, name: str, sign: int) -> Column:
        said = ("-" if row["difference"] == 0 else f"{sign * row[name]:.5f}" for row in rows)
        return Column(heading, first(said))

    columns = [
        Column("model", first(row["model"] for row in rows), label=True, text=True),
        column("log-\nlikelihood", "log_likelihood", 5),
        below_best("below the\nbest", "difference", -1),
        below_best("std.\nerror", "difference_std_error", 1),
        column("perplexity", "perplexity", spare=1),
        column("given\nclicks", "conditional_perplexity", spare=2),
        column("rate\nerror", "rate_error", spare=3),
    ]
    if set(JUDGED) <= set(models.columns):
        columns += [column(heading, name) for heading, name in zip(("NDCG", "AUC"), JUDGED[:2], strict=True)]
    title = f"click models by {counted(sessions, 'held-out sessions')}; log-likelihood per position: more is better"
    return [title, PrintedTable(tuple(columns)), population("more sessions of these queries")]


def verdicts(models: pl.DataFrame) -> list[str]:
    """Which model is best, where that is more than chance; and which of them have propensities."""
    rows = models.to_dicts()
    best, others = rows[0], rows[1:]
    even = [row["model"] for row in others if not row["significant"]]
    if not others:
        said: list[str] = []
    elif even:
        said = [f"{best['model']} is not told from {', '.join(even)} by these sessions: no model is named best."]
    else:
        said = [f"{best['model']} predicts held-out clicks best, by more than chance."]
    if best["examination"] == "row":
        said.append(f"{best['model']} has an examination probability for each row, and no propensity by position.")
    elif best["model"] == TrustBiasModel.name:
        said.append(
            f"{best['model']}: clicks tell trust bias only up to a change of scale, and no propensities. "
            f"`posbias fit LOGS --model {best['model']} --trust FILE` takes trust from FILE."
        )
    elif best["examination"] == "none" and others:
        said.append(f"{best['model']} has no propensities.")
    return said + _of_ranker(rows)


def _of_ranker(rows: Sequence[dict[str, float | str | None]]) -> list[str]:
    """Whose relevance still tells the ranker's places, given the grades."""
    found: list[str] = []
    for row in rows:
        p_value, rho = row.get("dependence_p_value"), row.get("dependence_on_ranker")
        if isinstance(p_value, float) and isinstance(rho, float) and p_value < _SURE:
            higher = "higher" if rho < 0 else "lower"
            found.append(
                f"{row['model']}: of documents of one grade it prefers those that the ranker put {higher} "
                f"(correlation {abs(rho):.2f}, p = {p_value:.2g})."
            )
    return found


def warnings(models: pl.DataFrame, found: Judged, unseen: float) -> list[str]:
    """What a reader must know before believing a value.

    Args:
        models: the table.
        found: what was found.
        unseen: the share of held-out impressions whose document was not learnt for that query.
    """
    said: list[str] = []
    if unseen > _MOSTLY:
        said.append(
            f"{unseen:.0%} of the held-out impressions show documents that models did not learn for that query: of "
            "these they know the mean alone."
        )
    deepest = found.learnt.n_positions
    if found.held_out.n_positions > deepest:
        said.append(
            f"held-out sessions go down to position {found.held_out.n_positions}, those learnt from to {deepest}: "
            f"below it models take what they know of position {deepest}."
        )
    clicks = float(found.measures[0].sums.predicted[1].sum())
    if not clicks:
        said.append("the held-out sessions have no click: nothing tells these models apart.")
    for row in models.iter_rows(named=True):
        if row["impossible_clicks"]:
            said.append(
                f"{row['model']} holds {row['impossible_clicks'] / clicks:.1%} of the held-out clicks impossible: each "
                "counts as one of probability 0.000001, and its log-likelihood says little else."
            )
        if not row["converged"]:
            said.append(f"{row['model']} did not converge in {row['passes']:,} passes over the log.")
    return said
