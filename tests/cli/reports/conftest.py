"""Results to report on, of small logs whose names are meant to do harm."""

from collections.abc import Callable, Generator
from pathlib import Path

import polars as pl
import pytest
from browser import Browser, started_browser, why_no_browser
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.core.simulation.simulate import SimulationOptions, simulate

HARM = "</script><script>document.title='harmed'</script><img src=x onerror=\"document.title='harmed'\">"
CONTEXT = "a.b['c']<b>"

Report = Callable[..., Path]


def done(*words: str | Path) -> str:
    """Run a command that is to succeed; return what it says."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code in {0, 1}, result.output
    return result.output


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with results of several kinds: `plain`, `other`, `ubm`, `harmful` (with contexts), `days`."""
    folder = tmp_path_factory.mktemp("reported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        log = simulate(SimulationOptions("pbm", 3000, 40, 8, 5, contexts=(1.0, 0.4), days=3)).log
        log.write_parquet("log.parquet")
        log.filter(pl.col("session") % 2 == 0).write_parquet("half.parquet")
        harmful = log.rename({"device": CONTEXT}).with_columns(
            pl.format(HARM + "{}", "query").alias("query"),
            pl.format("&amp;<script>{}" + HARM, "doc").alias("doc"),
            pl.format("<b>{}\u202e\x1b[31m", CONTEXT).alias(CONTEXT),
        )
        harmful.write_parquet("harmful.parquet")
        done("run", "log.parquet", "--min-propensity", "0.5", "-o", "plain")
        done("fit", "half.parquet", "-o", "other")
        done("fit", "log.parquet", "--model", "ubm", "-o", "ubm")
        done("run", "harmful.parquet", "--context", CONTEXT, "-o", "harmful")
        done("weight", "log.parquet", "--propensities", "plain", "-o", "weighted")
        for day in log["timestamp"].dt.date().unique().sort():
            log.filter(pl.col("timestamp").dt.date() == day).write_parquet("day.parquet")
            done("collect", "day.parquet", "--date", str(day), "-o", f"day-{day}")
        done("collect", *sorted(folder.glob("day-*")), "-o", "days")
    return folder


@pytest.fixture(scope="session")
def report(results: Path) -> Report:
    """Return a function that makes a report of some of the results, each once."""

    def made(*names: str, ending: str = ".html") -> Path:
        path = results / f"{'-'.join(names)}{ending}"
        if not path.exists():
            done("report", *(results / name for name in names), "-o", path)
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
