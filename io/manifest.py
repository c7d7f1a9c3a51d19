"""The manifest: what a result was made from and how, written last, so that it serves Make as the stamp.

It holds no time of day: the same input and options give the same bytes.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posbias.core.errors import LogFormatError
from posbias.io.regular_files import read_regular

FILE_NAME = "manifest.json"
_LIBRARIES = ("polars", "numpy", "scipy", "narwhals", "pyarrow")


def write_manifest(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write `content`, with the versions that produced it, as the last file of a result; return it whole."""
    manifest = {
        **content,
        "versions": {"posbias": version("posbias"), **{name: version(name) for name in _LIBRARIES}},
    }
    (folder / FILE_NAME).write_text(manifest_text(manifest), encoding="utf-8")
    return manifest


def manifest_text(content: object) -> str:
    """A manifest, or what is known of one, as it stands in its file. What is no Unicode in a name is escaped."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace").decode()


def read_manifest(folder: Path, command: str) -> dict[str, Any]:
    """The manifest of a result, for whoever builds on it.

    Raises:
        LogFormatError: there is none, or it is damaged.
    """
    path = folder / FILE_NAME
    try:
        return json.loads(read_regular(path))
    except FileNotFoundError:
        raise LogFormatError(f"{folder}: holds no {FILE_NAME}, so it is not a result of `posbias {command}`.") from None
    except OSError as error:
        raise LogFormatError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise LogFormatError(f"{path}: cannot be read: {error}.") from error
