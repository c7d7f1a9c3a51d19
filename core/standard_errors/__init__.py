"""Standard errors of theta by query, pair, column or session, the bootstrap, and tests of contrasts.

All of them are computed from a fit of `theta`, whose estimates they leave unchanged.
"""
