"""Where temporary files go unless the user says so."""

import tempfile
from pathlib import Path

from posbias.core.errors import OutputError


def temporary_place() -> Path:
    """The system's directory for temporary files.

    Raises:
        OutputError: there is none.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "there is no place for temporary files: TMPDIR names none, and /tmp and /var/tmp cannot be written. Name a "
            "directory with --temp-dir."
        ) from error
