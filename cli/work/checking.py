"""`check`: recognition of a log, its counts, and the precision to expect of a fit."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec
import polars as pl

from posbias.cli.options.groups import CountingOptions, EstimationOptions, LogOptions
from posbias.cli.options.inputs import SPARK_QUERY
from posbias.cli.options.option import ROWS, changed_values, command_words, with_words
from posbias.cli.options.rules import Situation, why_without_effect
from posbias.cli.report.printing import Item, in_order
from posbias.cli.work.execution import log_description, log_lines, open_engine
from posbias.cli.work.requests import resolve
from posbias.core import errors
from posbias.core.arrays.linalg import preload_scipy
from posbias.core.check import Clients, advice, distinct_count, position_rows, reasons_against
from posbias.core.errors import mask_secrets_in_values, plural, printable_lines
from posbias.core.log.pages import HARMLESS
from posbias.core.roles import has_role_word
from posbias.core.schema import CLICK
from posbias.core.training.weights import as_count
from posbias.io.counting.count import check_estimable, order_of_log, read_log
from posbias.io.counting.first_rows import find_layout, read_first_rows
from posbias.io.counting.profile import PBM, ROWS_OF_CHECK, LogSurvey, profile, profile_of_days, survey_log
from posbias.io.engines.engine import ReadLog
from posbias.io.fits.verdicts import feedback_before_a_run, model_reasons, row_order_reason
from posbias.io.forms import page_structure, recognition
from posbias.io.jobs.fit import Job, lost_click_reasons
from posbias.io.jobs.tables import Column, PrintedTable, clicks_in_words, first, interval_in_words, more
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import Clicks
from posbias.io.log.faults import column_faults, faults_in, undeclared_page
from posbias.io.log.lists import Finding, find_click_words, find_inner_pages, find_timestamp_format
from posbias.io.log.rejections import truncation_sentences, why_rejected
from posbias.io.log.scan import schema_of, with_quotes
from posbias.io.log.sources import STANDARD_INPUT, Source, find_sources
from posbias.io.log.times import with_times
from posbias.io.progress import Progress
from posbias.io.results import conclusions
from posbias.io.results.conclusions import CAUTION, NOTE, STOP, Reason
from posbias.io.stores.store import find_statistics

_DECLARING_CLICKS = ("click_counts", "click_ranks", "null_click", "clicks")


@dataclass(frozen=True)
class LogView:
    """A log with the options to read it: the user's, and those of findings."""

    logs: tuple[str, ...]  # as named by the user
    log: LogOptions
    counting: CountingOptions
    findings: tuple[Finding, ...] = field(default=())  # so far

    def with_findings(self, findings: Sequence[Finding]) -> "LogView":
        """Return the view with further findings and their options set."""
        if not findings:  # the opened log remains cached
            return self
        words = [word for finding in findings for word in finding.options]
        log, counting = with_words(self.log, words), with_words(self.counting, words)
        return LogView(self.logs, log, counting, (*self.findings, *findings))

    def job(self) -> Job:
        """Return the job that reads and counts the log.

        Raises:
            UsageError: an option cannot be parsed, or conflicts with another option.
        """
        return resolve(self.logs, self.log, self.counting, ())

    @cached_property
    def opened(self) -> Log:
        """The log, opened.

        Raises:
            PosbiasError: a file cannot be read, or a role has no column.
        """
        log = self.job().open_log()
        return replace(log, sources=tuple(with_quotes(log.sources)))

    def sources(self) -> list[Source]:
        """Return the files of the log; none for statistics.

        Raises:
            LogFormatError: there are no files, or a file cannot be read.
        """
        request = self.job().log
        return [] if request is None else with_quotes(request.sources())

    def options(self, command: Literal["run", "interleave"] = "run") -> dict[str, object]:
        """Return changed options by flag, without options that would have no effect on the command."""
        groups = (self.log,) if command == "interleave" else (self.log, self.counting)
        values = {name: value for group in (*groups, EstimationOptions()) for name, value in vars(group).items()}
        situation = Situation(command, values | {"logs": list(self.logs)})
        return {
            flag: value
            for flag, value in changed_values(*groups).items()
            if why_without_effect(flag.removeprefix("--").replace("-", "_"), situation) is None
        }

    def command(self, command: Literal["run", "interleave"] = "run") -> list[str]:
        """Return the arguments of `posbias` for the command on this log, without columns of rankers and `-o DIR`."""
        files = [f"./{name}" if name.startswith("-") and name != "-" else name for name in self.logs]
        if self.log.engine == "spark" and (self.log.table or self.logs == (SPARK_QUERY,)):
            files = []
        return [command, *files, *command_words(self.options(command))]


