"""Read the file of published figures that params.yaml names, for the report."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.published import read_published
from merganser.errors import InputError
from tasks.stage import run, write_json
from tasks.stages import PUBLISHED


def main(argv: list[str]) -> None:
    """Write what papers report of the comparison in params.yaml."""
    if argv:
        raise InputError(f"tasks.publish: takes no arguments, got {' '.join(argv)}")
    published = load_params().published
    if published is None:
        raise InputError("tasks.publish: params.yaml names no published figures; published: {source: FILE} does")
    write_json(PUBLISHED, read_published(Path(published.source)).model_dump())


if __name__ == "__main__":
    run(main)
