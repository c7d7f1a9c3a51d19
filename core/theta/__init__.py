"""Theta from counts: which cells the log can compare, and the algorithms that estimate them.

Standard errors are in `standard_errors`; which algorithm a user can choose is in `estimators`.
"""
