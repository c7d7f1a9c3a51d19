"""Pages to learn from, in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from posbias.core.browsing.batch import PageBatch
from posbias.core.browsing.frames import small_batches
from posbias.core.browsing.signatures import Signatures, find_signatures
from posbias.core.browsing.uncertain import Certain, uncertain_pages


@dataclass(frozen=True)
class PagesInMemory:
    """Pages to learn from, held in memory."""

    batches: tuple[PageBatch, ...]
    n_units: int  # J
    n_positions: int  # K

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches."""
        return iter(self.batches)

    def uncertain(self, certain: Certain) -> "PagesInMemory":
        """The pages without the impressions that say the same whatever the parameters."""
        left = uncertain_pages(self.batches, certain)
        return replace(self, batches=tuple(batch for pages in left for batch in small_batches(pages)))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Units with equal rows once; see `posbias.core.browsing.signatures`."""
        return find_signatures(
            [self.batches], columns, self.n_units, self.n_positions, lambda rows, _: tuple(small_batches(rows))
        )
