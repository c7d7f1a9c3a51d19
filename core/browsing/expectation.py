"""The expectation step of a click model on a batch of pages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.likelihood import log_of_clicks
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.browsing.sums import Decisions


class MadeOfRatios(Protocol):
    """What EM needs of a model; see `ClickModel`."""

    parameters: ClassVar[tuple[Parameter, ...]]
    closed_form: ClassVar[bool]
    statistics_columns: ClassVar[tuple[str, ...]]

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """By parameter, what pages say of it."""
        ...

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1 | clicks above)."""
        ...

    def certain(self, pages: PageBatch) -> Flags:
        """Which impressions say the same whatever the parameters."""
        ...


@dataclass(frozen=True)
class Expectation:
    """What pages say of the parameters of a model, weighted.

    Attributes:
        model: it.
        parameters: those that are wanted.
        multiplicity: how many units of the log each unit of the pages stands for, shape (J + 1,), where they are
            signatures; None where each stands for itself.
    """

    model: MadeOfRatios
    parameters: Sequence[Parameter]
    multiplicity: Floats | None

    def decisions(self, values: Parameters, pages: PageBatch) -> Decisions:
        """At these values."""
        return self._weighted(values, pages, pages.row_weight)

    def decisions_and_likelihood(self, values: Parameters, pages: PageBatch) -> Decisions:
        """The same, and the logarithm of the probability of the clicks."""
        logs = log_of_clicks(self.model.given_clicks(values, pages), pages)
        log_likelihood = float((self._of_all_units(pages.row_weight, pages) * logs).sum())
        return replace(self.decisions(values, pages), log_likelihood=log_likelihood)

    def certain(self, values: Parameters, pages: PageBatch) -> Decisions:
        """What impressions say that say the same at any values."""
        return self._weighted(values, pages, pages.row_weight * self.model.certain(pages))

    def _weighted(self, values: Parameters, pages: PageBatch, weight: Floats) -> Decisions:
        found, of_all = self.model.expected(values, pages), self._of_all_units(weight, pages)
        ratios = {p.name: found[p.name].times(weight if p.shape == "unit" else of_all) for p in self.parameters}
        return Decisions(pages, ratios, float(of_all.sum()))

    def _of_all_units(self, weight: Floats, pages: PageBatch) -> Floats:
        """The weight of an impression, of all units of its signature, shape (N, L)."""
        return weight if self.multiplicity is None else weight * self.multiplicity[pages.unit]
