"""How well click models predict clicks that they were not fitted to, and how sure that is."""

__all__: list[str] = []
