"""What the first lines and columns of a log say of its form: the raw files of a source, or a table of events."""

import re
from collections import Counter
from collections.abc import Sequence

import polars as pl

from posbias.core.column_names import plain
from posbias.io.forms import Form, forms
from posbias.io.forms.form import Document, document_of, is_action_line
from posbias.io.log.event_table import CLICKED_FLAG, SHOWN_FLAG
from posbias.io.log.findings import Finding
from posbias.io.log.scan import LINE, reading, scan_lines, scan_sources, schema_of
from posbias.io.log.sources import Source

_SAMPLED_LINES, _SAMPLED_ROWS = 100, 10_000
_MOST_LINES = 0.5
_TEXT = ("ndjson", "csv", "tsv")
_SHOWN_WORDS = (
    *("impression", "impressions", "shown", "show", "view", "viewed", "display", "displayed", "exposure"),
    *("viewitemlist", "viewsearchresults", "productimpression", "searchimpression", "itemimpression"),
)
_CLICKED_WORDS = (
    *("click", "clicks", "clicked", "tap", "select", "selected", "searchclick", "productclick"),
    *("selectitem", "selectcontent", "itemclick", "resultclick"),
)
_LIKELY_NAMES = ("event", "action", "type", "kind")
_CERTAIN_WORDS = ("impression", "click")
_MOST_KINDS = 50  # a column of more is none of kinds of events


def find_form(sources: Sequence[Source]) -> list[Finding]:
    """The form of files, with the options that say it; nothing where they look like rows or pages.

    A log is recognised by its first file. A form is certain where every line of the sample is of its schema.

    Raises:
        LogFormatError: the first file cannot be read.
    """
    if not sources:
        return []
    found = _source_of(sources[0]) or _table_of_events(sources)
    return [] if found is None else [found]


def _source_of(source: Source) -> Finding | None:
    """The known source whose lines most of the first ones are."""
    if source.format not in _TEXT:
        return None
    with reading([source]):
        head = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_SAMPLED_LINES).collect()
    lines = [line for line in head[LINE].to_list() if line.strip()]
    documents = [document_of(line) for line in lines]
    documents = [document for document in documents if document is None or not is_action_line(document)]
    counts = [(_fitting(form, lines, documents), form) for form in forms()]
    fitting, form = max(counts, key=lambda entry: entry[0])
    if fitting <= _MOST_LINES * max(len(documents), 1):
        return None
    certain = fitting == len(documents)
    said = "these are" if certain else f"{fitting} of the first {len(documents)} lines look like"
    lacking = [form.lacks_query(document) for document in documents if document is not None]
    if form.may_lack_queries and True in lacking and False not in lacking:
        options = ("--input-format", form.name, "--no-query")
        return Finding(f"{said} events of {form.title}, of pages without queries", options, certain)
    return Finding(f"{said} events of {form.title}", ("--input-format", form.name), certain)


def _fitting(form: Form, lines: Sequence[str], documents: Sequence[Document | None]) -> int:
    """How many lines are of a form."""
    of_documents = sum(document is not None and form.knows_document(document) for document in documents)
    return of_documents or sum(form.knows_fields(line.rstrip("\r\n\t ").split("\t")) for line in lines)


def _table_of_events(sources: Sequence[Source]) -> Finding | None:
    """The column that says which rows are impressions and which are clicks, if there is one."""
    with reading(sources):
        schema = schema_of(sources[0])
        texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String | pl.Categorical | pl.Enum)]
        texts.sort(key=lambda name: not any(word in plain(name) for word in _LIKELY_NAMES))
        rows = pl.concat(scan_sources([source]).head(_SAMPLED_ROWS) for source in _with(sources, texts))
        sample = rows.select(texts).collect(engine="streaming") if texts else pl.DataFrame()
    findings = [_kinds_in(sample[name]) for name in texts]
    return next((finding for finding in findings if finding is not None), None)


def _with(sources: Sequence[Source], names: Sequence[str]) -> list[Source]:
    """The sources that have these columns; others are of another form."""
    first = schema_of(sources[0])
    return [source for source in sources if schema_of(source) == first and set(names) <= set(first)]


def _kinds_in(column: pl.Series) -> Finding | None:
    """What a column says, if its values are kinds of events."""
    counts = Counter[str](str(value) for value in column.drop_nulls().to_list())
    if len(counts) > _MOST_KINDS:
        return None
    shown, clicked = _called(counts, _SHOWN_WORDS), _called(counts, _CLICKED_WORDS)
    if not shown or not clicked:
        return None
    name = column.name
    options = (*(SHOWN_FLAG, f"{name}={shown[0]}"), *(CLICKED_FLAG, f"{name}={clicked[0]}"))
    kinds = ", ".join(f"{kind} ({rows:,})" for kind, rows in counts.most_common())
    certain = (_word(shown[0]), _word(clicked[0])) == _CERTAIN_WORDS
    said = f"the rows are events: {name!r} holds {kinds} in the sample; {shown[0]} is read as shown, {clicked[0]} as "
    return Finding(f"{said}clicked", options, certain)


def _called(counts: Counter[str], words: Sequence[str]) -> list[str]:
    """The values that are one of some words, in the order of the words."""
    found = {_word(value): value for value in counts}
    return [found[word] for word in words if word in found]


def _word(value: str) -> str:
    return re.sub(r"[^a-z]", "", value.lower())
