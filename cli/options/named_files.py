"""Files that are not there, told before anything that takes time is loaded."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from posbias.core.errors import LogFormatError

_NO_PLAIN_NAME = re.compile(r"[*?\[]|://|^-?$")  # a pattern, a URL, standard input, nothing


def check_are_there(names: Iterable[str]) -> None:
    """See that plain names of files and directories are such.

    Raises:
        LogFormatError: one is not there.
    """
    for name in names:
        if _NO_PLAIN_NAME.search(name):
            continue
        try:
            Path.cwd()
        except OSError:
            continue  # that the working directory is gone is said later
        try:
            os.lstat(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogFormatError(f"{name}: no such file or directory.") from error
        except (OSError, ValueError):
            continue  # said when it is opened
