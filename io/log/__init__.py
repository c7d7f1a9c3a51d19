"""Click logs: their files, dialects, columns, days, invalid rows and faults.

A log is opened and described here; the engines read it.
"""
