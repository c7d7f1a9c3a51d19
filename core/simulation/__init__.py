"""Click logs with known truth: worlds, rankers, users, clicks and judgements.

No estimator is used here, so that what is simulated is independent of what is estimated from it. Of models without
cells only the drawing of clicks is used: the tests hold it to the equations, written there once more.
"""
