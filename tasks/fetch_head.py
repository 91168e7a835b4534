"""Copy the head of one unseen task from the checkpoint that it names, if it names one."""

import tempfile
from pathlib import Path

from merganser.checkpoints.adapters.files import open_model
from merganser.config.params import Params
from merganser.inputs.heads import write_head
from merganser.sources.fetching import fetch_checkpoint
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import BASE, UNSEEN_HEADS


@stage("unseen")
def main(params: Params, task: str) -> None:
    """Write the head of the unseen task on the command line; empty if the merge's own parameters stay."""
    about, out = params.unseen[task], UNSEEN_HEADS / f"{task}.safetensors"
    out.parent.mkdir(parents=True, exist_ok=True)
    if not about.has_head:
        write_head(open_model(BASE), [], BASE, task, out)
        return
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        folder = Path(made)
        fetch_checkpoint(Path(about.head), folder)
        write_head(open_model(folder), params.base.heads, folder, task, out)


if __name__ == "__main__":
    run_main(main)
