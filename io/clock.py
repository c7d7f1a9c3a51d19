"""The one place that asks for the time of day, so that what is computed does not depend on it unseen."""

from datetime import UTC, date, datetime


def today() -> date:
    """The day of today in UTC."""
    return datetime.now(UTC).date()


def now() -> datetime:
    """The time of day in UTC."""
    return datetime.now(UTC)
