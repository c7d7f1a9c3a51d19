"""A result in an object store has its manifest when it is whole, and only then."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_results import Run
from object_store import Bucket, S3Server
from patience import PATIENCE

from posbias.io.results.manifest import checksum_of_content

MARKER = "_posbias_unfinished"
TRAINING = {"training/rows/part-00000.parquet", "training/load.py"}
TABLES = {"propensities.parquet", "attractiveness.parquet", "theta_covariance.parquet"}
FILES = {"manifest.json", *TABLES, *TRAINING}


def put_old(bucket: Bucket, *names: str) -> dict[str, bytes]:
    """Put an older result below `out`, which --force may replace."""
    manifest = {"command": "run", "versions": {"posbias": "0.1.0"}, "files": dict.fromkeys(names, 3)}
    content = json.dumps(manifest | {"checksum": checksum_of_content(manifest)})
    old = dict.fromkeys(names, b"old") | {"manifest.json": content.encode()}
    for name, content in old.items():
        bucket.put(f"out/{name}", content)
    return old


def puts_training(method: str, path: str) -> bool:
    """Whether a request is the upload of a training file."""
    return method == "PUT" and "/training/" in path


def test_a_run_from_store_to_store_writes_what_a_local_run_writes(
    bucket: Bucket, log_file: Path, tmp_path: Path, run_command: Run
) -> None:
    url = bucket.put("logs/log.parquet", log_file)
    here = run_command("run", log_file, "-o", tmp_path / "out")
    there = run_command("run", url, "-o", bucket.url("out/"), "--json")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    said = here.stderr.replace(f"{tmp_path}/out", bucket.url("out"))
    assert said.split() == there.stderr.split()  # lines break elsewhere
    written = bucket.contents("out")
    assert set(written) == FILES
    for name in FILES - {"manifest.json"}:
        assert written[name] == (tmp_path / "out" / name).read_bytes()
    assert json.loads(written["manifest.json"]) == json.loads(there.stdout)
    manifest = (tmp_path / "out" / "manifest.json").read_text().replace(str(log_file), url)
    unlike = {"checksum": "", "next": ""}  # of the manifest's own text, which has other paths
    assert json.loads(there.stdout) | unlike == json.loads(manifest) | unlike


def test_a_target_that_is_there_is_replaced_only_with_force_and_wholly(
    bucket: Bucket, log_file: Path, run_command: Run
) -> None:
    put_old(bucket, "old.txt")
    bucket.put("out-of-it/too.txt", b"kept")
    refused = run_command("run", log_file, "-o", bucket.url("out"))
    assert refused.returncode == 2
    assert f"{bucket.url('out')}: already exists" in refused.stderr
    assert set(bucket.contents("out")) == {"old.txt", "manifest.json"}
    assert run_command("run", log_file, "-o", bucket.url("out"), "--force").returncode == 0
    assert set(bucket.contents("out")) == FILES
    assert set(bucket.contents("out-of-it")) == {"too.txt"}


@pytest.mark.parametrize("manifest", [None, b"{}", b"of-another-program"], ids=["none", "empty", "foreign"])
def test_what_no_manifest_of_ours_lists_is_never_replaced(
    bucket: Bucket, log_file: Path, run_command: Run, manifest: bytes | None
) -> None:
    bucket.put("out/of-somebody.txt", b"kept")
    if manifest is not None:
        bucket.put("out/manifest.json", manifest)
    before = bucket.contents("out")
    refused = run_command("run", log_file, "-o", bucket.url("out"), "--force")
    assert refused.returncode == 2
    assert "is not part of a result of posbias" in refused.stderr
    assert bucket.contents("out") == before


def test_an_object_beside_those_of_a_result_is_never_removed(
    bucket: Bucket, server: S3Server, log_file: Path, run_command: Run
) -> None:
    put_old(bucket, "old.txt")
    bucket.put("out/of-somebody.txt", b"kept")
    before = bucket.contents("out")
    refused = run_command("run", log_file, "-o", bucket.url("out"), "--force")
    assert refused.returncode == 2
    assert f"{bucket.url('out')}/of-somebody.txt is not part of a result" in refused.stderr
    assert bucket.contents("out") == before
    server.refuses = puts_training  # an upload that is stopped leaves its marker, which lists what is its own
    assert run_command("run", log_file, "-o", bucket.url("other")).returncode == 2
    server.refuses = lambda _method, _path: False
    bucket.put("other/of-somebody.txt", b"kept")
    refused = run_command("run", log_file, "-o", bucket.url("other"), "--force")
    assert refused.returncode == 2
    assert bucket.contents("other")["of-somebody.txt"] == b"kept"


def test_of_two_uploads_to_one_prefix_the_one_that_lost_its_marker_says_so(
    bucket: Bucket, server: S3Server, log_file: Path, run_command: Run
) -> None:
    def takes_over(method: str, path: str) -> bool:
        if puts_training(method, path) and "load.py" in path:
            bucket.put(f"out/{MARKER}", b'{"format": "posbias.upload/1", "about": "", "token": "another", "files": []}')
        return False

    server.refuses = takes_over
    refused = run_command("run", log_file, "-o", bucket.url("out"))
    assert refused.returncode == 2
    assert "another run is writing it" in refused.stderr
    assert "manifest.json" not in bucket.contents("out")


@pytest.mark.slow
def test_no_reader_finds_an_old_manifest_beside_new_files(
    bucket: Bucket, server: S3Server, log_file: Path, run_command: Run
) -> None:
    old = put_old(bucket, "training/rows/part-00000.parquet", "training/rows/part-00001.parquet")
    found: list[tuple[dict[str, bytes], str]] = []

    def look(method: str, path: str) -> bool:
        if method in {"PUT", "POST"}:
            found.append((bucket.contents("out"), path))
        return False

    server.refuses = look
    assert run_command("run", log_file, "-o", bucket.url("out"), "--force").returncode == 0
    server.refuses = lambda _method, _path: False
    new = bucket.contents("out")
    assert set(new) == FILES
    for seen, before in found:
        shown = {name: content for name, content in seen.items() if name != MARKER}
        assert "manifest.json" not in shown or shown in (old, new), f"before {before}: {sorted(shown)}"
    assert {"manifest.json" in seen for seen, _ in found} == {True, False}


def test_an_input_below_the_target_is_not_deleted(bucket: Bucket, log_file: Path, run_command: Run) -> None:
    url = bucket.put("logs/day/log.parquet", log_file)
    for target in ("logs", "logs/day"):
        done = run_command("collect", url, "-o", bucket.url(target), "--force")
        assert done.returncode == 2
        assert f"{bucket.url(target)}: holds {url}" in done.stderr
    assert bucket.contents("logs") == {"day/log.parquet": log_file.read_bytes()}


def test_a_whole_bucket_is_no_target(bucket: Bucket, log_file: Path, run_command: Run) -> None:
    done = run_command("collect", log_file, "-o", bucket.url(""), "--force")
    assert done.returncode == 2
    assert "is a whole bucket" in done.stderr


def test_a_failed_run_leaves_no_object(bucket: Bucket, tmp_path: Path, run_command: Run) -> None:
    (tmp_path / "bad.csv").write_text("query,doc,position,click\n1,2,x,0\n")
    assert run_command("run", tmp_path / "bad.csv", "-o", bucket.url("out")).returncode == 2
    assert bucket.contents("out") == {}


@pytest.mark.parametrize("force", [False, True], ids=["new", "force"])
def test_an_upload_that_fails_leaves_no_manifest_and_the_next_run_needs_no_force(
    bucket: Bucket, server: S3Server, log_file: Path, run_command: Run, *, force: bool
) -> None:
    if force:
        put_old(bucket, "training/rows/part-00001.parquet")
    server.refuses = puts_training
    options = ["--force"] if force else []
    failed = run_command("run", log_file, "-o", bucket.url("out"), *options)
    assert failed.returncode == 2
    assert f"{bucket.url('out')}/training/load.py: access is denied" in failed.stderr
    assert "has no manifest" in failed.stderr
    assert "manifest.json" not in bucket.contents("out")
    server.refuses = lambda _method, _path: False
    assert run_command("run", log_file, "-o", bucket.url("out")).returncode == 0
    assert set(bucket.contents("out")) == FILES


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_uploads_leaves_no_manifest(
    bucket: Bucket,
    server: S3Server,
    log_file: Path,
    tmp_path: Path,
    clean_environment: dict[str, str],
    run_command: Run,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    server.holds = puts_training
    words = ["run", log_file, "-o", bucket.url("out"), "--temp-dir", temporary]
    command = [sys.executable, "-m", "posbias.cli", *map(str, words)]
    with subprocess.Popen(command, env=clean_environment, stderr=subprocess.PIPE, text=True) as process:
        assert server.held.wait(timeout=PATIENCE)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"stopped by SIGTERM; the upload to {bucket.url('out')} is incomplete" in said
    assert "manifest.json" not in bucket.contents("out")
    assert list(temporary.iterdir()) == []
    server.holds = lambda _method, _path: False
    assert run_command("run", log_file, "-o", bucket.url("out")).returncode == 0
    assert set(bucket.contents("out")) == FILES


@pytest.mark.slow
def test_a_local_run_loads_nothing_of_it(log_file: Path, tmp_path: Path, clean_environment: dict[str, str]) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from posbias.cli.main import app; "
        f"done = CliRunner().invoke(app, ['collect', {str(log_file)!r}, '-o', {str(tmp_path / 'out')!r}]); "
        "sys.exit(done.exit_code or any(name in sys.modules for name in ('obstore', 'boto3')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=clean_environment, check=False).returncode == 0
