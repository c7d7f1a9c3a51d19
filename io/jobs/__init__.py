"""The work of commands, without a console: the command line and Python call the same jobs."""
