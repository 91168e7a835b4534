"""The features of all of a task's prepared examples. Legend: N examples, D features."""

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.models import Network
from merganser.statistics.sampling import inputs_of


def features_of(network: Network, prepared: Prepared, batch_size: int) -> Tensor:
    """Return what the head of a loaded network sees of each example, in float32 on the CPU: (N, D)."""
    if not len(prepared):
        raise InputError(f"{prepared.folder}: no examples; name another split under validation")
    batches = prepared.on(network.device).batches(inputs_of(network, prepared), batch_size)
    return torch.cat([network.features(batch).float().cpu() for batch in batches])
