"""The files of a fit: written part by part, and read again by `weight`.

How a fit is made is in `core.fit`.
"""
