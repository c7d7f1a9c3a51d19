"""Options: their names, help, defaults and settings, and which of them need or exclude each other.

Nothing is read or computed here.
"""
