"""Click logs with known truth: worlds, rankers, clicks and judgements.

No estimator is used here, so that what is simulated is independent of what is estimated from it.
"""
