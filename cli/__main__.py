"""The entry point of `posbias` and `python -m posbias.cli`."""

import gc
import os
import signal
import sys
import traceback
from types import FrameType

_CANNOT_RUN, _EXIT_BASE = 2, 128
_GC_THRESHOLD = 500_000  # objects: a small run ends without a collection; with 50,000 they take 4 % of its time


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler takes both
    os._exit(_EXIT_BASE + number)


def main() -> None:
    """Run the command line; a signal during its imports ends the process without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    from posbias.cli import messages  # noqa: PLC0415 - before anything is opened or printed

    messages.install_streams()
    messages.keep_freed_memory()
    gc.set_threshold(_GC_THRESHOLD)
    # A fit works on small matrices: more threads only wait for each other (2.4 s of processor time instead of 1.3 s).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Waiting threads of LightGBM would spin and take busy cores from other threads: 18 s instead of 5.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:  # these imports take a moment, during which Ctrl-C must work and an error must not exit with 1
        from posbias.cli.main import main as run  # noqa: PLC0415
    except BaseException:  # noqa: BLE001 - also a panic of Rust
        traceback.print_exc()
        sys.exit(_CANNOT_RUN)
    try:
        run()
    finally:
        gc.freeze()  # saves the collection at exit: a tenth of the time of a small run


if __name__ == "__main__":
    main()
