"""The work of commands: from options to jobs, and the steps of `check`, `collect`, `train`, `simulate` and `demo`."""
