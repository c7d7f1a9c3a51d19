"""Features: columns that models learn from, from tables beside the log or from the log itself, brought to rows."""
