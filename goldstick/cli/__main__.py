"""``python -m goldstick.cli``."""

from goldstick.cli import main

main()
