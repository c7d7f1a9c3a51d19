"""Which sections a report has, in their order: first of all results together, then of each.

The manifest itself, for whoever wants to know it exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.io.reports.elements import Block, Listing, Section
from posbias.io.reports.read import ReportedFit, ReportedResult
from posbias.io.reports.sections.browsing import browsing_section
from posbias.io.reports.sections.clicks import clicks_section
from posbias.io.reports.sections.contexts import contexts_section
from posbias.io.reports.sections.curve import curve_section
from posbias.io.reports.sections.documents import documents_section
from posbias.io.reports.sections.estimators import estimators_section
from posbias.io.reports.sections.links import links_section
from posbias.io.reports.sections.quality import quality_section
from posbias.io.reports.sections.runs import runs_section
from posbias.io.reports.sections.summary import summary_section
from posbias.io.reports.sections.weights import weights_section

_MOST = 200_000  # characters


def manifest_section(result: ReportedResult) -> Section:
    """The section."""
    text = result.manifest
    blocks: list[Block] = []
    if len(text) > _MOST:
        blocks.append(f"The manifest has {len(text):,} characters; these are the first {_MOST:,}.")
    return Section("manifest", "Manifest", (*blocks, Listing("manifest.json", text[:_MOST])))


MOST_IN_FULL = 6
"""Results that have sections of their own; of more, the last ones."""

_OF_FITS = (
    *(curve_section, browsing_section, estimators_section, contexts_section, links_section, clicks_section),
    documents_section,
)


@dataclass(frozen=True)
class Part:
    """Sections about one thing.

    Attributes:
        title: of the result that they are about; None where that is all of them.
        sections: in their order.
    """

    title: str | None
    sections: tuple[Section, ...]


def contents(results: Sequence[ReportedResult]) -> list[Part]:
    """The parts of a report."""
    if len(results) == 1:
        return [Part(None, _sections(results[0]))]
    return [
        Part(None, (runs_section(results),)),
        *(Part(result.name, _sections(result)) for result in results[-MOST_IN_FULL:]),
    ]


def _sections(result: ReportedResult) -> tuple[Section, ...]:
    found = [summary_section(result), *_of_fit(result.fit), weights_section(result), quality_section(result)]
    return tuple(section for section in (*found, manifest_section(result)) if section is not None)


def _of_fit(fit: ReportedFit | None) -> list[Section | None]:
    return [] if fit is None else [section(fit) for section in _OF_FITS]