Step = Callable[[LogView], list[Finding]]


def _form(view: LogView) -> list[Finding]:
    """Recognise raw files of a source, or a table of events."""
    row_options = ("impression_where", "clicks", "click", "clicked", "click_ranks", "sql")
    if view.log.input_format != "auto" or any(getattr(view.log, name) for name in row_options):
        return []
    try:
        return recognition.find_form(view.sources())
    except errors.PosbiasError:  # text in a dialect that the next step recognises
        return []


def _dialect(view: LogView) -> list[Finding]:
    """Recognise the dialect of text files."""
    options = (view.log.separator, view.log.encoding, view.log.columns)
    if any(value is not None for value in options) or view.log.input_format not in ROWS:
        return []
    try:
        return recognition.find_dialects(view.sources())
    except errors.LogFormatError:  # an encoding without which the file cannot be opened as a log
        return recognition.find_dialects(find_sources([name for name in view.logs if name != STANDARD_INPUT]))


def _lists(view: LogView) -> list[Finding]:
    """Recognise columns with lists of documents and clicks, one page per row."""
    if view.log.input_format not in {"auto", "nested"} or _is_set(view, "clicked", "list_separator", "clicks"):
        return []
    try:
        log = view.opened
    except errors.SchemaError as error:
        inner = [] if view.log.sql else find_inner_pages(schema_of(view.sources()[0]))
        is_unread = inner or isinstance(error, errors.RoleError)
        return [*inner, *page_structure.find_lists(view.with_findings(inner).sources())] if is_unread else []
    return page_structure.find_lists(view.sources()) if log.nesting is not None else []


def _values(view: LogView) -> list[Finding]:
    """Recognise words of the click column, and the format of times."""
    log = view.opened
    if log.raw is not None or log.nesting is not None or log.click_sources:
        return []
    named = view.log.true is not None or view.log.false is not None
    clicks = None if named else find_click_words(recognition.first_texts(log, log.roles.click))
    times = log.roles.timestamp if view.log.timestamp_format is None else None
    forms = find_timestamp_format(recognition.first_texts(log, times))
    return [finding for finding in (clicks, forms) if finding is not None]


def _times(view: LogView) -> list[Finding]:
    """Recognise the column of times."""
    log = view.opened
    timed = log if view.log.timestamp is not None else with_times(log)
    if timed is log:
        return []
    column, form = timed.roles.timestamp or "", timed.request.rules.values.timestamp_format
    text = f"{column!r} holds times: with them a run tests whether the ranker learns from clicks"
    words = recognition.option("--timestamp-format", form) if form and view.log.timestamp_format is None else ()
    return [Finding(text, (*recognition.option("--timestamp", column), *words))]


def _teams(view: LogView) -> list[Finding]:
    """Recognise the columns of teams and ranks of interleaved pages."""
    if view.log.input_format == "ubi":
        team, ranks = page_structure.find_teams_of_ubi(view.sources()), ()
    else:
        log = view.opened
        team = next((name for name, _ in page_structure.find_drafts(log)), None)
        ranks = () if team is None else page_structure.rank_columns(log)
    if team is None:
        return []
    named = chain(("--team", team), *zip(("--rank-a", "--rank-b"), ranks, strict=False), ("-o", "DIR"))
    command = f"posbias {shlex.join([*view.command('interleave'), *named])}"
    text = f"{team!r} says which of two rankers picked a document: `{command}`"
    if not ranks or view.log.stratify or view.log.impressions:
        return [Finding(f"{text} compares them")]
    strata = tuple(chain.from_iterable(("--stratify", rank) for rank in ranks))
    return [Finding(f"{text} compares them, and a fit keeps apart what their lists show", strata)]


