"""Writing of results: in a directory of their own, with a manifest, moved into place whole or not at all.

Only this package replaces existing files, and only results of posbias.
"""
