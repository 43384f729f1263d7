"""``python -m goldstick``."""

from goldstick.cli import main

if __name__ == "__main__":
    main()