def _roles(view: LogView) -> list[Finding]:
    """Recognise columns of roles by their values, where no name is well known."""
    return recognition.find_roles(lambda: view.opened, view.sources)


STEPS: tuple[Step, ...] = (
    _form,
    _dialect,
    _form,  # again: a table of events has columns only once its dialect is known
    _lists,
    _roles,
    _roles,  # again: an error about one role hides guesses for others
    _values,
    lambda view: [] if _is_set(view, "impressions", "click_counts") else recognition.find_sums(view.opened),
    lambda view: [] if view.log.position_base else recognition.find_position_base(view.opened),  # of events, too
    lambda view: [] if _is_set(view, *_DECLARING_CLICKS) else recognition.find_clicks(view.opened),
    lambda view: page_structure.find_page_time(view.opened),
    lambda view: page_structure.find_session(view.opened),
    lambda view: [found[0]] if (found := undeclared_page(view.opened)) is not None else [],
    lambda view: [] if _takes_no_cells(view) else page_structure.find_cells(view.opened),
    lambda view: page_structure.find_pages(view.opened),
    _times,
    lambda view: page_structure.find_duplicates(view.opened),
    lambda view: [] if _takes_no_cells(view) else find_layout(view.opened),
    _teams,
)
"""Steps of the recognition, in this order; each step sees the findings of the previous steps."""


def with_all_findings(view: LogView) -> LogView:
    """Return the view with the findings of all `STEPS`.

    Raises:
        PosbiasError: the log cannot be read, or statistics are named.
    """
    if find_statistics(view.logs):
        raise errors.UsageError(
            f"{view.logs[0]} holds statistics, and only logs are checked. `posbias collect --info` describes "
            "statistics."
        )
    for step in STEPS:
        view = view.with_findings(step(view))
    return view


def _is_set(view: LogView, *names: str) -> bool:
    """Whether one of these options is set, or the log is of raw files or events, without rows of impressions."""
    if view.log.input_format not in ROWS or view.log.impression_where:
        return True
    return any(getattr(view.log, name) for name in names)


def _takes_no_cells(view: LogView) -> bool:
    """Whether cells of several columns do not apply: another model than PBM, --cell is set, or sums are read."""
    return view.counting.model not in {None, PBM} or _is_set(view, "cell", "impressions")


SCHEMA = "posbias.check"

_HARMLESS = frozenset(map(why_rejected, HARMLESS))


def check(view: LogView, progress: Progress) -> tuple[LogView, dict[str, Any]]:
    """Recognise and count a log; return the view with all findings, and the content of `--json`.

    Raises:
        PosbiasError: the log cannot be read, or options conflict.
    """
    with progress.stage("recognising"):
        view = with_all_findings(view)
    job = replace(view, counting=replace(view.counting, model=PBM)).job()
    log, plan = job.open_log(), job.plan
    read, look, clients, faults, feedback = None, None, None, list[Reason](), list[Reason]()
    # Bad rows are dropped and counted: that they would stop a run is reported with the other findings.
    with open_engine(replace(view.log, on_bad_rows="drop"), Path("check")) as engine:
        try:
            with preload_scipy():
                read = read_log(log, plan, engine, progress, estimable=False)
        except errors.SchemaError as error:
            stops = [printable_lines(error.lines)]
        else:
            stops = [  # a wrong guess that positions continue from page to page would make an estimate worthless
                f"positions rest on a guess: {each.text}. If so, say {shlex.join(each.options)}, else --page none."
                for each in view.findings
                if "--page" in each.options
            ]
            try:
                check_estimable(read)
            except errors.SchemaError as error:
                stops.append(printable_lines(error.lines))
            bad = {why: rows for why, rows in read.rows.rejected.items() if why not in _HARMLESS}
            if bad and not stops and view.log.on_bad_rows != "drop":
                reasons = ", ".join(f"{rows:,} because {why}" for why, rows in bad.items())
                text = f"{plural(sum(bad.values()), 'rows')} of {read.rows.read:,} break the rules ({reasons})"
                text += "".join(f". {cut.removesuffix('.')}" for cut in truncation_sentences(log))
                view = view.with_findings([Finding(text, ("--on-bad-rows", "drop"))])
            look = survey_log(read, read.plan, engine, progress)
            with progress.stage("looking at columns"):
                first = read_first_rows(read, ROWS_OF_CHECK, None if look is None else look.sample)
            clients = None if first is None else first.clients
            facts, pages, lost = (None, None, None) if look is None else (look.facts, look.pages, look.lost)
            clicks = [each.options for each in view.findings if each.options[:1] == ("--click",) and not each.certain]
            by_values = (option for option in clicks if not has_role_word(CLICK, option[1]))
            guessed = {"click_by_values": shlex.join(chain(*by_values))}
            faults = faults_in(profile(read, facts, plan, pages, first) | profile_of_days(lost, log) | guessed)
            # As in a run, rows made of raw files may have a column of times.
            timed = with_times(read.log) if view.log.timestamp is None else read.log
            if look is not None and not stops and read.plan.period is None and timed.roles.timestamp is None:
                feedback = [row_order_reason(order_of_log(read, read.plan))]
            elif look is not None and not stops:
                by_quarter = replace(read.plan, period=read.plan.period and "quarter")
                feedback = feedback_before_a_run(order_of_log(read, by_quarter))
    return view, mask_secrets_in_values(_content(view, log, read, look, clients, faults, feedback, stops))


