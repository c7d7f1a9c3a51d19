"""Features beside the rows of a training set: columns of the log, and tables of their own.

Features are joined as they stand; nothing is computed from them.
"""
