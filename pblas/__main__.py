"""The program `python -m pblas`, and the script `pblas`: the command line."""

import sys

from pblas.cli import main

if __name__ == "__main__":
    sys.exit(main())
