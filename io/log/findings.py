"""What was recognised of a log: the options that say it, as they are typed, and a sentence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was recognised."""

    said: str  # in words, for a reader
    options: tuple[str, ...] = ()  # words of the command line that say it; none where it is the default
    certain: bool = True  # whether it follows from the data; a guess is said to be one
