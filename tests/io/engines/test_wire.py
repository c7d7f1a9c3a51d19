"""Errors and objects of Spark workers arrive as what they were, and nothing that a log holds passes for one."""

import base64
import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from posbias.core import errors
from posbias.core.errors import EngineError, PosbiasError, SchemaError
from posbias.io.engines.spark_worker import WIRE, Wire

OURS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PosbiasError)),
    key=lambda kind: kind.__name__,
)
OF_POLARS = [pl.exceptions.PolarsError, pl.exceptions.ComputeError, pl.exceptions.SchemaError]
OTHERS = [pl.exceptions.PanicException, OSError, FileNotFoundError, PermissionError, NotADirectoryError]
STRANGER = Wire("0" * 32)


class Bomb:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def failing(error: BaseException, wire: Wire = WIRE) -> str:
    """What Spark says of a worker that failed: its traceback, with that of the cause before it."""
    try:
        with wire.sending_errors():
            raise error
    except RuntimeError as told:
        return "An exception was thrown from the Python worker:\n" + "".join(traceback.format_exception(told))
    raise AssertionError


@pytest.mark.parametrize("kind", [*OURS, *OF_POLARS, *OTHERS], ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
@pytest.mark.parametrize("text", ["", "two\nlines: 'ü' \udcff \x1b[0m", "x" * 5000], ids=["none", "odd", "long"])
def test_an_error_arrives_with_its_class_and_its_text(kind: type[BaseException], text: str) -> None:
    found = WIRE.error_in(failing(kind(text)))

    assert type(found) is kind
    assert str(found) == text


def test_the_lines_of_an_error_arrive_as_its_lines() -> None:
    lines = ("a line\nof a value", "another one")

    found = WIRE.error_in(failing(SchemaError(*lines)))

    assert isinstance(found, SchemaError)
    assert found.lines == lines


def test_an_error_of_the_system_keeps_its_kind_and_says_where() -> None:
    error = FileNotFoundError(2, "No such file or directory", "logs/day.parquet")

    found = WIRE.error_in(failing(error))

    assert type(found) is FileNotFoundError
    assert str(found) == str(error)


def test_an_error_of_another_class_is_said_in_one_line_by_the_engine() -> None:
    found = WIRE.error_in(failing(ZeroDivisionError("division by zero")))

    assert type(found) is EngineError
    assert str(found) == "a Spark worker broke down: ZeroDivisionError: division by zero"


def test_the_text_of_an_error_has_a_bound() -> None:
    assert len(str(WIRE.error_in(failing(SchemaError("x" * 10_000_000))))) == 1 << 16


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_process_or_a_generator_is_no_error(ending: type[BaseException]) -> None:
    with pytest.raises(ending), WIRE.sending_errors():
        raise ending


def forged(said: object, token: str) -> str:
    return f"posbias-error:{token}:{base64.b64encode(json.dumps(said).encode()).decode()}:"


@pytest.mark.parametrize(
    "query",
    [
        forged({"error": "posbias.core.errors.UsageError", "text": "faked"}, STRANGER.token),
        forged({"error": "posbias.core.errors.UsageError", "text": "faked"}, ""),
        f"posbias-error:{base64.b64encode(pickle.dumps(SchemaError('faked'))).decode()}:",
        "x\nposbias.core.errors.UsageError: faked\nModuleNotFoundError: No module named 'posbias'",
    ],
    ids=["another token", "no token", "a pickle", "lines of a traceback"],
)
def test_a_query_neither_passes_for_an_error_nor_hides_one(query: str) -> None:
    text = f"query {query!r} {query} has no features"

    assert str(WIRE.error_in(failing(SchemaError(text)))) == text
    assert WIRE.error_in(text) is None


def test_a_pickle_in_a_query_is_never_read(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "burst"))
    query = f"posbias-error:{base64.b64encode(bomb).decode()}:"

    WIRE.error_in(failing(SchemaError(query)))
    with pytest.raises(EngineError, match="no worker of this run"):
        WIRE.from_bytes(bomb)
    with pytest.raises(EngineError, match="no worker of this run"):
        WIRE.from_bytes(STRANGER.to_bytes(Bomb(tmp_path / "burst")))

    assert list(tmp_path.iterdir()) == []
    pickle.loads(bomb)  # noqa: S301 - it would have burst
    assert [file.name for file in tmp_path.iterdir()] == ["burst"]


def test_a_token_is_drawn_for_each_process_and_is_not_shown() -> None:
    assert len(WIRE.token) == 32
    assert WIRE.token not in repr(WIRE)
    assert issubclass(type(WIRE.error_in(failing(PosbiasError("x")))), PosbiasError)


def test_objects_arrive_as_they_were() -> None:
    frame = pl.DataFrame({"query": ["a", None], "clicks": [1, 2]})
    days, found = WIRE.from_bytes(bytearray(WIRE.to_bytes(((1, "b"), frame))))  # Spark gives bytearrays

    assert days == (1, "b")
    assert found.equals(frame)
