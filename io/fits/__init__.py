"""A fit: made from counts, put into words, written part by part, and read again by `weight`.

How theta is estimated is in `core.fit`.
"""
