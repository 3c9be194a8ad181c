"""``python -m heddle.cli``."""

from heddle.cli import main

main()
