"""What is recognised of a log: a sequence of steps, each of which sees what the ones before it found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from posbias.cli.options import inputs
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.effects import Situation, why_without_effect
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.words import values_of, with_words, words_of
from posbias.cli.work.job import resolve
from posbias.core.errors import LogFormatError, PosbiasError, RoleError, SchemaError, UsageError
from posbias.io.forms.recognition import find_form
from posbias.io.jobs.reading import Job
from posbias.io.log.dialects import find_dialects
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.recognition.events import find_base_of_events, find_page_time
from posbias.io.log.recognition.lists import find_lists
from posbias.io.log.recognition.pages import find_duplicates, find_pages, find_paging, find_session
from posbias.io.log.recognition.roles import find_roles
from posbias.io.log.recognition.values import find_clicks, find_position_base, find_sums, first_texts
from posbias.io.log.sources import Source, find_sources
from posbias.io.log.text_copies import STANDARD_INPUT
from posbias.io.log.text_files import find_log_files
from posbias.io.log.written_values import find_click_words, find_timestamp_format
from posbias.io.stores.store import find_statistics

_RUN = "run"
_ROWS = ("auto", "flat", "nested")
_CLICKS_ARE_SAID = ("click_counts", "click_ranks", "null_click", "clicks", "true", "false")


@dataclass(frozen=True)
class Asked:
    """What is asked of a log, by the user or by what was found.

    Attributes:
        logs: as named by the user.
        columns: which column plays which role.
        reading: how the log is read.
        counting: what is counted.
        findings: what was found so far.
    """

    logs: tuple[str, ...]
    columns: ColumnOptions
    reading: ReadingOptions
    counting: CountingOptions
    findings: tuple[Finding, ...] = field(default=())

    def saying(self, found: Sequence[Finding]) -> "Asked":
        """The same with what was found, as if the user had said it."""
        words = [word for finding in found for word in finding.options]
        return replace(
            self,
            columns=with_words(self.columns, words),
            reading=with_words(self.reading, words),
            counting=with_words(self.counting, words),
            findings=(*self.findings, *found),
        )

    def job(self) -> Job:
        """What is to be read and counted.

        Raises:
            UsageError: an option cannot be read, or does not go with another one.
        """
        return resolve(self.logs, self.columns, self.reading, self.counting, statistics=())

    def open_log(self) -> Log:
        """Open the log.

        Raises:
            PosbiasError: a file cannot be read, or a role has no column.
        """
        return self.job().open_log()

    def sources(self) -> list[Source]:
        """The files of the log.

        Raises:
            LogFormatError: there are none, or one cannot be read.
        """
        return [*find_log_files(self.logs, inputs.dialect(self.reading))]

    @property
    def options(self) -> dict[str, object]:
        """What options are set to, by flag, but for those that would have no effect on a run."""
        groups = (self.columns, self.reading, self.counting)
        values = {name: value for group in (*groups, EstimationOptions()) for name, value in vars(group).items()}
        situation = Situation(_RUN, values | {"logs": list(self.logs)})
        return {
            flag: value
            for flag, value in values_of(*groups).items()
            if why_without_effect(flag.removeprefix("--").replace("-", "_"), situation) is None
        }

    @property
    def command(self) -> list[str]:
        """The arguments of `posbias` that run the main job; `-o DIR` is still to be said."""
        return [
            _RUN,
            *(f"./{name}" if name.startswith("-") and name != "-" else name for name in self.logs),
            *words_of(self.options),
        ]


Step = Callable[[Asked], list[Finding]]


def _form(asked: Asked) -> list[Finding]:
    """The raw files of a source, or a table of events."""
    if asked.reading.input_format != "auto" or asked.reading.impression_where or asked.reading.clicks:
        return []
    try:
        return find_form(asked.sources())
    except PosbiasError:  # text of another dialect, which the next step looks for
        return []


def _dialect(asked: Asked) -> list[Finding]:
    """How files of text are written."""
    reading = asked.reading
    said = (reading.separator, reading.encoding, reading.columns)
    is_said = any(value is not None for value in said) or asked.reading.input_format not in _ROWS
    if is_said:
        return []
    try:
        return find_dialects(asked.sources())
    except LogFormatError:  # of an encoding that must be said to open it
        return find_dialects(find_sources([name for name in asked.logs if name != STANDARD_INPUT]))


def _lists(asked: Asked) -> list[Finding]:
    """Lists of documents and clicks, where rows are no impressions that can be read as they are."""
    if asked.reading.input_format not in {"auto", "nested"} or _is_said(asked, "clicked", "list_separator", "clicks"):
        return []
    try:
        log = asked.open_log()
    except RoleError:
        return find_lists(asked.sources())
    except SchemaError:
        return []
    return find_lists(asked.sources()) if log.nesting is not None else []


def _values(asked: Asked) -> list[Finding]:
    """Words of the click column, and the form of times."""
    log = asked.open_log()
    if log.raw is not None or log.nesting is not None or log.click_sources:
        return []
    said = asked.reading.true is not None or asked.reading.false is not None
    clicks = None if said else find_click_words(first_texts(log, log.roles.click))
    times = log.roles.timestamp if asked.reading.timestamp_format is None else None
    forms = find_timestamp_format(first_texts(log, times))
    return [finding for finding in (clicks, forms) if finding is not None]


STEPS: tuple[Step, ...] = (
    _form,
    _dialect,
    _form,  # again: a table of events has columns only once its dialect is known
    _lists,
    lambda asked: find_roles(asked.open_log, asked.sources),
    lambda asked: find_roles(asked.open_log, asked.sources),  # again: an error of the first hides guesses for others
    _values,
    lambda asked: [] if _is_said(asked, "impressions", "click_counts") else find_sums(asked.open_log()),
    lambda asked: [] if _is_said(asked, "position_base") else find_position_base(asked.open_log()),
    lambda asked: [] if _is_said(asked, *_CLICKS_ARE_SAID) else find_clicks(asked.open_log()),
    lambda asked: [] if asked.reading.position_base is not None else find_base_of_events(asked.open_log()),
    lambda asked: find_page_time(asked.open_log()),
    lambda asked: find_session(asked.open_log()),
    lambda asked: find_paging(asked.open_log()),
    lambda asked: find_pages(asked.open_log()),
    lambda asked: find_duplicates(asked.open_log()),
)
"""What is looked for, in this order. A log of raw files or events has no rows before these are read."""


def recognise(asked: Asked) -> Asked:
    """Take the steps.

    Raises:
        PosbiasError: the log cannot be read at all.
    """
    if find_statistics(asked.logs):
        raise UsageError(
            f"{asked.logs[0]} holds statistics, and only logs are checked. `posbias collect --info` describes "
            "statistics."
        )
    for step in STEPS:
        asked = asked.saying(step(asked))
    return asked


def _is_said(asked: Asked, *names: str) -> bool:
    """Whether one of these options is set, or the log has no rows yet to look at."""
    if asked.reading.input_format not in _ROWS or asked.reading.impression_where:
        return True
    groups = (asked.columns, asked.reading)
    return any(getattr(group, name, None) for name in names for group in groups)
