"""`python -m lenmem`."""

from lenmem.cli import main

main()
