"""Rankings and judgments on disk, TREC files and tables, and what the pages of a log say of them.

Each is brought to the ids of the log.
"""
