"""Attractiveness of a (query, document) pair given theta: its prior and its posterior.

Theta is taken as known here.
"""
