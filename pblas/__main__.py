"""The program `python -m pblas`, and the script `pblas`: the command line, which needs the extra `cli`."""

import sys


def main() -> int:
    """Run the command line; without rich, say how to install it."""
    try:
        from pblas.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        print("pblas: error: the command line needs rich: pip install 'pblas[cli]'", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
