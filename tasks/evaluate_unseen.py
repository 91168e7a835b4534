"""Evaluate one entry's merge on one unseen task, which has no model of its own."""

from collections.abc import Mapping

from merganser.at_run_time.measuring import score_unseen
from merganser.config.params import Params
from merganser.evaluation.examples import write_results
from merganser.evaluation.prepared import Prepared
from merganser.models import EmbedsTexts, embed_classes, has_ability
from merganser.operators.sums import similarities
from merganser.outputs import write_json
from merganser.overlays import open_overlays
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, MERGED, PREPARED, SEEDS, UNSEEN, UNSEEN_PREPARED


@stage("methods", "unseen")
def main(params: Params, entry: str, task: str) -> None:
    """Score an entry's merge, or those of all seeds, on an unseen task; with parts, also their mixtures."""
    check_found("families", params.base.family)
    merged = MERGED / entry
    folders = [merged, *sorted((merged / SEEDS).glob("*"), key=lambda folder: int(folder.name))]
    setup = open_task(params, task, UNSEEN_PREPARED, merged)
    alike = likeness(params, task) if open_overlays(merged) else None
    score, results = score_unseen(setup, folders, params.evaluation.batch_size, alike)
    write_results(UNSEEN / entry / f"{task}.safetensors", results)
    write_json(UNSEEN / entry / f"{task}.json", score)
    print(f"{entry} on {task}, unseen: {score['metric']} {score['value']:.4f} on {score['count']} examples")


def likeness(params: Params, task: str) -> Mapping[str, float] | None:
    """Return how much an unseen task borrows from each other task, by the names of their classes.

    None if the family embeds no texts, or if a task has no classes.
    """
    classes = {each: Prepared(PREPARED / each).classes for each in params.tasks}
    classes |= {task: Prepared(UNSEEN_PREPARED / task).classes}
    if not has_ability(params.base.family, EmbedsTexts) or not all(classes.values()):
        return None
    return similarities(task, embed_classes(params.base.family, BASE, classes))


if __name__ == "__main__":
    run_main(main)
