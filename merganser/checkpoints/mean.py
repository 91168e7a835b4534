"""The mean of checkpoints, which replaces a base that is not available."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.companions import copy_companions
from merganser.checkpoints.kinds import is_head
from merganser.checkpoints.matching import with_experts_of
from merganser.checkpoints.reading import written_as
from merganser.checkpoints.tensors import DTYPES, Checkpoint, Spec
from merganser.checkpoints.writing import shards_like, write_model
from merganser.errors import InputError
from merganser.progress import Progress, unwatched, watched


@dataclass(frozen=True)
class MeanCheckpoint(Checkpoint):
    """The mean of models, parameter by parameter; a parameter that only some have is averaged over those.

    Other than floating-point tensors are the first model's. `heads`: patterns of each model's own parameters, left out.
    """

    models: Mapping[str, Checkpoint]
    heads: Sequence[str] = ()

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return each parameter's dtype, the first model's, and shape; raise InputError if shapes differ."""
        specs: dict[str, Spec] = {}
        owners: dict[str, str] = {}
        for model, checkpoint in self.models.items():
            for name in (name for name in checkpoint.names if not is_head(name, self.heads)):
                spec = checkpoint.spec(name)
                first = specs.setdefault(name, spec)
                other = owners.setdefault(name, model)
                if spec.shape != first.shape:
                    shapes = f"shape {list(spec.shape)}, in {other} it has {list(first.shape)}"
                    raise InputError(f"{model}: {name} has {shapes}; only models of one architecture have a mean")
        return specs

    def read(self, name: str) -> Tensor:
        """Read one parameter of every model that has it, one at a time, and average in float64."""
        owners = [model for model in self.models.values() if name in model]
        dtype = DTYPES[self.spec(name).dtype]
        if not dtype.is_floating_point:
            return owners[0].read(name)
        total = torch.zeros(self.spec(name).shape, dtype=torch.float64)
        for model in owners:
            total += model.read(name)
        if not total.isfinite().all():
            self._blame(name, ~total.isfinite())
        return (total / len(owners)).to(dtype)

    def _blame(self, name: str, where: Tensor) -> None:
        """Raise InputError for the first model with non-finite values there, unless all have them, as in a mask."""
        owners = {owner: model for owner, model in self.models.items() if name in model}
        bad = [owner for owner, model in owners.items() if not model.read(name)[where].isfinite().all()]
        if len(bad) < len(owners):
            raise InputError(f"{bad[0]}: {name} holds NaN or infinity; such a checkpoint cannot be merged")


def averageable(model: Checkpoint | Adapter, name: str) -> Checkpoint:
    """Return a model that can be averaged; raise InputError for an adapter."""
    if isinstance(model, Adapter):
        raise InputError(f"{name}: {model.path} is an adapter, and the mean needs whole models; give the base")
    return model


def mean_model(models: Mapping[str, Checkpoint | Adapter], heads: Sequence[str] = ()) -> MeanCheckpoint:
    """Return the mean of models, in the order of their names; experts have the first model's layout.

    Raises InputError for an adapter.
    """
    opened = {name: averageable(models[name], name) for name in sorted(models)}
    first = next(iter(opened.values()), None)
    return MeanCheckpoint({name: with_experts_of(first or model, model) for name, model in opened.items()}, heads)


def write_mean(
    models: Mapping[str, Path],
    folder: Path,
    heads: Sequence[str] = (),
    progress: Progress = unwatched,
    modules: Sequence[str] = (),
) -> None:
    """Write the mean of models into a folder, with the first model's shards and the files next to its weights.

    The order is that of the models' names. Parameters that match `heads` are left out. `modules`: those that all
    models have.
    """
    ordered = {name: models[name] for name in sorted(models)}
    mean = mean_model({name: open_model(path, modules) for name, path in ordered.items()}, heads)
    first = next(iter(ordered))
    files = shards_like(mean.models[first])
    last = max(files.values(), default="")
    shards = {name: files.get(name, last) for name in mean.names} if files else {}
    total = sum(spec.nbytes for spec in mean.specs.values())
    tensors = ((name, mean.read(name)) for name in mean.names)
    shown = watched(tensors, lambda one: mean.specs[one[0]].nbytes, total, "mean of the models", progress)
    write_model(folder, mean.specs, shown, shards, written_as(mean.models[first]))
    copy_companions(ordered[first], folder, modules)
