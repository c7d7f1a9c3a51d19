"""The steps of a command: from options to objects, then counting, fitting and writing training files.

What is printed about a result is in `report`.
"""
