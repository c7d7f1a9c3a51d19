"""A log is looked at before a fit: read once, in parts, and each part says what it holds.

What is made of that is in core/check; what is recognised before is in io/log/recognition.
"""
