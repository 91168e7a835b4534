"""Copy the start of difference vectors: the model that an entry merged."""

import shutil

from merganser.config.params import Params
from merganser.merging.cards import CARD
from merganser.outputs import fresh_folder
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import DIFFERENCES, MERGED, SEEDS


@stage("differences")
def main(params: Params, name: str) -> None:
    """Copy an entry's merged checkpoint, without its card, next to the vectors that start from it."""
    entry = params.differences[name].merged
    with fresh_folder(DIFFERENCES / name / "base") as folder:
        shutil.copytree(MERGED / entry, folder, ignore=shutil.ignore_patterns(CARD, SEEDS), dirs_exist_ok=True)


if __name__ == "__main__":
    run_main(main)
