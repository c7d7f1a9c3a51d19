"""What a log holds and what can be expected of an estimate from it: looked at before a fit.

Facts are summed over parts of the log that hold whole queries; the outlook of a model is a fit without its comparisons.
"""
