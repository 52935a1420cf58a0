"""`python -m megahour.cli`."""

from megahour.cli import main

main()
