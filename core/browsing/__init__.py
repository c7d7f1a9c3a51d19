"""How users go down a page: pages as matrices, expected counts of what was and was not seen, and EM over them."""

__all__: list[str] = []
