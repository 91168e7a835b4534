"""Write a merge of adapters as one adapter in PEFT's format."""

from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.binding import bind
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.adapters.writing import WEIGHT, write_adapter
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.kinds import as_matrix
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import Checkpoint
from merganser.config.recipes import RECIPE, Recipe, check_unchanged, path_of, read_recipe
from merganser.errors import InputError
from merganser.outputs import new_folder

ROUNDINGS = 4  # of the merged weights to their dtype: what a sum of low-rank updates may differ from the merge


def write_merged_adapter(merged: Path, out: Path) -> None:
    """Write the change of a merge of adapters as one adapter, of at most the sum of their ranks.

    Raises InputError if other models were merged, or if its rank is higher, as with trimmed entries.
    """
    check_model(merged)
    file = merged / RECIPE
    if not file.is_file():
        raise InputError(f"{merged}: has no {RECIPE}, which lists the merged models; name a task by --task")
    recipe = read_recipe(file)
    if recipe.base is None:
        raise InputError(f"{file}: the merge has no base to load an adapter onto")
    if recipe.tokenizer:
        raise InputError(f"{file}: the merge has its own tokens (tokenizer: {recipe.tokenizer}); load it itself")
    path = path_of(recipe.base, merged)
    check_model(path)
    check_unchanged(file, "base", recipe.base, path, copied=True)
    base, result = open_for_merging(path), open_for_merging(merged)
    ranks = _ranks(file, recipe, base)
    updates = {name: update for name, rank in ranks.items() if (update := _update(base, result, name, rank, merged))}
    turned = {name in base.transposed for name in updates}
    if len(turned) != 1:
        raise InputError(f"{merged}: no maps that an adapter changes, or of both orientations; PEFT has none of these")
    with new_folder(out) as folder:
        shapes = {name: base.spec(name).shape for name in updates}
        write_adapter(folder, updates, shapes, turned.pop(), recipe.base.hub or str(path))


def _ranks(file: Path, recipe: Recipe, base: Checkpoint) -> dict[str, int]:
    """Return the sum of the adapters' ranks for each merged parameter that they change."""
    ranks: dict[str, int] = {}
    for task, source in recipe.models.items():
        path = path_of(source, file.parent)
        check_model(path)
        model = open_model(path)
        if not isinstance(model, Adapter):
            raise InputError(f"{file}: {task} is not an adapter, so the merge is not one; load the merged model itself")
        bound = bind(model, base, recipe.rules, task)
        for name in bound.updates:
            if not (bound.is_low_rank(name) and name.endswith(WEIGHT)):
                raise InputError(f"{task}: {name} has no low-rank update; merge without it: --except '{name}'")
            ranks[name] = ranks.get(name, 0) + len(bound.factors(name)[1])
    return ranks


def _update(base: Checkpoint, merged: Checkpoint, name: str, rank: int, where: Path) -> tuple[Tensor, Tensor] | None:
    """Return the factors of a parameter's change; None if it did not change."""
    weights = merged.read(name)
    delta = as_matrix(weights.float() - base.read(name).float())
    if not delta.any():
        return None
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    allowed = ROUNDINGS * torch.finfo(weights.dtype).eps * weights.float().norm()
    if s[rank:].norm() > allowed:
        reason = f"the change of {name} has a higher rank than all adapters together, {rank}"
        raise InputError(f"{where}: {reason}; load the merged model itself")
    kept = min(rank, len(s))
    return u[:, :kept] * s[:kept], vh[:kept]
