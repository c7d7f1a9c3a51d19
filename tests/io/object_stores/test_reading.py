"""Logs, statistics and fits in an object store are read as those on disk are, and what is wrong is said in one line."""

import io
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, cast

import polars as pl
import pytest
from command_results import Run
from object_store import Bucket, S3Server
from polars.testing import assert_frame_equal
from werkzeug.serving import make_server

from posbias.core.errors import LogFormatError, MissingExtraError, PosbiasError, UsageError
from posbias.io.log.scan import scan_sources
from posbias.io.log.sources import find_sources
from posbias.io.places.object_stores import forget_stores
from posbias.io.stores import store as statistics_store
from posbias.io.stores.store import MapParts, Statistics, check_contents, find_statistics

WRITERS: dict[str, Callable[[pl.DataFrame, io.BytesIO], Any]] = {
    "parquet": lambda frame, file: frame.write_parquet(file),
    "csv": lambda frame, file: frame.write_csv(file),
    "tsv": lambda frame, file: frame.write_csv(file, separator="\t"),
    "ndjson": lambda frame, file: frame.write_ndjson(file),
    "arrow": lambda frame, file: frame.write_ipc(file),
}


def as_bytes(frame: pl.DataFrame, ending: str) -> bytes:
    """A frame in a format, compressed if the ending says so."""
    form, _, wrapper = ending.partition(".")
    file = io.BytesIO()
    WRITERS[form](frame, file)
    codec = {"gz": "gzip", "zst": "zstd"}.get(wrapper)
    arrow: Any = import_module("pyarrow")  # it has no types
    return file.getvalue() if codec is None else arrow.compress(file.getvalue(), codec=codec, asbytes=True)


