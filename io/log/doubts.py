"""What should be said of how a log is read, because it was not named."""

import shlex

from posbias.io.log.log import Log
from posbias.io.log.misread import unused_count


def doubts(log: Log) -> list[str]:
    """Columns that were guessed from their names, and one of counts that was not used."""
    said = list[str]()
    if log.guessed:
        named = " ".join(f"{flag} {shlex.quote(column)}" for flag, column in log.guessed)
        said.append(f"columns were guessed from their names: {named}. Name them, or others, to be sure.")
    count = unused_count(log)
    if count is not None:
        said.append(
            f"column {count!r} was not used. If a row adds up impressions, say --impressions {shlex.quote(count)}."
        )
    return said
