"""The entry point of `posbias` and `python -m posbias.cli`."""

import gc
import os
import signal
import sys
import traceback
from types import FrameType

_CANNOT_RUN, _EXIT_BASE = 2, 128
_OBJECTS_BETWEEN_COLLECTIONS = 500_000  # of garbage in cycles: a small run ends before; 50,000 take 4 % of its time


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler takes both
    os._exit(_EXIT_BASE + number)


def main() -> None:
    """Run the command line; a signal that arrives while it still loads ends it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    from posbias.cli import messages  # noqa: PLC0415 - before anything is opened or printed

    messages.install_streams()
    messages.keep_freed_memory()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # A fit works on small matrices: more threads only wait for each other (2.4 s of processor time instead of 1.3 s).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Threads of LightGBM that wait by spinning take what others could use: 18 s instead of 5 on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:  # to load the command line takes a moment, in which Ctrl-C must work, and an error must not exit with 1
        from posbias.cli.main import main as run  # noqa: PLC0415
    except BaseException:  # noqa: BLE001 - also a panic of Rust
        traceback.print_exc()
        sys.exit(_CANNOT_RUN)
    try:
        run()
    finally:
        gc.freeze()  # Python would look through all objects once more: a tenth of a small run


if __name__ == "__main__":
    main()