def _content(
    view: LogView,
    log: Log,
    read: ReadLog | None,
    look: LogSurvey | None,
    clients: Clients | None,
    faults: Sequence[Reason],
    feedback: Sequence[Reason],
    stops: Sequence[str],
) -> dict[str, Any]:
    """Return the content of `--json`: the conclusion, the log as recognised, its counts, and the outlook."""
    model = view.counting.model or PBM
    reasons = [Reason("log-not-valid", STOP, sentence) for sentence in stops]
    reasons += [] if stops or read is None else lost_click_reasons(read.rows, read.clicks)
    reasons += [fault for fault in faults if fault.severity == STOP]
    reasons += _reasons_against(log, look, model, refused=conclusions.has_stops(reasons))
    reasons += [] if conclusions.has_stops(reasons) else feedback
    estimate = None if look is None or model != PBM or stops else look.outlooks[0].estimate
    moves = any(reason.code == "ranker-may-learn" for reason in feedback)  # then a run compares within periods
    if look is not None and estimate is not None and not moves:
        explained = conclusions.explained_codes(faults)
        tested = model_reasons(look.statistics, estimate.propensity, look.tests)
        reasons += [doubt for doubt in tested if doubt.severity in {CAUTION, STOP} and doubt.code not in explained]
    reasons += [fault for fault in faults if fault.severity != STOP]
    if look is not None and not stops:
        codes = {reason.code for reason in reasons}
        advised = advice(look.facts, look.moved, look.outlooks, by_cell=bool(log.roles.cell))
        reasons += [Reason("advice", NOTE, sentence) for code, sentence in advised.items() if code not in codes]
    following = None if conclusions.has_stops(reasons) else _command_line(view.command())
    conclusion = conclusions.conclude(_headline(look, model), reasons, following)
    measured = ("totals", "days", "positions", "pages", "queries", "client", "movement", "models")
    content = {
        "schema": SCHEMA,
        **msgspec.to_builtins(conclusion),
        "command": view.command(),
        "carries_estimate": conclusion.verdict != "do not use",
        "recognised": log_description(log, view.findings),
        "rows": None if read is None else msgspec.to_builtins(read.rows),
        **dict.fromkeys(measured),
        **({"positions": [], "models": {}} if look is None else _measurements(look, model)),
        "client": clients and {"column": clients.column, "largest_share": clients.share, "rows": clients.rows},
        "warnings": conclusions.warning_sentences(reasons),
        "advice": [reason.sentence for reason in reasons if reason.code == "advice"],
    }
    return msgspec.to_builtins(content)  # values of contexts may be of any type


