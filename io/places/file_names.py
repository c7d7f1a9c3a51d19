"""Names of files: which are text, which Polars needs, and which lie within the directory that they are named in."""

from pathlib import Path


def is_text(name: str | Path) -> bool:
    """Whether a name, as Python shows it, is UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_inside(name: str) -> None:
    """Raise ValueError if a stored name, with `/` between folders, may not be one of a file within a directory."""
    if {"", ".", ".."} & set(name.split("/")) or "\0" in name or "\\" in name or not is_text(name):
        raise ValueError(f"{name[:100]!a} is no name of a file or folder within a result")
