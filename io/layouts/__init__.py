"""Rows of a layout, part by part: weights per pair, splits, the type of a training set.

What a row means is in `core.training`; its file format is in `formats`.
"""
