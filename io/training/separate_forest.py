"""Read an untrusted LightGBM model in a separate process, which a malicious file may crash.

A message is its length in bytes and its content: first the model, then rows of features, each answered by scores.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

from posbias.core.errors import LogFormatError, MissingExtraError

Floats = NDArray[np.float64]
_SIZE = 8  # bytes of a length, and of a score
_UNUSED = ("dask", "matplotlib", "pandas", "sklearn")  # modules that LightGBM would import, which takes seconds
_LONGEST = 300  # most characters of a message of LightGBM


def require_lightgbm() -> None:
    """Check that LightGBM is installed, without importing it.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("lightgbm") is None:
        raise MissingExtraError.of("a ranker of trees", "lightgbm")


@contextmanager
def separate_forest(text: str, path: Path, threads: int) -> Generator[Callable[[Floats], Floats]]:
    """Start LightGBM; yield the function from rows of features, shape (n, F), to raw scores, shape (n,).

    Args:
        text: the model file, checked by `ModelText.check`.
        path: path of the model, for messages.
        threads: number of threads.

    Raises:
        LogFormatError: LightGBM cannot read the model, or its process ends.
    """
    program = [sys.executable, "-P", __file__, str(threads)]
    settings = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads sleep while there are no rows
    with (
        TemporaryFile() as messages,
        Popen(program, stdin=PIPE, stdout=PIPE, stderr=messages, env=settings) as process,  # noqa: S603 - our own program
    ):
        to, answers = process.stdin, process.stdout
        if to is None or answers is None:
            raise TypeError("pipes")

        def send(message: bytes) -> None:
            with suppress(BrokenPipeError):  # if the process has ended, `scores` raises the error
                to.write(len(message).to_bytes(_SIZE, "little"))
                to.write(message)
                to.flush()

        def scores(rows: Floats) -> Floats:
            send(rows.tobytes())
            answer = answers.read(len(rows) * _SIZE)
            if len(answer) == len(rows) * _SIZE:
                return np.frombuffer(answer)
            code = process.wait()
            messages.seek(0)
            words = messages.read().decode(errors="replace").strip().rpartition("\n")[2][-_LONGEST:]
            ended = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            raise LogFormatError(
                f"{path}: LightGBM cannot score with it: {words or 'no message'} ({ended}). Train again."
            )

        try:
            send(text.encode())
            yield scores
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                to.close()


def _serve(threads: int) -> None:
    """Answer messages until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LightGBM prints to standard output
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    import lightgbm  # noqa: PLC0415 - only this process imports it

    def read_message() -> bytes:
        return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(_SIZE), "little"))

    forest = lightgbm.Booster(model_str=read_message().decode())
    while batch := read_message():
        rows = np.frombuffer(batch).reshape(-1, forest.num_feature())
        scores = np.asarray(forest.predict(rows, raw_score=True, num_threads=threads))
        answers.write(scores.reshape(len(rows)).tobytes())
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
