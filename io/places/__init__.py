"""Where things lie: paths, URLs, object stores, and local copies of objects.

What the bytes mean is for the rooms above.
"""
