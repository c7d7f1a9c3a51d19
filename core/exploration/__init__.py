"""What to show next to learn most: swaps of two positions for theta, documents for attractiveness.

Both start from what a fit has found, and need no log.
"""
