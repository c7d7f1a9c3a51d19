"""A value that is there."""

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """The value; None fails the test."""
    assert value is not None
    return value
