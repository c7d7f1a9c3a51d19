"""Results to report on, of small logs whose names are meant to do harm."""

from collections.abc import Callable, Generator
from pathlib import Path

import polars as pl
import pytest
from browser import Browser, started_browser, why_no_browser
from command_results import invoke

from posbias.core.simulation.simulate import SimulationOptions, simulate

HARM = "</script><script>document.title='harmed'</script><img src=x onerror=\"document.title='harmed'\">"
CONTEXT = "a.b['c']<b>"

Made = Callable[..., Path]

COMMANDS = {
    "plain": "run log.parquet --min-propensity 0.5",
    "other": "fit half.parquet",
    "ubm": "fit log.parquet --model ubm",
    "rates": "fit half.parquet --model dctr",
    "harmful": "run harmful.parquet --context",  # and its name
    "harmful-plain": "fit harmful.parquet",
    "weighted": "weight log.parquet --propensities plain",
    "days": "collect log.parquet --timestamp timestamp",
    "predicted": "predict harmful.parquet --propensities harmful-plain --scores <i>=scores.parquet",
    "evaluated": "evaluate harmful.parquet --propensities harmful-plain --scores <i>=scores.parquet",
    "compared": "compare plain other",
    "explored": "explore plain",
}
"""Results by name, and what makes them, perhaps of others."""


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a function that makes a result, once; those called harmful have names that are meant to do harm."""
    folder = tmp_path_factory.mktemp("reported")
    log = simulate(SimulationOptions("pbm", 3000, 40, 8, 5, contexts=(1.0, 0.4), days=3)).log
    log.write_parquet(folder / "log.parquet")
    log.filter(pl.col("session") % 2 == 0).write_parquet(folder / "half.parquet")
    harmful = log.rename({"device": CONTEXT}).with_columns(
        pl.format(HARM + "{}", "query").alias("query"),
        pl.format("&amp;<script>{}" + HARM, "doc").alias("doc"),
        pl.format("<b>{}\u202e\x1b[31m" + HARM, CONTEXT).alias(CONTEXT),
    )
    harmful.write_parquet(folder / "harmful.parquet")
    documents = harmful.select("query", "doc").unique().sort("query", "doc")
    documents.with_columns(score=pl.col("doc").hash(0) % 97).write_parquet(folder / "scores.parquet")

    def made(name: str) -> Path:
        if not (folder / name).exists():
            words = COMMANDS[name].split()
            for needed in COMMANDS.keys() & {*words} - {name}:
                made(needed)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                invoke(*words, *([CONTEXT] if name == "harmful" else []), "-o", name, code=(0, 1))
        return folder / name

    return made


@pytest.fixture(scope="session")
def report(result: Made) -> Made:
    """Return a function that makes a report of some results, each once."""

    def made(*names: str) -> Path:
        folders = [result(name) for name in names]
        path = folders[0].parent / f"{'-'.join(names)}.html"
        if not path.exists():
            invoke("report", *folders, "-o", path, code=(0, 1))
        return path

    return made


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """Yield a browser, or skip where there is none."""
    why = why_no_browser()
    if why is not None:
        pytest.skip(why)
    with started_browser() as opened:
        yield opened