def _reasons_against(log: Log, look: LogSurvey | None, model: str, *, refused: bool) -> Iterator[Reason]:
    """Yield reasons why the log does not support an estimate, and a caution about an unused column of counts."""
    sentences: list[str] = []
    if look is None:
        sentences = [] if refused else ["The log holds no row that counts."]
    elif model in look.why_not:
        sentences = [f"{model}: {look.why_not[model]}."]
    elif not refused:
        sentences = reasons_against(next(each for each in look.outlooks if each.model == model), look.facts)
    yield from (Reason("no-estimate", STOP, sentence) for sentence in sentences)
    yield from (reason for reason in column_faults(log) if reason.code == "counts-not-used")


def _headline(look: LogSurvey | None, model: str) -> str:
    """Return a sentence on the number of identified cells, and their largest standard error."""
    outlook = None if look is None else next((each for each in look.outlooks if each.model == model), None)
    if look is None or outlook is None or not len(outlook.errors):
        return "the log is read"
    identified, number = int(outlook.cells["identified"].sum()), outlook.cells.height
    cells = "positions" if number == look.facts.positions.height else "cells"
    return (
        f"{plural(look.facts.clicks, 'clicks')} compare {identified} of {plural(number, cells)}, "
        f"with errors of up to {outlook.errors.max():.0%}"
    )


def _measurements(look: LogSurvey, wanted: str) -> dict[str, Any]:
    """Return the measured sections of `--json`; `wanted` is the model that a run would fit."""
    facts, moved, pages, days = look.facts, look.moved, look.pages, list(map(str, look.details.days))
    documents, documents_exact = distinct_count(look.details.docs)
    models: dict[str, dict[str, Any]] = {}
    for outlook in look.outlooks:
        models[outlook.model] = {
            "can_be_estimated": outlook.reason is None,
            "reason": outlook.reason,
            "cells_identified": int(outlook.cells["identified"].sum()),
            "click_share_identified": outlook.click_share,
            "share_of_queries": outlook.share,
            "largest_std_error": float(outlook.errors.max()) if len(outlook.errors) else None,
            "cells": outlook.cells.with_columns(pl.col(pl.Float64).fill_nan(None)).to_dicts(),
        }
    models |= {model: {"can_be_estimated": False, "reason": why, "cells": []} for model, why in look.why_not.items()}
    return {
        "totals": {
            "impressions": as_count(facts.impressions),
            "clicks": as_count(facts.clicks),
            "pages": look.all_pages,
            "pages_exact": pages is None or pages.pages == look.all_pages,
            "queries": facts.queries,
            "documents": documents,
            "documents_exact": documents_exact,
            "pairs": round(moved.pairs),
            "pairs_exact": look.outlooks[0].share == 1,
        },
        "days": {"number": len(days), "first": days[0], "last": days[-1]} if days else None,
        "positions": position_rows(look.details),
        "pages": None
        if pages is None
        else {"number": look.all_pages or 0, "looked_at": pages.pages}
        | {name: value for name, value in msgspec.to_builtins(pages).items() if name not in {"pages", "shifted"}},
        "queries": {
            "number": facts.queries,
            "effective": facts.effective_queries,
            "largest": facts.largest_query,
            "largest_share": facts.largest_share,
        },
        "movement": {
            "pairs": round(moved.pairs),
            "pairs_at_several_positions": round(moved.moved),
            "linking_pairs": round(moved.linking),
            "share_of_impressions": moved.share,
        },
        "models": {name: {"wanted": name == wanted} | content for name, content in models.items()},
    }


def items_of_check(content: Mapping[str, Any], *, details: bool) -> list[Item]:
    """Return the printed items of the content of `--json`."""
    tables = [_positions(content)] if content["positions"] else []
    facts = [*log_lines(content["recognised"]), *_facts(content)]
    facts += _models(content) if details else []
    facts += [f"read by: {_command_line(content['command'])}"] if content["next"] is None else []
    return in_order(conclusion_of(content), tables, facts, details=details)


def _command_line(command: Sequence[str]) -> str:
    return f"posbias {shlex.join(command)} -o result"


def conclusion_of(content: Mapping[str, Any]) -> conclusions.Conclusion:
    """Return the conclusion in the content of `--json`."""
    return msgspec.convert(content, conclusions.Conclusion)


