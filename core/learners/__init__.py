"""Learners: rankers from counts of clicks, given propensities."""
