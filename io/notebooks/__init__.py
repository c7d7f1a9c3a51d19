"""The door for notebooks: a fit from a frame, a result from its directory, and weights for the rows of a frame.

What is stable is imported from `posbias.io`.
"""
