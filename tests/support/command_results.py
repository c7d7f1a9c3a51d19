"""What a command wrote, as tests look at it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.io.results.manifest import write_manifest


@dataclass(frozen=True)
class Output:
    """What a command wrote."""

    folder: Path

    @property
    def propensities(self) -> pl.DataFrame:
        """The table of cells."""
        return pl.read_parquet(self.folder / "propensities.parquet")

    @property
    def attractiveness(self) -> pl.DataFrame:
        """The table of pairs."""
        return pl.read_parquet(self.folder / "attractiveness.parquet")

    @property
    def training(self) -> pl.DataFrame:
        """The training rows, part after part."""
        return pl.concat(
            pl.read_parquet(part) for part in sorted((self.folder / "training" / "rows").glob("*.parquet"))
        )

    @property
    def statistics(self) -> pl.DataFrame:
        """What was counted, sorted."""
        return pl.read_parquet(self.folder / "part-*.parquet").sort(pl.all())

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest."""
        return manifest_of(self.folder)


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a result."""
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return content


def invoke(*words: object, code: int | tuple[int, ...] | None = 0, piped: bytes | None = None) -> CompletedProcess[str]:
    """Run a command line in this process and directory; it must exit with `code`, or one of several."""
    done = CliRunner().invoke(app, [str(word) for word in words], input=piped, catch_exceptions=False)
    assert code is None or done.exit_code in (code if isinstance(code, tuple) else (code,)), done.output
    return CompletedProcess([*map(str, words)], done.exit_code, done.stdout, done.stderr)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a directory, to the byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reseal(folder: Path, **changed: object) -> None:
    """Write the manifest anew, as somebody may who has edited its files and wants them read: digests are no secret."""
    write_manifest(folder, manifest_of(folder) | changed)


Posbias = Callable[..., Output]
"""Runs a command with these arguments."""

Run = Callable[..., CompletedProcess[str]]
"""Runs a command line with these arguments, which may fail."""

Refused = Callable[..., str]
"""Runs a command line that must fail and write no `out`, and returns what is said on standard error."""
