"""What commands do, without a console: the command line and the door for notebooks call the same jobs."""
