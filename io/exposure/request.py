"""What a method of rows is asked."""

from dataclasses import dataclass

from posbias.io.features.of_parts import WantedFeatures


@dataclass(frozen=True)
class RowsRequest:
    """What a method of rows is asked.

    Attributes:
        method: its name.
        wanted: the features.
        score: the feature that is the ranker's score, if one is named.
        sample_pages: how many pages to learn from, at most.
    """

    method: str
    wanted: WantedFeatures
    score: str | None
    sample_pages: int
