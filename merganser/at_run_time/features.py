"""The features of all of a task's prepared examples. Legend: N examples, D features."""

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.models import Network, TakesImages, TakesTexts


def features_of(network: Network, prepared: Prepared, batch_size: int) -> Tensor:
    """Return what the head of a loaded network sees of each example, in float32 on the CPU: (N, D)."""
    if not len(prepared):
        raise InputError(f"{prepared.folder}: no examples; name another split under validation")
    names = list(network.tokenizer.model_input_names) if isinstance(network, TakesTexts) else []
    names = ["pixels"] if isinstance(network, TakesImages) else names
    batches = prepared.on(network.device).batches(names, batch_size)
    return torch.cat([network.features(batch).float().cpu() for batch in batches])
