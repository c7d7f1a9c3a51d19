"""Names of files, which may be any bytes but NUL: Python reads those that are no text, Polars does not."""

from pathlib import Path


def is_text(name: str | Path) -> bool:
    """Whether a name, as Python shows it, is UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True
