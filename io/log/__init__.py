"""Click logs as people have them: files, folders, headers, quotes, days, and the rows that are bad.

A log is opened and described here; the engines read it.
"""
