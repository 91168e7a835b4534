"""What stages run models on: the network, head and prepared data of one task, or of all."""

from dataclasses import dataclass
from pathlib import Path

import torch

from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.evaluation.evaluator import Evaluator, evaluator_for
from merganser.evaluation.prepared import Prepared
from merganser.inputs.heads import Head, read_head
from merganser.models import Network, open_network
from merganser.models.device import usable
from merganser.studies.merges import ScoringSetup
from tasks.stage import check_kind
from tasks.stages import BASE, HEADS


@dataclass(frozen=True)
class TaskSetup:
    """What one task's models run on: `network` has no parameters yet, and batches of `prepared` come where it is."""

    network: Network
    head: Head
    evaluator: Evaluator
    prepared: Prepared


def open_task(params: Params, task: str, data: Path, model: Path, own: bool = False) -> TaskSetup:
    """Open one task's prepared data in a folder, its head, and the architecture that a model's folder describes.

    `own`: the task's own model is run, which reads and computes as its own checkpoint says.
    """
    prepared, head = Prepared(data / task), read_head(HEADS / f"{task}.safetensors")
    if own and (apart := prepared.own) is not None:
        prepared, model = apart, apart.folder
    evaluator = evaluator_for(prepared)
    check_kind(evaluator.name)
    evaluator.check_head(head.classes, prepared.classes, task)
    device, precision = usable(params.evaluation.device, "evaluation.device"), params.evaluation.precision
    outputs = evaluator.outputs(prepared.classes)
    network = open_network(params.base.family, model, outputs=outputs, device=device, precision=precision)
    return TaskSetup(network, head, evaluator, prepared.on(network.device))


def open_setup(params: Params, data: Path, base: Path = BASE) -> ScoringSetup:
    """Open the base of the merges, and the architecture and prepared data in a folder of every task that has data."""
    prepared = {name: Prepared(data / name) for name in params.measured}
    evaluators = {name: evaluator_for(found) for name, found in prepared.items()}
    heads = {name: read_head(HEADS / f"{name}.safetensors") for name in params.measured}
    for name, head in heads.items():
        evaluators[name].check_head(head.classes, prepared[name].classes, name)
    outputs = {name: evaluators[name].outputs(found.classes) for name, found in prepared.items()}
    device, precision = usable(params.evaluation.device, "evaluation.device"), params.evaluation.precision

    def built(folder: Path, count: int | None) -> Network:
        return open_network(params.base.family, folder, outputs=count, device=device, precision=precision)

    by_count = {count: built(BASE, count) for count in dict.fromkeys(outputs.values())}
    networks = {name: by_count[count] for name, count in outputs.items()}
    apart = {name: own for name, found in prepared.items() if (own := found.own) is not None}
    of_own = {
        name: (built(found.folder, outputs[name]), found.on(torch.device(device))) for name, found in apart.items()
    }
    prepared = {name: found.on(networks[name].device) for name, found in prepared.items()}
    batch_size = params.evaluation.batch_size
    return ScoringSetup(open_for_merging(base), networks, evaluators, prepared, heads, batch_size, of_own)
