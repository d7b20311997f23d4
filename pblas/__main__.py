"""`python -m pblas`."""

import sys

from pblas.cli import main

if __name__ == "__main__":
    sys.exit(main())