def _positions(content: Mapping[str, Any]) -> PrintedTable:
    def error(cell: Mapping[str, Any]) -> str:
        if not cell or not cell["identified"] or cell["std_error"] is None:
            return "-"
        return f"{cell['std_error']:.3f}" if cell["std_error"] else "reference"

    rows, pbm = content["positions"], content["models"].get(PBM)
    pbm_cells: Sequence[Mapping[str, Any]] = () if pbm is None else pbm["cells"]
    cells = {cell["position"]: cell for cell in pbm_cells}
    rates = (interval_in_words(row["ctr_low"], row["ctr_high"], ".4f") for row in rows)
    columns = [
        Column("position", first(str(row["position"]) for row in rows), label=True),
        Column("impressions", first(f"{row['impressions']:,.0f}" for row in rows)),
        Column("clicks", first(f"{row['clicks']:,.0f}" for row in rows)),
        Column("click\nrate", first(f"{row['ctr']:.4f}" for row in rows)),
        Column("95 %\ninterval", first(rates), spare=1),
    ]
    if cells and len(cells) == len(pbm_cells):  # else a position has several cells, one per context
        share = content["models"][PBM]["share_of_queries"]
        cell_of_row = [cells.get(row["position"], {}) for row in rows]
        linking = (f"{cell.get('linking_clicks', 0.0) / share:,.0f}" for cell in cell_of_row)
        columns.append(Column("error to\nexpect", first(map(error, cell_of_row)), spare=2))
        columns.append(Column("linking\nclicks", first(linking), spare=3))
    return PrintedTable(tuple(columns), more(len(rows), "positions (--json has all)"))


def _facts(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on rows, counts, days, pages, queries and movement."""
    rows, totals, days = content["rows"], content["totals"], content["days"]
    queries, moved, pages = content["queries"], content["movement"], content["pages"]
    if rows is not None:
        left_out = ", ".join(f"{count:,} because {why}" for why, count in rows["rejected"].items())
        yield f"rows: {rows['read']:,} read" + (f", left out {left_out}" if left_out else "")
        if "clicks" in rows:
            yield f"clicks: {clicks_in_words(msgspec.convert(rows['clicks'], Clicks))}"
    if totals is not None:
        names = {"impressions": "", "clicks": "", "pages": "pages_exact", "queries": "", "documents": "documents_exact"}
        counts = [
            ("" if not exact or totals[exact] else "about ") + plural(totals[name], name)
            for name, exact in names.items()
            if totals[name] is not None
        ]
        pairs = f"{'' if totals['pairs_exact'] else 'about '}{plural(totals['pairs'], '(query, doc) pairs')}"
        yield f"counted: {', '.join([*counts, pairs])}"
    if days is not None:
        span = days["first"] if days["number"] == 1 else f"{days['first']} to {days['last']}, {days['number']:,} days"
        yield f"days: {span}"
    if pages is not None and pages["looked_at"]:
        yield (
            f"pages: {pages['rows'] / pages['looked_at']:.1f} results each, at most {pages['longest']:,}; "
            f"{pages['without_click'] / pages['looked_at']:.1%} without a click, {pages['with_gaps']:,} with gaps, "
            f"{pages['starting_late']:,} that start below position 1"
        )
    if queries is not None:
        yield (
            f"queries: {queries['number']:,}, worth {queries['effective']:,.0f} of equal size; the largest has "
            f"{queries['largest_share']:.1%} of the impressions"
        )
    if moved is not None:
        yield (
            f"movement: {moved['pairs_at_several_positions']:,} of {moved['pairs']:,} pairs were shown at several "
            f"positions, {moved['linking_pairs']:,} of them also clicked: these link positions"
        )


def _models(content: Mapping[str, Any]) -> Iterator[str]:
    for name, model in content["models"].items():
        if not model["can_be_estimated"]:
            yield f"{name}: cannot be estimated: {model['reason']}"
            continue
        share, largest = model["share_of_queries"], model["largest_std_error"]
        sample = "" if share == 1 else f", judged by {share:.1%} of the queries"
        precision = (
            "no standard errors" if largest is None else f"standard errors of log propensity up to {largest:.3f}"
        )
        yield (
            f"{name}: {model['cells_identified']:,} of {plural(len(model['cells']), 'cells')} can be compared, with "
            f"{model['click_share_identified']:.1%} of the clicks; {precision}{sample}"
        )
