"""What travels between this process and its Spark workers beside rows: objects, and errors.

Spark hands on nothing of a worker's error but a text, in which tracebacks quote the log. So what posbias has to say
stands behind a mark that no log can know, because the token in it is drawn at random by this process and sent to the
workers with their work; and it is said as the name of an error from a fixed list and a text, in JSON.

Objects travel in binary columns of Spark frames, as Spark itself carries functions: pickled. What does not bear the
signature of that token is never unpickled.
"""

import base64
import builtins
import hmac
import json
import pickle
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import polars as pl

from posbias.core import errors
from posbias.core.errors import EngineError, PosbiasError

_DIGEST, _DIGEST_BYTES = "sha256", 32
_LONGEST_TEXT = 1 << 16  # of an error, in characters: ids that it quotes may be of any length
_OTHER = ""


def _of(module: ModuleType, *roots: type[BaseException]) -> dict[type[BaseException], str]:
    """The errors of a module below some of them, and the names under which they travel."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, roots))
    return {kind: f"{module.__name__}.{kind.__name__}" for kind in kinds}


_NAMES = {
    **_of(errors, PosbiasError),
    **_of(pl.exceptions, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    **_of(builtins, OSError),
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


@dataclass(frozen=True)
class Wire:
    """Packs at one end what it unpacks at the other: both have the same token."""

    token: str = field(repr=False)  # not even a traceback shows it

    @contextmanager
    def sending_errors(self) -> Generator[None]:
        """Let an exception travel to the driver through Spark, which keeps its text."""
        try:
            yield
        except (Exception, pl.exceptions.PanicException) as error:
            said = json.dumps(_described(error)).encode()
            raise RuntimeError(f"{self._mark}{base64.b64encode(said).decode()}:") from error

    def error_in(self, text: str) -> BaseException | None:
        """The exception that travelled in what Spark says of a failure, if one did."""
        found = re.search(f"{re.escape(self._mark)}([A-Za-z0-9+/=]+):", text)
        if found is None:
            return None
        said = json.loads(base64.b64decode(found[1]))
        kind = _KINDS.get(said["error"])
        return EngineError(f"a Spark worker broke down: {said['text']}") if kind is None else kind(said["text"])

    def to_bytes(self, value: object) -> bytes:
        """An object as it travels."""
        pickled = pickle.dumps(value)
        return self._signature(pickled) + pickled

    def from_bytes(self, data: bytes | bytearray) -> Any:  # noqa: ANN401
        """The object that travelled.

        Raises:
            EngineError: these bytes are not of this process or its workers.
        """
        signature, pickled = data[:_DIGEST_BYTES], memoryview(data)[_DIGEST_BYTES:]
        if not hmac.compare_digest(signature, self._signature(pickled)):
            raise EngineError("Spark returned data that no worker of this run sent. Run the command again.")
        return pickle.loads(pickled)  # noqa: S301 - signed by this process or its workers

    @property
    def _mark(self) -> str:
        return f"posbias-error:{self.token}:"

    def _signature(self, pickled: bytes | memoryview) -> bytes:
        return hmac.digest(self.token.encode(), pickled, _DIGEST)


def _described(error: BaseException) -> dict[str, str]:
    kind = next((known for known in type(error).__mro__ if known in _NAMES), None)
    text = str(error)[:_LONGEST_TEXT]
    if kind is None:
        return {"error": _OTHER, "text": f"{type(error).__name__}: {text}"}
    return {"error": _NAMES[kind], "text": text}


WIRE = Wire(secrets.token_hex(16))
"""That of this process. Workers get it with their work: what they would import is one of their own."""
