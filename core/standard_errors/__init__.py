"""How sure theta is: robust errors by query, pair or session, the bootstrap, and tests of contrasts.

Each takes a fit of `theta` as it stands and changes no estimate.
"""
