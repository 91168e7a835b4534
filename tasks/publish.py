"""Read the published figures that params.yaml names, for the report."""

from pathlib import Path

from merganser.config.params import Params
from merganser.config.published import read_published
from merganser.errors import InputError
from merganser.tasks.stage import run_main, stage, write_json
from merganser.tasks.stages import PUBLISHED


@stage()
def main(params: Params) -> None:
    """Write the papers' figures for the comparison in params.yaml."""
    if params.published is None:
        raise InputError(
            "merganser.tasks.publish: params.yaml names no published figures; published: {source: FILE} does"
        )
    write_json(PUBLISHED, read_published(Path(params.published.source)).model_dump())


if __name__ == "__main__":
    run_main(main)
