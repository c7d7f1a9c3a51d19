"""The value of rankings by the clicks on other pages: measures, estimators with errors, differences, bounds.

Pages come in part by part, so that only sums over queries are held.
"""
