"""What a log says of itself before it is read: each step looks at some of it and returns `Finding`s.

A step knows nothing of the others. What it finds is said to the log, as if the user had said it, before the next looks.
"""