ENDINGS = ["parquet", "csv", "tsv", "ndjson", "arrow", "csv.gz", "csv.zst", "ndjson.gz"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_reads_as_it_does_from_disk(
    bucket: Bucket, log: pl.DataFrame, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"a b.{ending}"
    path.write_bytes(as_bytes(log, ending))
    [here], [there] = find_sources([str(path)]), find_sources([bucket.put(f"day=1/a b.{ending}", path)])
    assert there.digest() == here.digest()
    read = scan_sources([there]).collect(engine="streaming")
    assert_frame_equal(read.drop("day"), scan_sources([here]).collect())
    assert read["day"].unique().to_list() == ["1"]


TREE = [
    "a.parquet",
    "b.csv",
    "notes.txt",
    ".hidden.csv",
    "_SUCCESS.csv",
    "day=1/c.csv",
    "day=2/d.csv",
    "day=2/_tmp/e.csv",
    "day=2/.f/g.csv",
    "result/manifest.json",
    "result/h.csv",
    "other/manifest.json",
    "other/i.csv",
]
PATTERNS = ["", "*.csv", "day=*", "day=*/*.csv", "day=[2-9]", "**/*.csv", "?.parquet", "result/*.csv", "*.c*"]


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_prefixes_and_patterns_find_what_directories_and_patterns_find(
    bucket: Bucket, tmp_path: Path, pattern: str
) -> None:
    tree = tmp_path / "tree"
    for name in TREE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        text = '{"posbias": "0.1"}' if name == "result/manifest.json" else f"name\n{name}\n"
        (tree / name).write_bytes(
            as_bytes(pl.DataFrame({"name": [name]}), "parquet") if "parq" in name else text.encode()
        )
    url = bucket.put_tree(tree, "logs")
    here, there = find_sources([str(tree / pattern)]), find_sources([f"{url}/{pattern}"])
    assert here
    assert [str(source.path).removeprefix(f"{url}/") for source in there] == [
        str(source.path).removeprefix(f"{tree}/") for source in here
    ]
    assert [source.hive for source in there] == [source.hive for source in here]
    for name in (f"{tree}/result", f"{url}/result"):
        with pytest.raises(UsageError, match=r"result: is a result of posbias\. Name a log"):
            find_sources([name])


def test_what_is_wrong_with_an_object_is_said_of_its_url(bucket: Bucket, log: pl.DataFrame) -> None:
    whole = as_bytes(log, "parquet")
    good, same = bucket.put("good.parquet", whole), bucket.put("same.parquet", whole)
    wrong = {
        bucket.put("empty.csv", b""): "is empty",
        bucket.put("cut.parquet", whole[:-4]): "truncated",
        bucket.put("text.parquet", b"query,doc\n1,2\n"): "is not a Parquet file",
        bucket.put("what.xyz", b"?"): "cannot tell the format",
        bucket.put("what/a.xyz", b"?").removesuffix("/a.xyz"): "holds no log file",
        bucket.url("nothing.parquet"): "no object has this name or prefix",
        bucket.url("*.nothing"): "no object matches this pattern",
        bucket.put("a*.ndjson", b"{}\n"): "Rename it",
        f"s3://not-{bucket.name}/log.parquet": "there is no bucket",
    }
    for url, words in wrong.items():
        with pytest.raises(PosbiasError, match=words) as raised:
            scan_sources(find_sources([url]))
        assert url in str(raised.value)
    with pytest.raises(PosbiasError, match="named twice"):
        find_sources([good, bucket.url("go*")])
    assert same != good


@pytest.mark.slow
def test_equal_objects_and_a_copy_on_disk_count_once(
    bucket: Bucket, log_file: Path, tmp_path: Path, run_command: Run
) -> None:
    done = run_command("run", log_file, bucket.put("copy.parquet", log_file), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert f"{bucket.url('copy.parquet')} and {log_file} hold the same data" in done.stderr


def assert_one_line(done: CompletedProcess[str], url: str, words: str) -> None:
    """Exit code 2 and one line that names the URL and says what is wrong."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"posbias: error: {url}: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_store_that_does_not_let_us_in_is_one_line(
    bucket: Bucket, server: S3Server, log_file: Path, tmp_path: Path, run_command: Run
) -> None:
    url = bucket.put("log.parquet", log_file)
    server.refuses = lambda _method, _path: True
    assert_one_line(run_command("run", url, "-o", tmp_path / "out"), url, "access is denied")
    assert_one_line(run_command("run", log_file, "-o", url), url, "access is denied")


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_one_line(
    bucket: Bucket, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = run_command("run", bucket.url("log.parquet"), "-o", tmp_path / "out")
    assert_one_line(done, bucket.url("log.parquet"), "http://127.0.0.1:9 cannot be reached")


@pytest.mark.parametrize("status", ["200 OK", "302 Found", "404 Not Found", "501 Not Implemented"])
@pytest.mark.parametrize("words", ["run s3://bucket/log.parquet -o out", "simulate --sessions 300 -o s3://bucket/out"])
@pytest.mark.parametrize("body", [b"<html><body>Login</body></html>", b"", b"\x00\xff"], ids=["page", "empty", "bytes"])
@pytest.mark.slow
def test_an_answer_that_is_none_of_a_store_is_one_line(
    server: S3Server, run_command: Run, status: str, words: str, body: bytes
) -> None:
    def answer(_: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response(status, [("Content-Type", "text/html"), ("Content-Length", str(len(body)))])
        return [body]

    assert server.endpoint
    web = make_server("127.0.0.1", 0, cast("Any", answer), threaded=True)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    done = run_command(*words.split(), AWS_ENDPOINT_URL=f"http://127.0.0.1:{web.server_port}")
    web.shutdown()

    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("posbias: error: s3://bucket/")
    assert "what answers is no object store" in line


@pytest.mark.parametrize("missing", [["AWS_ACCESS_KEY_ID"], ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]])
@pytest.mark.slow
def test_missing_credentials_are_one_line(
    bucket: Bucket, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    for name in missing:
        monkeypatch.delenv(name)
    done = run_command("run", bucket.url("log.parquet"), "-o", tmp_path / "out")
    assert_one_line(done, bucket.url("log.parquet"), "there are no credentials")


@pytest.mark.parametrize("has_boto3", [True, False], ids=["boto3", "no boto3"])
def test_a_profile_of_the_credentials_file_is_used_by_all_who_ask(
    bucket: Bucket,
    server: S3Server,
    log_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_boto3: bool,
) -> None:
    if not has_boto3:
        monkeypatch.setitem(sys.modules, "boto3", None)
    url = bucket.put("log.parquet", log_file)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    keys = "[work]\naws_access_key_id = of-the-file\naws_secret_access_key = secret\n"
    region = f"[profile work]\nregion = eu-west-1\nendpoint_url = {server.endpoint}\n"
    for variable, content in {"AWS_SHARED_CREDENTIALS_FILE": keys, "AWS_CONFIG_FILE": region}.items():
        (tmp_path / variable).write_text(content)
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("AWS_PROFILE", "work")
    server.requests.clear()
    forget_stores()
    assert scan_sources(find_sources([url])).collect().height == 1600
    signed = {authorization.split("Credential=")[1].split("/")[0] for _, _, authorization in server.requests}
    regions = {authorization.split("Credential=")[1].split("/")[2] for _, _, authorization in server.requests}
    assert (signed, regions) == ({"of-the-file"}, {"eu-west-1"})


def test_without_obstore_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match="pip install obstore"):
        find_sources(["s3://bucket/log.parquet"])


@pytest.mark.slow
def test_statistics_and_fits_are_read_like_those_on_disk(
    bucket: Bucket, log_file: Path, tmp_path: Path, run_command: Run
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(*arguments: str | Path) -> None:
        done = run_command(*arguments, "--temp-dir", temporary)
        assert done.returncode in {0, 1}, done.stderr

    run("collect", log_file, "-o", tmp_path / "statistics")
    run("fit", tmp_path / "statistics", "-o", tmp_path / "fit")
    run("weight", log_file, "--propensities", tmp_path / "fit", "-o", tmp_path / "weighted")
    bucket.put_tree(tmp_path / "statistics", "statistics/1")
    bucket.put_tree(tmp_path / "fit", "fit")
    run("fit", bucket.url("statistics/*"), "-o", tmp_path / "fit-2")
    run("weight", log_file, "--propensities", bucket.url("fit"), "-o", tmp_path / "weighted-2")
    for one, other in (("fit", "fit-2"), ("weighted", "weighted-2")):
        for path in (tmp_path / one).rglob("*.parquet"):
            assert path.read_bytes() == (tmp_path / other / path.relative_to(tmp_path / one)).read_bytes()
    assert bucket.url("fit") in (tmp_path / "weighted-2" / "manifest.json").read_text()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("statistics")
def test_statistics_and_fits_without_a_manifest_are_not_whole(
    bucket: Bucket, log_file: Path, tmp_path: Path, run_command: Run
) -> None:
    bucket.put("unfinished/part-00000.parquet", tmp_path / "statistics" / "part-00000.parquet")
    bucket.put("fit/propensities.parquet", log_file)
    done = run_command("fit", bucket.url("unfinished"), "-o", tmp_path / "out")
    assert_one_line(done, bucket.url("unfinished"), "the manifest is missing")
    done = run_command("weight", log_file, "--propensities", bucket.url("fit"), "-o", tmp_path / "out")
    assert_one_line(done, bucket.url("fit"), "holds no manifest.json")


@pytest.mark.slow
def test_a_log_and_its_clicks_may_be_in_different_stores(
    bucket: Bucket, log: pl.DataFrame, tmp_path: Path, run_command: Run
) -> None:
    log.drop("click").write_csv(tmp_path / "shown.csv")
    clicks = bucket.put("clicks.csv.gz", as_bytes(log.filter(pl.col("click") == 1).select("session", "doc"), "csv.gz"))
    done = run_command("collect", tmp_path / "shown.csv", "--clicks", clicks, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"and {log['click'].sum():,} clicks" in done.stderr


def test_names_of_other_schemes_are_paths(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="no such file"):
        find_sources([f"{tmp_path}/s3:/bucket"])


# --- statistics, which are what their manifest says while they are read ---------------------------------------


@pytest.fixture
def more(log: pl.DataFrame, tmp_path: Path, run_command: Run) -> Path:
    """Return other statistics on disk, of 800 impressions."""
    log.head(800).write_parquet(tmp_path / "more.parquet")
    assert run_command("collect", "more.parquet", "-o", "more").returncode == 0
    return tmp_path / "more"


@pytest.mark.slow
def test_a_copy_is_checked_and_named_by_its_url(
    bucket: Bucket, statistics: str, tmp_path: Path, run_command: Run
) -> None:
    part = bytearray((tmp_path / "statistics" / "part-00000.parquet").read_bytes())
    part[200] ^= 1
    url = bucket.put("statistics/part-00000.parquet", bytes(part))
    for words in (("fit", statistics, "-o", tmp_path / "out"), ("collect", "--info", statistics)):
        assert_one_line(run_command(*words), url, "is damaged: its bytes are not those that were written")
    bucket.put("statistics/part-00000.parquet", bytes(part[:-1]))
    assert_one_line(run_command("collect", "--info", statistics), url, "is truncated")


@pytest.mark.slow
def test_statistics_that_are_replaced_in_the_store_while_they_are_read_are_an_error(
    bucket: Bucket, statistics: str, more: Path, tmp_path: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:

    def check_and_replace(statistics: Sequence[Statistics], each: MapParts, *, counts: bool) -> None:
        check_contents(statistics, each, counts=counts)
        bucket.put_tree(more, "statistics")

    monkeypatch.setattr(statistics_store, "check_contents", check_and_replace)
    done = run_in_process("fit", statistics, "-o", "out")
    assert_one_line(done, statistics, "was replaced while it was read. Run the command again.")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_statistics_are_read_as_they_are_each_time(bucket: Bucket, statistics: str, more: Path) -> None:
    (first,) = find_statistics([statistics])
    (again,) = find_statistics([statistics])
    bucket.put_tree(more, "statistics")
    (other,) = find_statistics([statistics])
    assert first.opened == again.opened
    assert (first.totals["impressions"], other.totals["impressions"]) == (1600, 800)


@pytest.mark.slow
def test_only_the_manifest_and_the_parts_are_copied(
    bucket: Bucket, server: S3Server, statistics: str, run_command: Run
) -> None:
    bucket.put("statistics/notes.txt", b"mine")
    bucket.put("statistics/more/part-00000.parquet", b"mine")
    server.requests.clear()
    assert run_command("collect", "--info", statistics).returncode == 0
    read = {path for method, path, _ in server.requests if method == "GET"}
    assert not [path for path in read if path.endswith(("notes.txt", "more/part-00000.parquet"))]


@pytest.mark.slow
def test_the_digest_of_a_large_object_is_that_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("wb") as file:
        file.write(b"query,doc\n")
        file.truncate(70 << 20)
    url = bucket.put("log.csv", tmp_path / "log.csv")
    (here,), (there,) = find_sources([str(tmp_path / "log.csv")]), find_sources([url])
    assert here.digest() == there.digest()
