"""Theta from the rows of a log and their features, for methods that counts are not enough for.

Trees are grown on a sample of pages; the other rows pass through them part by part, in bounded memory.
"""
