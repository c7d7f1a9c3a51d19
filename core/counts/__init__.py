"""Sufficient statistics: what is counted (the plan), how counts are packed, merged and compressed.

No propensity is estimated here.
"""
