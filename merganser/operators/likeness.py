"""How alike tasks are by what they are about: shares in which one borrows from the others (DTS, equation 8)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from merganser.errors import InputError


def similarities(task: str, embeddings: Mapping[str, Tensor]) -> dict[str, float]:
    """Return each other task's share in the cosine similarities to this one's embedding (equation 8).

    A task that is alone is its own. Raises InputError when the similarities do not add up to something positive.
    """
    others = [other for other in embeddings if other != task]
    if not others:
        return {task: 1.0}
    stacked = torch.nn.functional.normalize(torch.stack([embeddings[name].double() for name in [task, *others]]), dim=1)
    cosines = [float(cosine) for cosine in (stacked[1:] @ stacked[0]).cpu()]
    if sum(cosines) <= 0:
        reason = "are unlike those of all other tasks: their cosine similarities do not add up to a positive number"
        raise InputError(f"{task}: its class names {reason}; give it other class names, or leave the task out")
    return {other: cosine / sum(cosines) for other, cosine in zip(others, cosines, strict=True)}
