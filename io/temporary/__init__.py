"""Temporary directories of ours: whose they are, how they are made and removed, and the files in them.

The rules of removal are in `io/README.md`; nothing that another program made is ever removed.
"""
