"""WEMoE's block routers at evaluation: in each MLP, they decide how much of each task an example gets."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.at_run_time import Counts, Running, Section
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerSource
from merganser.inputs.task_models import own_model
from merganser.limits import parse_json
from merganser.models import Network
from merganser.models.linear_maps import WithBlocks
from merganser.operators.weight_ensembling import BlockRouter, blend, routers_of
from merganser.overlays import FILE as OVERLAYS
from merganser.overlays import OverlayFile

FILE = "block_routers.safetensors"
HOLDS = "how much of each task's part an example takes, block by block"
TRAINED: Section | None = None
TASK_GIVEN = False


@contextmanager
def put_in(network: Network, merged: Path, task: str, head: Head) -> Iterator[Running]:
    """Load the shared model; in the block, mix the tasks' vectors in each MLP by its router's weights.

    The chosen task is each example's task of the largest weight, block by block.
    """
    shared, overlays = open_for_merging(merged), OverlayFile(merged / OVERLAYS)
    routers = read_block_routers(merged, overlays.tasks)
    network.load(head.put_on(own_model(shared, None)))
    if not isinstance(network, WithBlocks) or not set(routers) <= set(network.blocks()):
        raise InputError(f"{merged / FILE}: its blocks are none of the network's; merge again")
    device, dtype = network.device, next(network.module.parameters()).dtype
    vectors = {}
    for name in overlays.parameters:
        shape = tuple(shared.spec(name).shape)
        deltas = [overlays.delta(task, name, shape) for task in overlays.tasks]
        vectors[name] = torch.stack([torch.zeros(shape) if x is None else x for x in deltas]).to(device, dtype)
    here = {block: BlockRouter(*(value.to(device) for value in router)) for block, router in routers.items()}
    counts = Counts(overlays.tasks)
    with network.blending(blend(here, vectors, lambda weights: counts.take(weights.argmax(dim=1)))):
        yield Running(network, counts)


def write(folder: Path, values: Mapping[str, Any], source: LayerSource, read: Path) -> None:
    """Write the learned routers of a merge."""
    assert source.table.learned is not None, "a method with such routers is registered with a learner"
    write_block_routers(folder, source.table.learned.values, source.tasks)


def write_block_routers(folder: Path, values: Mapping[str, Tensor], tasks: tuple[str, ...]) -> None:
    """Write the routers of a merge."""
    save_tensors(folder / FILE, values, json.dumps({"tasks": tasks}))


def read_block_routers(folder: Path, tasks: tuple[str, ...]) -> dict[str, BlockRouter]:
    """Read the routers of a merge of these tasks, by their blocks."""
    file = SafetensorsFile(folder / FILE)
    try:
        routers = routers_of({name: file.read(name) for name in file.names})
        of = parse_json(file.metadata["merganser"])["tasks"]
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{file.path}: not the routers of blocks ({error}); merge again") from error
    if list(of) != list(tasks) or any(router.out.shape[:1] != (len(tasks),) for router in routers.values()):
        raise InputError(f"{file.path}: its tasks are not those of {OVERLAYS}; merge again")
    return routers
