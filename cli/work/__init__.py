"""The steps of a command: from options to objects, then counting, fitting and writing training files.

What is said about a result is in `report`.
"""
