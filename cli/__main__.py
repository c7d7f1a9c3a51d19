"""The entry point of `posbias` and `python -m posbias.cli`."""

import os
import signal
from types import FrameType

_EXIT_BASE = 128


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler takes both
    os._exit(_EXIT_BASE + number)


def main() -> None:
    """Run the command line; a signal that arrives while it still loads ends it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    from posbias.cli.main import main as run  # noqa: PLC0415 - loading takes a moment, in which Ctrl-C must work

    run()


if __name__ == "__main__":
    main()
