"""A model file of LightGBM that is data from outside: it is read in a process of its own, which it may end or damage.

Messages are the number of their bytes and these: first the model, then rows of features, each answered by its scores.
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
_SIZE = 8  # bytes of a number of bytes, or of a score
_UNUSED = ("dask", "matplotlib", "pandas", "sklearn")  # LightGBM would load them, for seconds
_LONGEST = 300  # letters of a message of LightGBM, at most


def require_lightgbm() -> None:
    """Raise MissingExtraError if LightGBM is not installed; it is not loaded."""
    if find_spec("lightgbm") is None:
        raise MissingExtraError.of("a ranker of trees", "lightgbm")


@contextmanager
def separate_forest(text: str, path: Path, threads: int) -> Generator[Callable[[Floats], Floats]]:
    """Start LightGBM; yield the function that scores rows of features, shape (n, F).

    Args:
        text: the model file, which `ModelText.check` has passed.
        path: where it stands, for messages.
        threads: how many work.

    Raises:
        LogFormatError: LightGBM does not read the model, or ends.
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
            with suppress(BrokenPipeError):  # what it says before it ends is read instead
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
    """Answer messages until they end."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # where LightGBM prints
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    import lightgbm  # noqa: PLC0415 - only this process loads it

    def received() -> bytes:
        return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(_SIZE), "little"))

    forest = lightgbm.Booster(model_str=received().decode())
    while batch := received():
        rows = np.frombuffer(batch).reshape(-1, forest.num_feature())
        scores = np.asarray(forest.predict(rows, raw_score=True, num_threads=threads))
        answers.write(scores.reshape(len(rows)).tobytes())
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
