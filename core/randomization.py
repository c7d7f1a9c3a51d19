"""Which impressions were logged under randomisation: the rows that a randomised estimate may use."""

import re
from dataclasses import dataclass
from typing import Self

from posbias.core.errors import UsageError

_FORM = re.compile(r"(?P<column>[^=]+)=(?P<value>.*?)(?:@(?P<positions>\d+(?:,\d+)+))?")


@dataclass(frozen=True)
class RandomizedRows:
    """Rows whose document was placed at random: where a column holds a value, at all positions or at some of them.

    Attributes:
        positions: the positions, from 1, among which the documents were permuted; empty for all positions of the page.
            Two of them are a swap experiment.
    """

    column: str  # the column that marks them
    value: str  # what it holds there, as text (true and false for booleans)
    positions: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `COLUMN=VALUE` (whole pages) or `COLUMN=VALUE@1,5` (documents swapped between positions 1 and 5).

        Raises:
            UsageError: the text has another form, or names positions that are not at least two different ones from 1.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--randomized-where {text}: write COLUMN=VALUE, for example policy=random, or COLUMN=VALUE@1,5 where "
                "the documents at positions 1 and 5 are swapped at random."
            )
        if re.search(r"@[\d,]*$", match["value"]):
            raise UsageError(f"--randomized-where {text}: after the @ stand at least two positions, for example @1,5.")
        positions = tuple(map(int, match["positions"].split(","))) if match["positions"] else ()
        if len(set(positions)) < len(positions) or min(positions, default=1) < 1:
            raise UsageError(f"--randomized-where {text}: positions are different whole numbers from 1.")
        return cls(match["column"], match["value"], positions)

    def __str__(self) -> str:
        """As it is written on the command line."""
        at = f"@{','.join(map(str, self.positions))}" if self.positions else ""
        return f"{self.column}={self.value}{at}"
