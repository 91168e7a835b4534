"""Embed the tasks' class names by the base's text tower, for methods that compare tasks by meaning.

The folder also has links to the deltas, so a merge reads one folder, and no other merge waits for it.
"""

from merganser.config.params import Params
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.inputs.embeddings import link_read, write_embeddings
from merganser.models import embed_classes
from merganser.outputs import fresh_folder
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, DATA, EMBEDDINGS, PREPARED


@stage("embeddings")
def main(params: Params, name: str) -> None:
    """Write the mean text embedding of each task's class names, and link the deltas."""
    check_found("families", params.base.family)
    classes = {task: Prepared(PREPARED / task).classes for task in params.tasks}
    for task, names in classes.items():
        if not names:
            raise InputError(f"embeddings.{name}: {task} has no class names to embed; leave it out")
    with fresh_folder(EMBEDDINGS / name) as folder:
        write_embeddings(folder, embed_classes(params.base.family, BASE, classes))
        link_read(DATA / params.embeddings[name].of, params.tasks, folder)
    print(f"{name}: class names of {len(classes)} tasks embedded")


if __name__ == "__main__":
    run_main(main)
