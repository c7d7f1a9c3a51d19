"""Engines: each runs the same plans where the data is."""
