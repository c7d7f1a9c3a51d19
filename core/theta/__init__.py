"""Estimate theta from counts: the identification of cells, and the conditional and joint estimates.

Standard errors are in `standard_errors`, the methods that users can choose in `estimators`.
"""
