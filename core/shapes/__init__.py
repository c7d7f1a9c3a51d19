"""Theta as a curve over positions, and over contexts: free, monotone, a power of the position, or shrunk.

They start from the free estimate and its covariance; none reads the counts of a log anew.
"""
