"""Passwords and keys in URLs and settings are neither printed nor written; `***` stands for them."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command_results import Run
from object_store import Bucket, S3Server

from posbias.core.errors import mask_secrets, mask_secrets_in_values
from posbias.io.places.locations import ObjectUrl, location

PASSWORD = "pAssw0rd"  # noqa: S105 - nobody's
SECRET = "wJalr/K7MDENG+bPxRfi="  # noqa: S105 - nobody's
NOWHERE = f"http://user:{PASSWORD}@127.0.0.1:9"


def with_keys(url: str) -> str:
    """The URL with keys in it, as some tools write it."""
    return url.replace("://", f"://AKIAEXAMPLE:{SECRET}@")


def check_clean(done: CompletedProcess[str], *folders: Path) -> None:
    """No secret is in what was printed, nor in any file."""
    secrets = (PASSWORD, SECRET)
    assert not any(secret in done.stdout + done.stderr for secret in secrets), done.stderr
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert not any(secret.encode() in file.read_bytes() for file in files for secret in secrets)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE"])
@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_the_password_of_an_endpoint_that_does_not_answer_is_not_printed(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {NOWHERE}\n")
    value = str(tmp_path / "config") if variable == "AWS_CONFIG_FILE" else NOWHERE
    done = run_command("fit", "s3://bucket/log.parquet", "-o", "out", **{variable: value})

    assert done.returncode == 2
    check_clean(done)
    assert "***@127.0.0.1:9" in done.stderr
    assert variable == "AWS_CONFIG_FILE" or "http://***@127.0.0.1:9 cannot be reached" in done.stderr


@pytest.mark.slow
def test_nor_where_the_reading_itself_fails(server: S3Server, bucket: Bucket, log_file: Path, run_command: Run) -> None:
    url = bucket.put("log.parquet", log_file)
    asked: list[str] = []

    def refuses(method: str, path: str) -> bool:
        asked.append(path)
        return method == "GET" and path.endswith("log.parquet") and len(asked) > 6

    server.refuses = refuses
    endpoint = server.endpoint.replace("://", f"://user:{PASSWORD}@")
    done = run_command("fit", with_keys(url), "-o", "out", AWS_ENDPOINT_URL=endpoint)

    assert done.returncode == 2
    check_clean(done)
    assert url in done.stderr


@pytest.mark.slow
def test_keys_in_urls_are_not_written(bucket: Bucket, log_file: Path, run_command: Run, tmp_path: Path) -> None:
    url = with_keys(bucket.put("logs/log.parquet", log_file))
    counted = run_command("collect", url, "-o", "statistics")
    there = with_keys(bucket.put_tree(tmp_path / "statistics", "statistics"))
    (tmp_path / "posbias.toml").write_text(f'[fit]\noutput = "{with_keys(bucket.url("fit"))}"\n')
    fitted = run_command("fit", there, "--json")
    weighted = run_command(
        *(
            "weight",
            url,
            "--propensities",
            with_keys(bucket.url("fit")),
            "-o",
            with_keys(bucket.url("weighted")).replace("s3", "S3"),
        )
    )
    info = run_command("collect", there, "--info", "--json")
    table = run_command("collect", there, "--info")
    again = run_command("collect", there, url, "-o", "both")

    done = [counted, fitted, weighted, info, table, again]
    assert [said.returncode for said in done] == [0, 0, 0, 0, 0, 2], [said.stderr for said in done]
    (tmp_path / "posbias.toml").unlink()
    for said in done:
        check_clean(said, tmp_path)
    for name, content in (bucket.contents("fit") | bucket.contents("weighted")).items():
        assert SECRET.encode() not in content, name
    assert f'"s3://{bucket.name}/statistics"' in fitted.stdout
    assert f'"propensities": "s3://{bucket.name}/fit"' in bucket.contents("weighted")["manifest.json"].decode()
    assert f"{bucket.url('statistics')} holds statistics" in again.stderr


@pytest.mark.slow
def test_signatures_in_names_of_files_are_not_written(log_file: Path, run_command: Run, tmp_path: Path) -> None:
    signed = log_file.rename(tmp_path / f"log?X-Amz-Signature={PASSWORD}&x=.parquet")
    done = run_command("run", tmp_path / "log?X*.parquet", "-o", "out", "--json")
    collected = run_command("collect", signed, "-o", "statistics")

    assert (done.returncode, collected.returncode) == (0, 0)
    check_clean(done, tmp_path / "out", tmp_path / "statistics")
    assert "log?X-Amz-Signature=***&x=.parquet" in done.stdout


@pytest.mark.slow
def test_the_password_of_a_master_is_not_printed(log_file: Path, run_command: Run) -> None:
    master = f"spark://user:{PASSWORD}@localhost:1"
    done = run_command("fit", log_file, "-o", "out", "--engine", "spark", "--master", master)

    assert done.returncode == 2
    check_clean(done)
    assert "--master spark://***@localhost:1" in done.stderr


def test_a_usage_error_prints_no_password(log_file: Path, run_command: Run) -> None:
    done = run_command("fit", log_file, "-o", "out", "--engine", NOWHERE)

    assert done.returncode == 2
    check_clean(done)
    assert "***" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"s3://KEY:{SECRET}@bucket/x", "s3://***@bucket/x"),
        (f"s3:/KEY:{SECRET}@bucket/x", "s3:/***@bucket/x"),
        (f"gs://{PASSWORD}@bucket/x", "gs://***@bucket/x"),
        (f"hdfs:/user:{PASSWORD}@host/x", "hdfs:/***@host/x"),
        (f"s3:///KEY:{SECRET}@bucket/x", "s3:///***@bucket/x"),
        (f"s3://b/x#token={SECRET}", "s3://b/x#token=***"),
        ("http://user:12345@host:1/x", "http://***@host:1/x"),
        (f"(http://host:9000/a@b,http://u:{PASSWORD}@host)", "(http://host:9000/a@b,http://***@host)"),
        (f"http://u:pass@{PASSWORD}@host", "http://***@host"),
        (f"az://c/x?sv=1&SIG={PASSWORD}%2B&se=2", "az://c/x?sv=1&SIG=***&se=2"),
        (f"AccountName=a;AccountKey={SECRET};x=1", "AccountName=a;AccountKey=***;x=1"),
        (f"aws_secret_access_key = '{SECRET}'", "aws_secret_access_key = '***'"),
        (f'{{"Authorization": "Basic {PASSWORD}"}}', '{"Authorization": "Basic ***"}'),
        (f"<Code>ExpiredToken</Code><Token-0>{SECRET}</Token-0>", "<Code>ExpiredToken</Code><Token-0>***</Token-0>"),
    ],
)
def test_what_is_masked(text: str, says: str) -> None:
    assert mask_secrets(text) == says
    assert mask_secrets_in_values({"inputs": [text], "n": 1, "none": None}) == {"inputs": [says], "n": 1, "none": None}


@pytest.mark.parametrize(
    "text",
    [
        "abfss://container@account.dfs.core.windows.net/logs",
        "http://host:9000/path/a@b",
        "s3://bucket/joe@example.com/token=1/x.parquet",
        "joe@example.com at 12:30@noon, password: there is no such option",
        "C:/x@y and a:/b@c",
        "reason = the position is missing; --session visit",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_secrets(text) == text
    assert mask_secrets("x" * 100_000 + text) == "x" * 100_000 + text


@pytest.mark.parametrize("name", ["s3://KEY:{}@bucket/a@b/x", "s3:/KEY:{}@bucket/a@b/x/", " S3://KEY:{}@bucket/a@b/x"])
def test_keys_in_a_url_are_no_part_of_the_place(name: str) -> None:
    assert location(name.format(SECRET)) == ObjectUrl("s3", "bucket", "a@b/x")
    assert str(location("abfss://container@account/x")) == "abfss://container@account/x"
