"""Stores of statistics: what `collect` wrote, part by part, with checksums and the rules of their days.

They are read and written here; adding up logs and stores is in `counting`.
"""
