"""Directories of statistics as `collect` writes them: parts, checksums, and rules for adding and removing days.

Counting and merging are in `counting`.
"""
