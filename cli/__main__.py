"""`python -m posbias.cli`: the same as `posbias`."""

from posbias.cli.main import main

main()
