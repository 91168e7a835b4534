"""SMILE's gates: for each token and linear map, the expert whose right singular vectors best match the input.

They only store the number of those vectors. Legend: N rows (tokens), T tasks, K triples.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.at_run_time import Counts, Running, Section
from merganser.checkpoints.kinds import bias_of
from merganser.checkpoints.reading import Checkpoint, open_checkpoint, open_for_merging
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerSource
from merganser.inputs.task_models import own_model
from merganser.limits import parse_json, read_small
from merganser.models import Network
from merganser.outputs import replacing
from merganser.overlays import FILE as OVERLAYS
from merganser.overlays import LowRank, OverlayFile

FILE = "gates.json"
HOLDS = "how each token's expert is chosen"
TRAINED: Section | None = None
TASK_GIVEN = False


def chosen(rows: Tensor, experts: Sequence[LowRank | None], k_gate: int) -> Tensor:
    """Return the number of each row's expert (N,): the largest projection onto its first `k_gate` right vectors.

    A task without an expert comes last; of several with the same norm the first one is chosen.
    """
    norms = [
        torch.full((len(rows),), -1.0, device=rows.device)
        if expert is None
        else (rows.float() @ expert.vh[:k_gate].T.to(rows.device, torch.float32)).norm(dim=1)
        for expert in experts
    ]
    return torch.stack(norms, dim=1).argmax(dim=1)


def applied(rows: Tensor, experts: Sequence[LowRank | None], choice: Tensor) -> Tensor | None:
    """Return the output of each row's own expert (N, M); None without experts."""
    width = next((expert.u.shape[0] for expert in experts if expert is not None), None)
    if width is None:
        return None
    outputs = rows.new_zeros(len(rows), width)
    for number, expert in enumerate(experts):
        if expert is not None:
            u, s, vh = (tensor.to(rows.device, rows.dtype) for tensor in (expert.u, expert.s, expert.vh))
            of = choice == number
            outputs[of] = ((rows[of] @ vh.T) * s) @ u.T
    return outputs


@contextmanager
def put_in(network: Network, merged: Path, task: str, head: Head) -> Iterator[Running]:
    """Load the shared model; in the block, add the output of each row's expert to each linear map's output.

    That is the product of the expert's matrix with the row, plus its bias.
    """
    overlays, k_gate = OverlayFile(merged / OVERLAYS), read_gates(merged)
    network.load(head.put_on(own_model(open_for_merging(merged), None)))
    experts = {name: overlays.low_rank(name) for name in overlays.parameters if overlays.kind(name) == LowRank.kind}
    biases = _biases(overlays, experts, open_checkpoint(merged))
    unknown = sorted(set(experts) - set(network.linear_maps()))
    if unknown:
        reason = f"{unknown[0]} has experts, and is not a linear map of the network"
        raise InputError(f"{merged / OVERLAYS}: {reason}; leave it out of parameters.merged, and merge again")
    tokens = Counts(overlays.tasks)

    def extra(name: str, rows: Tensor) -> Tensor | None:
        if name not in experts:
            return None
        choice = chosen(rows, experts[name], k_gate)
        tokens.take(choice)
        change = applied(rows, experts[name], choice)
        return change if change is None or name not in biases else change + biases[name].to(change)[choice]

    with _without_padding(network), network.watch(extra):
        yield Running(network, tokens)


@contextmanager
def _without_padding(network: Network) -> Iterator[None]:
    """In the block, score texts of one length together: padding would be counted as tokens."""
    if getattr(network, "batching", None) != "padded":
        yield
        return
    network.batching = "equal"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        network.batching = "padded"  # type: ignore[attr-defined]


def _biases(overlays: OverlayFile, maps: Iterable[str], shared: Checkpoint) -> dict[str, Tensor]:
    """Read the tasks' additions (T, M) to the biases of linear maps, by the maps' names."""
    stacked = {}
    for name in (name for name in maps if bias_of(name) in overlays.parameters):
        shape = shared.spec(bias_of(name)).shape
        own = [overlays.delta(task, bias_of(name), shape) for task in overlays.tasks]
        stacked[name] = torch.stack([torch.zeros(shape) if each is None else each for each in own])
    return stacked


def write(folder: Path, values: Mapping[str, Any], source: LayerSource, read: Path) -> None:
    """Write the settings of a merge's gates.

    Raises InputError for a merge without experts, which would be the base, and for gates whose choice is only
    rounding.
    """
    overlays = OverlayFile(folder / OVERLAYS)
    experts = [name for name in overlays.parameters if overlays.kind(name) == LowRank.kind]
    if not experts:
        what = "no task changes a linear map that is merged, and smile has experts of linear maps alone"
        raise InputError(f"{what}; remove the entry, or see parameters.merged and parameters.matrices")
    for name in experts if len(overlays.tasks) > 1 else ():
        inputs = source.shapes[name][1]
        if inputs <= values["k_gate"] and any(part and len(part.s) == inputs for part in overlays.low_rank(name)):
            fix = f"give k_gate at most {inputs - 1}, or leave the map out of parameters.merged"
            raise InputError(f"k_gate: {name} has {inputs} inputs, all of which its gate reads: the experts tie; {fix}")
    with replacing(folder / FILE) as file:
        file.write((json.dumps({"k_gate": values["k_gate"]}) + "\n").encode())


def read_gates(folder: Path) -> int:
    """Read the number of a gate's right singular vectors."""
    try:
        k_gate = parse_json(read_small(folder / FILE))["k_gate"]
        if type(k_gate) is int and k_gate > 0:
            return k_gate
        raise ValueError(f"k_gate is {k_gate!r}")
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{folder / FILE}: does not describe the gates ({error}); merge again") from error
