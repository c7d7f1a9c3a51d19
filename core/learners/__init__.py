"""Learners: rankers from counts of clicks, given propensities. Each is one file of `methods`; what they share is here.

Trees are LightGBM's (`boosting`), small networks and factors are NumPy's.
"""
