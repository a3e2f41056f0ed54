"""Run the command line as ``python -m prodm``."""

from prodm.cli import main

main()
