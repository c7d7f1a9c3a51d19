"""The commands, one file each: arguments, options, and the order of the steps.

What a step does is in `work`.
"""
