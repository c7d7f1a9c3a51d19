"""The manifest itself, for whoever wants to know it exactly."""

from posbias.io.reports.elements import Block, Listing, Section
from posbias.io.reports.read import ReportedResult

_MOST = 200_000  # characters


def manifest_section(result: ReportedResult) -> Section:
    """The section."""
    text = result.manifest
    blocks: list[Block] = []
    if len(text) > _MOST:
        blocks.append(f"The manifest has {len(text):,} characters; these are the first {_MOST:,}.")
    return Section("manifest", "Manifest", (*blocks, Listing("manifest.json", text[:_MOST])))
