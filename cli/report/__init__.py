"""Output of commands: progress, conclusion, tables, and the exit code. Nothing is computed here."""
