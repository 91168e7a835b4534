"""SMILE's gates: for each token and linear map, the expert whose right singular vectors its input lies along most.

Legend: N rows (tokens), T tasks, K triples.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.reading import open_for_merging
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.task_models import own_model
from merganser.limits import parse_json, read_small
from merganser.models import Network
from merganser.outputs import replacing
from merganser.overlays import FILE, LowRank, OverlayFile
from merganser.routed import GATES
from merganser.routed.counting import Counts


def chosen(rows: Tensor, experts: Sequence[LowRank | None], k_gate: int) -> Tensor:
    """Return each row's expert (N,), by its number: the largest projection onto the first `k_gate` right vectors.

    A task without an expert comes last, of several with the same norm the first one.
    """
    norms = [
        torch.full((len(rows),), -1.0, device=rows.device)
        if expert is None
        else (rows.float() @ expert.vh[:k_gate].T.to(rows.device, torch.float32)).norm(dim=1)
        for expert in experts
    ]
    return torch.stack(norms, dim=1).argmax(dim=1)


def applied(rows: Tensor, experts: Sequence[LowRank | None], choice: Tensor) -> Tensor | None:
    """Return what each row's own expert makes of it (N, M); None where there are no experts."""
    width = next((expert.u.shape[0] for expert in experts if expert is not None), None)
    if width is None:
        return None
    found = rows.new_zeros(len(rows), width)
    for number, expert in enumerate(experts):
        if expert is not None:
            u, s, vh = (tensor.to(rows.device, rows.dtype) for tensor in (expert.u, expert.s, expert.vh))
            of = choice == number
            found[of] = ((rows[of] @ vh.T) * s) @ u.T
    return found


@contextmanager
def gated(network: Network, merged: Path, head: Head | None = None) -> Iterator[Counts]:
    """While the block runs, add to each linear map's output what each row's expert in a merged model's folder makes.

    The shared model, with a head in place of its own where one is given, is loaded into the network and stays there.
    """
    shared, overlays, k_gate = open_for_merging(merged), OverlayFile(merged / FILE), read_gates(merged)
    model = own_model(shared, None)
    network.load(head.put_on(model) if head else model)
    experts = {name: overlays.low_rank(name) for name in overlays.parameters}
    unknown = sorted(set(experts) - set(network.linear_maps()))
    if unknown:
        reason = f"{unknown[0]} has experts, and is not a linear map of the network"
        raise InputError(f"{merged / FILE}: {reason}; leave it out of parameters.merged, and merge again")
    tokens = Counts(overlays.tasks)

    def extra(name: str, rows: Tensor) -> Tensor | None:
        if name not in experts:
            return None
        choice = chosen(rows, experts[name], k_gate)
        tokens.take(choice)
        return applied(rows, experts[name], choice)

    with network.watch(extra):
        yield tokens


def write_gates(folder: Path, k_gate: int) -> None:
    """Write what the gates of a merge are."""
    with replacing(folder / GATES) as file:
        file.write((json.dumps({"k_gate": k_gate}) + "\n").encode())


def read_gates(folder: Path) -> int:
    """Read how many right singular vectors a gate has."""
    try:
        k_gate = parse_json(read_small(folder / GATES))["k_gate"]
        if type(k_gate) is int and k_gate > 0:
            return k_gate
        raise ValueError(f"k_gate is {k_gate!r}")
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{folder / GATES}: does not say what the gates are ({error}); merge again") from error
