"""What a run needs several times is worked out once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workshop import RunPosbias as Run

from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.simulation.simulate import SimulationOptions, simulate

ONCE = {
    "statistics are looked for": "posbias.cli.work.requests.find_statistics",
    "the plan is made": "posbias.cli.work.requests.statistics_plan",
    "the method is checked": "posbias.io.jobs.fit.check_method",
    "the log is opened": "posbias.cli.work.requests.open_log",
    "the propensity table is built": "posbias.core.fit.fit.propensity_table",
    "the manifest's section is made": "posbias.io.fits.new_fit.fit_section",
    "weights are made": "posbias.io.jobs.fit.weights_for",
}
NEVER = {"the log is counted again for its weights": "posbias.io.jobs.fit.counts_by_cell"}


@pytest.mark.parametrize("layout", ["pointwise", "session"])
def test_a_run_works_everything_out_once(
    layout: str, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(SimulationOptions(n_sessions=500, n_queries=20, n_positions=4)).log.write_parquet(tmp_path / "log.parquet")
    times = Counter[str]()

    def counting(what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: object, **named: object) -> object:
            times[what] += 1
            return work(*values, **named)

        return counted

    for what, place in (ONCE | NEVER).items():
        module, name = place.rsplit(".", 1)
        monkeypatch.setattr(place, counting(what, getattr(__import__(module, fromlist=[name]), name)))
    totals: Any = vars(SufficientStatistics)["cell_totals"]
    monkeypatch.setattr(totals, "func", counting("counts are added up by cell", totals.func))
    done = run_in_process("run", "log.parquet", "--layout", layout, "-o", "out")

    assert done.returncode in {0, 1}, done.stderr
    assert times == Counter([*ONCE, "counts are added up by cell"])
