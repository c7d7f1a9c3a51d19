"""Search engines: the files of an export, and the parsing of responses."""
