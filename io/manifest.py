"""The manifest: what a result was made from and how, written last, so that it serves Make as the stamp.

It holds no time of day: the same input and options give the same bytes.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posbias.core.credentials import masked_values
from posbias.core.errors import LogFormatError
from posbias.core.escapes import escaped_json

FILE_NAME = "manifest.json"
_READ_BACK = ("counted", "key_types")
_LIBRARIES = ("polars", "numpy", "scipy", "narwhals", "pyarrow")


def write_manifest(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write `content`, the files of a result and the versions that produced it, as its last file; return it whole.

    Passwords and keys in it are masked, but for what says what was counted, which is read again to the letter.
    """
    manifest = {
        **{name: value if name in _READ_BACK else masked_values(value) for name, value in content.items()},
        "files": list_files(folder),
        "versions": {"posbias": version("posbias"), **{name: version(name) for name in _LIBRARIES}},
    }
    (folder / FILE_NAME).write_text(manifest_text(manifest), encoding="utf-8")
    return manifest


def list_files(folder: Path) -> dict[str, int]:
    """The files of a result and their sizes in bytes, by name within it, but for the manifest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.stat().st_size for name, path in files.items() if name != FILE_NAME}


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it stands in its file."""
    return json_text(manifest)


def json_text(content: object) -> str:
    """JSON to read: letters as they are, and unseen characters as escapes."""
    return escaped_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def read_manifest(folder: Path, command: str) -> dict[str, Any]:
    """The manifest of a result, for whoever builds on it.

    Raises:
        LogFormatError: there is none, or it is damaged.
    """
    path = folder / FILE_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LogFormatError(f"{folder}: holds no {FILE_NAME}, so it is not a result of `posbias {command}`.") from None
    except (OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read: {error}.") from error
