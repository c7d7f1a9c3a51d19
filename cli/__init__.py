"""The command line: parse options, call the job, report. Nothing is computed here."""
