"""Click logs with known truth: worlds, rankers, users, clicks and judgements.

No estimator is used here: simulations are independent of the estimates that they test. Of models without cells only
`sample` is used, which tests compare with equations of their own.
"""
