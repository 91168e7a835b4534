"""`python -m dvcfleet [--profile NAME] [STAGE ...]`: run what is not up to date in the current folder's repository."""

import argparse
import sys
from functools import partial
from pathlib import Path

from dvcfleet.failures import boundary
from dvcfleet.repository import existing_state_folder
from dvcfleet.run import run


def main() -> int:
    """Run the stages that the command line names, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dvcfleet", description="Run what is not up to date.")
    parser.add_argument("--profile", metavar="NAME", help="where to run, by a name of profiles.yaml")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="only these and what they need")
    told = parser.parse_args()
    with boundary(state_folder=partial(existing_state_folder, Path())):
        return run(told.stages, repo=Path(), profile=told.profile)


if __name__ == "__main__":
    sys.exit(main())
