"""`python -m dvcfleet [--profile NAME] [STAGE ...]`: run what is not up to date in the current folder's repository."""

import argparse
import sys
from pathlib import Path

from dvcfleet.errors import UserError
from dvcfleet.run import run


def main() -> int:
    """Run the stages that the command line names, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dvcfleet", description="Run what is not up to date.")
    parser.add_argument("--profile", metavar="NAME", help="where to run, by a name of profiles.yaml")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="only these and what they need")
    told = parser.parse_args()
    try:
        return run(told.stages, repo=Path(), profile=told.profile)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
