"""From logs or stores to sufficient statistics: read, count, compress, merge.

What is estimated from them is in `core`.
"""
