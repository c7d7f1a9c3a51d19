"""What is said of click models that were judged by held-out clicks."""

from collections.abc import Sequence

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from posbias.cli.console import counted, line
from posbias.core.judging.tables import JUDGED
from posbias.io.browsing.judge import Judged

_SURE = 0.05


def tables(models: pl.DataFrame, sessions: int) -> list[RenderableType]:
    """The models, the best first."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model")
    for title in ("log-\nlikelihood", "below the\nbest", "std.\nerror", "perplexity", "given\nclicks", "rate\nerror"):
        table.add_column(title, justify="right")
    with_judgments = set(JUDGED) <= set(models.columns)
    for title in ("NDCG", "AUC") if with_judgments else ():
        table.add_column(title, justify="right")
    for row in models.iter_rows(named=True):
        best = row["difference"] == 0
        cells = [
            f"{row['log_likelihood']:.5f}",
            "-" if best else f"{-row['difference']:.5f}",
            "-" if best else f"{row['difference_std_error']:.5f}",
            *(f"{row[name]:.4f}" for name in ("perplexity", "conditional_perplexity", "rate_error")),
        ]
        if with_judgments:
            cells += ["-" if row[name] is None else f"{row[name]:.4f}" for name in JUDGED[:2]]
        table.add_row(row["model"], *cells)
    title = f"click models by {counted(sessions, 'held-out sessions')}; log-likelihood per position: more is better"
    return [Group(line(title), table)]


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


def lines(said: Sequence[str]) -> list[RenderableType]:
    """Sentences to show."""
    return [line(sentence) for sentence in said]


def warnings(models: pl.DataFrame, found: Judged) -> list[str]:
    """What a reader must know before believing a value."""
    said: list[str] = []
    clicks = float(found.measures[0].sums.predicted[1].sum())
    for row in models.iter_rows(named=True):
        if row["impossible_clicks"]:
            said.append(
                f"{row['model']} holds {row['impossible_clicks'] / clicks:.1%} of the held-out clicks impossible: each "
                "counts as one of probability 0.000001, and its log-likelihood says little else."
            )
        if not row["converged"]:
            said.append(f"{row['model']} did not converge in {row['passes']:,} passes over the log.")
    return said
