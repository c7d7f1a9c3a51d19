"""An S3-compatible server on loopback that remembers what it was asked, and refuses or holds what a test says."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, Any, cast

from patience import PATIENCE
from werkzeug.serving import make_server

_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Denied</Message></Error>"


def _nothing(method: str, path: str) -> bool:  # noqa: ARG001
    return False


@dataclass
class S3Server:
    """The server, in a thread of its own.

    Attributes:
        requests: method, path and `Authorization` of each request, in order.
        refuses: which requests are denied.
        holds: which requests wait until `go_on` is set.
    """

    requests: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    refuses: Callable[[str, str], bool] = _nothing
    holds: Callable[[str, str], bool] = _nothing
    held: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        moto: Any = import_module("moto.moto_server.werkzeug_app")  # it has no types
        self._moto = moto.DomainDispatcherApplication(moto.create_backend_app)
        self._server = make_server("127.0.0.1", 0, cast("Any", self._answer), threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def reset(self) -> None:
        """Forget what was asked, and refuse and hold nothing."""
        self.go_on.set()
        self.requests.clear()
        self.refuses = self.holds = _nothing
        self.held, self.go_on = threading.Event(), threading.Event()

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path, environ.get("HTTP_AUTHORIZATION", "")))
        if self.holds(method, path):
            go_on = self.go_on
            self.held.set()
            go_on.wait(timeout=PATIENCE)
        if self.refuses(method, path):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(
                "403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(_DENIED)))]
            )
            return [_DENIED]
        return self._moto(environ, start_response)


_READS_COMMANDS = """
import json, os, sys
from typer.testing import CliRunner
from posbias.cli.main import app
for line in sys.stdin:
    folder, words = json.loads(line)
    os.chdir(folder)
    done = CliRunner().invoke(app, words)
    broken = "" if isinstance(done.exception, SystemExit | None) else repr(done.exception)
    print(json.dumps([done.exit_code, done.stdout, done.stderr + broken]), flush=True)
"""


class CommandLine:
    """A process that runs one command after the other in an environment that stays as it is.

    What reads from stores has threads that look at the environment: a test that changed it under them could crash the
    process of all tests, and a process for every command takes ten times as long.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._process = subprocess.Popen(
            [sys.executable, "-c", _READS_COMMANDS],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: list[str], folder: Path) -> CompletedProcess[str]:
        """Run a command in a folder."""
        commands, answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        commands.write(json.dumps([str(folder), words]) + "\n")
        commands.flush()
        return CompletedProcess(words, *json.loads(answers.readline()))

    def end(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE)


@dataclass(frozen=True)
class Bucket:
    """A bucket of the server's, through a client that is not the one under test."""

    name: str
    client: Any

    def url(self, key: str) -> str:
        """The URL of an object or prefix."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object and return its URL."""
        body = content.read_bytes() if isinstance(content, Path) else content
        self.client.put_object(Bucket=self.name, Key=key, Body=body)
        return self.url(key)

    def put_tree(self, folder: Path, prefix: str) -> str:
        """Write all files of a directory and return the prefix as a URL."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path)
        return self.url(prefix)

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix, to the byte."""
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=f"{prefix}/").get("Contents", [])
        keys = [entry["Key"] for entry in found]
        read = {key: self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix(f"{prefix}/"): content for key, content in read.items()}
