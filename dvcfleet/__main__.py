"""`python -m dvcfleet [STAGE ...]`: run what is not up to date in the repository of the current folder."""

import sys
from pathlib import Path

from dvcfleet.errors import UserError
from dvcfleet.run import run


def main() -> int:
    """Run the stages that the command line names, or all; return the exit code."""
    try:
        return run(tuple(sys.argv[1:]), repo=Path())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
