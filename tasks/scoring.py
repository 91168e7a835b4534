"""The network, head and prepared data of one task, or of all, for stages that run models."""

from collections.abc import Collection
from pathlib import Path

from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import TaskSetup, open_setup
from merganser.inputs.heads import read_head
from merganser.models import Network, usable_device
from merganser.studies.merges import ScoringSetup
from merganser.tasks.stage import check_found
from merganser.tasks.stages import BASE, HEADS, UNSEEN_HEADS


def open_task(
    params: Params,
    task: str,
    data: Path,
    model: Path,
    networks: dict[int | None, Network] | None = None,
    own: bool = False,
) -> TaskSetup:
    """Open one task's prepared data in a folder, its head, and the architecture of a model's folder.

    `own`: for the task's own model, with the configuration and preparation of its own checkpoint.
    """
    heads = HEADS if task in params.tasks else UNSEEN_HEADS
    prepared, head = Prepared(data / task), read_head(heads / f"{task}.safetensors")
    if own and (apart := prepared.own) is not None:
        prepared, model = apart, apart.folder
    check_found("kinds", prepared.about["kind"])
    device, precision = usable_device(params.evaluation.device, "evaluation.device"), params.evaluation.precision
    return open_setup(
        params.base.family, model, task, prepared, head, {} if networks is None else networks, device, precision
    )


def open_tasks(params: Params, data: Path, names: Collection[str], base: Path = BASE) -> ScoringSetup:
    """Open the base, the architecture, and the prepared data in a folder of those tasks that have some."""
    networks: dict[int | None, Network] = {}
    tasks = {name: open_task(params, name, data, BASE, networks) for name in params.measured if name in names}
    apart = [name for name, setup in tasks.items() if setup.prepared.own is not None]
    own = tasks | {name: open_task(params, name, data, BASE, own=True) for name in apart}
    return ScoringSetup(open_for_merging(base), tasks, own, params.evaluation.batch_size, params.evaluation.device)
