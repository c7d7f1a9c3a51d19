"""The contract of rows and pages of a click log, and their canonical form: impressions.

Which files they come from is no matter here; how they are counted is in `counts`.
"""
