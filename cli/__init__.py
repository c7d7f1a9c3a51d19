"""The command line: one file per command. Parse, call, report; nothing is computed here."""
