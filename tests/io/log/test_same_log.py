"""One log in every format and dialect of text: counted as plain text, as a file or piped; its options are named."""

import gzip
import io
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
from command_results import Output, invoke
from small_logs import LOG_OF_TEXTS as LOG

from posbias.io.forms.recognition import find_dialects
from posbias.io.log.sources import find_sources

TYPED = LOG.cast({"position": pl.Int64, "click": pl.Int8, "copies": pl.Float64})
COMMA = LOG.with_columns(copies=pl.col("copies").str.replace(".", ",", literal=True))
YES = LOG.with_columns(click=pl.col("click").replace_strict({"1": "Yes", "0": "no"}))


def of(write: Callable[[io.BytesIO], object]) -> bytes:
    """Return what is written into a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


CSV, TSV, LINES = LOG.write_csv(), LOG.write_csv(separator="\t"), LOG.write_ndjson()
ARRAY = LOG.write_json()


class Format(NamedTuple):
    """A name of a file, its content, and the options that read it.

    Args:
        certain: whether the options follow from the content for certain.
        found: the options that are found, where they are others.
        stops: what is said without the options, where it is something else; empty where the log is read.
    """

    name: str
    content: bytes
    options: str = ""
    certain: bool = True
    found: str | None = None
    stops: str | None = None


def separated(mark: str, name: str = "log.csv") -> Format:
    content = LOG.write_csv(separator=mark).encode()
    return Format(name, content, f"--separator {shlex.quote({chr(9): 'tab', ' ': 'space'}.get(mark, mark))}")


def encoded(encoding: str, certain: bool, found: str | None = None, stops: str | None = None) -> Format:  # noqa: FBT001
    return Format("log.csv", CSV.encode(encoding), f"--encoding {encoding}", certain, found, stops)


FORMATS: dict[str, Format] = {
    "parquet": Format("log.parquet", of(TYPED.write_parquet)),
    "pq": Format("log.pq", of(TYPED.write_parquet)),
    "csv": Format("log.csv", CSV.encode()),
    "tsv": Format("log.tsv", TSV.encode()),
    "csv.gz": Format("log.csv.gz", gzip.compress(CSV.encode())),
    "csv.zst": Format("log.csv.zst", of(lambda file: LOG.lazy().sink_csv(file, compression="zstd"))),
    "tsv.gz": Format("log.tsv.gz", gzip.compress(TSV.encode())),
    "ndjson": Format("log.ndjson", TYPED.write_ndjson().encode()),
    "jsonl": Format("log.jsonl", LINES.encode()),
    "ndjson.gz": Format("log.ndjson.gz", gzip.compress(LINES.encode())),
    "ndjson.zst": Format("log.ndjson.zst", of(lambda file: LOG.lazy().sink_ndjson(file, compression="zstd"))),
    "arrow": Format("log.arrow", of(TYPED.write_ipc)),
    "feather": Format("log.feather", of(lambda file: TYPED.write_ipc(file, compression="lz4"))),
    "semicolons": separated(";"),
    "pipes": separated("|"),
    "tabs in CSV": separated("\t"),
    "carets": separated("^")._replace(found="", stops="session^query^doc"),
    "spaces": separated(" ")._replace(stops="session query doc"),
    "pipes in TSV": separated("|", "log.tsv"),
    "no header": Format(
        "log.csv",
        LOG.write_csv(include_header=False).encode(),
        "--no-header --columns session,query,doc,position,click,copies",
        found="--no-header --columns c1,c2,c3,c4,c5,c6",
    ),
    "latin-1": encoded("iso8859-1", False, "--encoding cp1252", "--encoding, e.g. cp1252"),
    "cp1252": encoded("cp1252", False, None, "--encoding, e.g. cp1252"),
    "utf-16": encoded("utf-16", True),
    "utf-16-le": encoded("utf-16-le", True, None, "--encoding utf-16-le"),
    "utf-8 with a mark": encoded("utf-8-sig", True, "", ""),
    "a mark, without an option": Format("log.csv", CSV.encode("utf-8-sig")),
    "text of no ending": Format("log", CSV.encode()),
    "tabs in .txt": Format("log.txt", TSV.encode()),
    "lines of JSON in .log": Format("day.log", LINES.encode()),
    "lines of JSON in .json": Format("log.json", LINES.encode()),
    "an array": Format("log.json", ARRAY.encode()),
    "an array in utf-16": Format("log.json", ARRAY.encode("utf-16"), "--encoding utf-16"),
    "gzip of no other ending": Format("log.gz", gzip.compress(CSV.encode())),
    "gzip of cp1252": Format(
        "log.csv.gz", gzip.compress(CSV.encode("cp1252")), "--encoding cp1252", False, None, "--encoding, e.g. cp1252"
    ),
    "a decimal comma": Format("log.csv", COMMA.write_csv().encode(), "--decimal ,"),
    "yes and no": Format(
        "log.csv", YES.write_csv().encode(), "--true yes --false no", True, "", "--true yes --false no"
    ),
}
FAST = (
    "parquet",
    "csv.gz",
    "tsv",
    "ndjson",
    "arrow",
    "semicolons",
    "no header",
    "gzip of cp1252",
    "an array in utf-16",
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return the counts of the plain text."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "log.csv").write_text(CSV, encoding="utf-8")
    done = collected(folder / "log.csv", folder / "out")
    assert done[0] == 0, done[1]
    return Output(folder / "out").statistics


def collected(log: object, out: Path, *options: str, piped: bytes | None = None) -> tuple[int, str]:
    """Count a log by pages with weights; return the exit code and what is said."""
    words = ("collect", log, *options, "--model", "ubm", "--weight-column", "copies", "-o", out)
    done = invoke(*words, code=None, piped=piped)
    return done.returncode, done.stderr


@pytest.mark.slow_after(6)
@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]
)
def test_a_log_of_any_format_counts_as_the_plain_text(
    plain: pl.DataFrame, tmp_path: Path, name: str, *, piped: bool
) -> None:
    file, content, options, *_ = FORMATS[name]
    (tmp_path / file).write_bytes(content)
    log, of_pipe = ("-", content) if piped else (tmp_path / file, None)

    code, said = collected(log, tmp_path / "out", *shlex.split(options), piped=of_pipe)

    assert code == 0, said
    assert Output(tmp_path / "out").statistics.equals(plain)


@pytest.mark.parametrize("name", FORMATS)
def test_the_options_of_a_dialect_are_found_and_named_where_they_are_missing(tmp_path: Path, name: str) -> None:
    file, content, options, certain, other, stops = FORMATS[name]
    (tmp_path / file).write_bytes(content)
    expected = shlex.split(options if other is None else other)

    findings = find_dialects(find_sources([str(tmp_path / file)]))

    assert [word for finding in findings for word in finding.options] == expected
    assert all(finding.certain for finding in findings) == certain
    if options and stops != "":
        (tmp_path / file).write_bytes(content.replace(b", cr", b" cr"))  # commas would be fields too many
        weights = ["--weight-column", "copies"] if "decimal" in name else []
        done = invoke("collect", tmp_path / file, *weights, "-o", tmp_path / "out", code=2)
        assert (stops or shlex.join(expected)) in done.stderr
        assert not (tmp_path / "out").exists()
