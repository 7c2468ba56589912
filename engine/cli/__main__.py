"""`python -m pgbus.engine.cli`: the command where no script is installed, as for child processes."""

from pgbus.engine.cli import main

main()
