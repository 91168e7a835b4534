"""Give difference vectors what they start from: the model that an entry merged."""

import shutil

from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.merging.cards import CARD
from merganser.outputs import fresh_folder
from tasks.stage import only_name, run
from tasks.stages import DIFFERENCES, MERGED, SEEDS


def start_difference(name: str, entry: str) -> None:
    """Copy an entry's merged checkpoint, without its card, beside the vectors that start from it."""
    with fresh_folder(DIFFERENCES / name / "base") as folder:
        shutil.copytree(MERGED / entry, folder, ignore=shutil.ignore_patterns(CARD, SEEDS), dirs_exist_ok=True)


def main(argv: list[str]) -> None:
    """Start the difference vectors named on the command line."""
    name = only_name(argv, "difference")
    params = load_params()
    start_difference(name, declared(params.differences, name, "differences").merged)


if __name__ == "__main__":
    run(main)
