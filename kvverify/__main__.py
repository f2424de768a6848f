"""``python -m kvverify``."""

from kvverify.cli.main import main

if __name__ == "__main__":
    main()
