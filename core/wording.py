"""Values from outside and counts, as they stand in sentences."""

from posbias.core.credentials import masked
from posbias.core.escapes import escaped


def shown(text: str) -> str:
    """A name, a value or a sentence on one line, without secrets and with unseen characters as escapes."""
    return escaped(masked(text))


def counted(number: float, plural: str) -> str:
    """A count with its noun, e.g. `1,204 clicks`, `1 query`."""
    count = f"{number:,.0f}"
    return f"{count} {_singular(plural) if count == '1' else plural}"


def _singular(plural: str) -> str:
    return f"{plural.removesuffix('ies')}y" if plural.endswith("ies") else plural.removesuffix("s")
