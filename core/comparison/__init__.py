"""Whether propensities have changed: curves with the covariance of all their errors, and tests of their differences.

The curves may be two fits, two statistics, or the days of a store.
"""
