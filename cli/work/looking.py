"""A log is recognised, read and looked at; what would stop a run is kept, and said with the rest."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from posbias.cli.options.reading import ReadingOptions
from posbias.cli.work.engine import open_engine
from posbias.cli.work.recognition import Asked, recognise
from posbias.core.check.remarks import Client, advice, reasons_against, warnings_of
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.log.pages import HARMLESS
from posbias.core.models import get_model
from posbias.core.wording import counted
from posbias.io.checking.columns import largest_client, unused_time
from posbias.io.checking.look import PBM, Look, look_at
from posbias.io.counting.count import Reading, read_unjudged
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import Verdict, judge
from posbias.io.log.misread import unused_count
from posbias.io.log.rejects import reason
from posbias.io.progress import Progress

_HARMLESS = frozenset(map(reason, HARMLESS))


@dataclass(frozen=True)
class Checked:
    """What was found.

    Attributes:
        asked: what was asked, with what was recognised.
        log: as it was opened.
        unjudged: as it was read; None where reading stopped.
        look: what it holds; None where there is nothing to look at.
        client: the largest one, where a column tells clients apart.
        stops: what a run would stop at, in its words.
    """

    asked: Asked
    log: Log
    unjudged: Reading | None
    look: Look | None
    client: Client | None
    stops: tuple[str, ...]

    @property
    def model(self) -> str:
        """The model that a run would fit."""
        return self.asked.counting.model or PBM

    @property
    def against(self) -> list[str]:
        """Why the log cannot carry an estimate by that model; nothing where it can."""
        said = list(self.stops)
        if self.look is None:
            return said or ["the log holds no row that counts."]
        found = {outlook.model: outlook for outlook in self.look.outlooks}
        if self._lost is not None and self._lost.doubtful:
            said.append(self._lost.warning)
        if self.model in self.look.why_not:
            return [*said, f"{self.model}: {self.look.why_not[self.model]}."]
        return [*said, *([] if said else reasons_against(found[self.model], self.look.facts))]

    @property
    def _lost(self) -> Verdict | None:
        """What is said of lost clicks; nothing where a run would stop in any case."""
        if self.unjudged is None or self.stops:
            return None
        return judge(self.unjudged.rows.clicks, () if self.unjudged.clicks is None else self.unjudged.clicks.examples)

    @property
    def warnings(self) -> list[str]:
        """What is odd about the log."""
        count = unused_count(self.log)
        look, binned, paged = self.look, self.asked.counting.position_bins is not None, self.log.roles.page is not None
        said = [] if look is None else warnings_of(look.facts, look.pages, self.client, binned=binned, paged=paged)
        if self._lost is not None and not self._lost.doubtful:
            said.append(self._lost.warning)
        if count is not None:
            said.append(f"column {count!r} was not used. If a row adds up impressions, say --impressions {count}.")
        return said

    @property
    def advice(self) -> list[str]:
        """What would help."""
        if self.look is None or self.stops:
            return []
        has_time = self.log.roles.timestamp is not None or self.log.request.rules.day is not None
        look, column = self.look, unused_time(self.log)
        return advice(look.facts, look.moved, look.outlooks, time_column=column, has_time=has_time)


def check(asked: Asked, progress: Progress) -> Checked:
    """Look at a log.

    Raises:
        PosbiasError: it cannot be read at all, or the options do not go together.
    """
    with progress.stage("recognising"):
        asked = recognise(asked)
    job = asked.job()
    plan = replace(job.plan, model=get_model(PBM))
    log = replace(job, plan=plan).open_log()
    client = largest_client(log)
    # What breaks the rules is counted and left out here: that it would stop a run is then said with the rest.
    reading = replace(asked.reading, on_bad_rows="drop")
    with open_engine(reading, Path.cwd() / "check") as engine:
        try:
            unjudged = read_unjudged(log, plan, engine, progress)
        except SchemaError as error:
            return Checked(asked, log, None, None, client, (str(error),))
        stops = (*_unconfirmed(asked), *_stops(unjudged))
        asked = asked.saying([] if stops else _bad_rows(unjudged, asked.reading))
        look = look_at(unjudged, _with_known_times(plan, unjudged), engine, progress)
    return Checked(asked, log, unjudged, look, client, stops)


def _unconfirmed(asked: Asked) -> tuple[str, ...]:
    """What a wrong guess would make worthless: where positions go on from page to page."""
    return tuple(
        f"positions rest on a guess: {found.said}. If so, say {shlex.join(found.options)}, else --page none."
        for found in asked.findings
        if "--page" in found.options
    )


def _stops(unjudged: Reading) -> tuple[str, ...]:
    try:
        unjudged.judge()
    except SchemaError as error:
        return (str(error),)
    return ()


def _bad_rows(unjudged: Reading, reading: ReadingOptions) -> list[Finding]:
    """That rows break the rules, if some do."""
    bad = {why: rows for why, rows in unjudged.rows.rejected.items() if why not in _HARMLESS}
    if not bad or reading.on_bad_rows == "drop":
        return []
    reasons = ", ".join(f"{rows:,} because {why}" for why, rows in bad.items())
    said = f"{counted(sum(bad.values()), 'rows')} of {unjudged.rows.read:,} break the rules ({reasons})"
    return [Finding(said, ("--on-bad-rows", "drop"))]


def _with_known_times(plan: StatisticsPlan, unjudged: Reading) -> StatisticsPlan:
    """The plan with days only, where timestamps say no time of day."""
    return replace(plan, period=unjudged.read.log.rules.period) if plan.period == "quarter" else plan
