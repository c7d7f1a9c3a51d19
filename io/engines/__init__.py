"""Engines read, validate and count a log of any size, on this machine or on a Spark cluster.

All engines return the same rows and statistics.
"""
