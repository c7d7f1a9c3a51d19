"""Rows and pages of a click log: their canonical form, impressions, and the contract that they must keep."""
