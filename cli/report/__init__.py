"""Output of a command: progress, tables, verdicts, the manifest and the exit code.

It reports what was computed and computes nothing itself.
"""
