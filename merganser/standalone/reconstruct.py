"""Write a task's own model or its adapter from a merge with parts per task, and a merge of adapters as one adapter."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from merganser.at_run_time import addition_of
from merganser.checkpoints.adapters.binding import Adapted, bind
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.adapters.writing import WEIGHT, write_adapter
from merganser.checkpoints.companions import check_model, copy_companions, modules_in
from merganser.checkpoints.kinds import ParameterRules, as_matrix, is_merged, without
from merganser.checkpoints.matching import matched, with_experts_of
from merganser.checkpoints.reading import open_checkpoint, open_for_merging, written_as
from merganser.checkpoints.tensors import DTYPES, NAMES_OF_DTYPES, Checkpoint, Spec, tensor_name
from merganser.checkpoints.views import View, stored_specs, unstacked
from merganser.checkpoints.vocabulary.writing import write_like
from merganser.checkpoints.writing import OutputFormat, shards_like, write_model
from merganser.config.recipes import RECIPE, Recipe, check_unchanged, path_of, read_recipe
from merganser.errors import InputError, did_you_mean
from merganser.outputs import new_folder, new_output
from merganser.overlays import FILE, LowRank, OverlayFile, open_overlays, task_model, write_task_model
from merganser.sources.installing import gguf_in

SINGLE = ".safetensors"
ROUNDINGS = 4  # of the merged weights to their dtype: what a sum of low-rank updates may differ from the merge


@dataclass(frozen=True)
class Own:
    """The parameters of a task's model that were not merged, such as its head, and its names for merged ones."""

    folder: Path | None  # with its configuration; None of an adapter, which has the base's
    model: Checkpoint
    names: Mapping[str, str]  # of the merged parameters, in the task's model by those in the merge
    rest: Mapping[str, Spec]  # of its other parameters, as they are written
    output: OutputFormat


def write_model_of(merged: Path, task: str, out: Path) -> list[str]:
    """Write a task's own model, as a folder or as one safetensors file; return notes for the user.

    A folder also has the model's parameters that were not merged, such as its head, and its configuration, if the
    merge's recipe names the model.
    """
    check_model(merged)
    modules = modules_in(opened_parts(merged, task).parameters)
    if out.suffix == SINGLE:
        with new_output(out) as place:
            write_task_model(merged, task, place)
        return []
    with tempfile.TemporaryDirectory(prefix="merganser-") as made, new_folder(out) as folder:
        own = _own(merged, task, modules, Path(made))
        copy_companions(merged, folder, modules)
        if addition := addition_of(folder):  # what runs in one task's model is its parameters
            (folder / addition.FILE).unlink()
        _write_weights(merged, task, own, folder, modules)
        if own is not None:
            if own.folder:
                copy_companions(own.folder, folder, modules)
            own.output.declare(folder)
    return [] if own else [f"{out}: unmerged weights, such as a head, and the configuration come from the base"]


def opened_parts(merged: Path, task: str) -> OverlayFile:
    """Open the parts of a merge; raise InputError if it has none, none of this task, or is no model with parts."""
    overlays = open_overlays(merged)
    if overlays is None:
        if addition := addition_of(merged):
            reason = f"{addition.FILE} has for {task} {addition.HOLDS}"
            raise InputError(f"{merged}: {reason}; take its model.safetensors, and run it as its card says")
        open_checkpoint(merged)  # refuses what is not a model at all
        raise InputError(f"{merged}: has no {FILE}: it is one model for all tasks, {task} included")
    if task not in overlays.tasks:
        known = f"it has {', '.join(overlays.tasks)}{did_you_mean(task, overlays.tasks)}"
        raise InputError(f"{merged / FILE}: no parts for the task {task!r}; {known}")
    return overlays


def _write_weights(merged: Path, task: str, own: Own | None, folder: Path, modules: Sequence[str]) -> None:
    shared = open_checkpoint(merged, modules)
    specs, tensors = stored_specs(shared), task_model(merged, task, modules=modules)
    shards, stem = shards_like(shared), written_as(shared)
    if own is None:
        write_model(folder, specs, tensors, shards, stem)
        return
    names, last = own.names, max(shards.values(), default="")
    specs = {names[name]: spec for name, spec in specs.items() if name in names} | dict(own.rest)
    files = {names[name]: file for name, file in shards.items() if name in names}
    write_model(folder, specs, _tensors(tensors, own), {n: files.get(n, last) for n in specs if shards}, stem)


def _tensors(merged: Iterator[tuple[str, Tensor]], own: Own) -> Iterator[tuple[str, Tensor]]:
    """Yield the merged parameters with the task's part, then the rest of the task's model."""
    for name, tensor in merged:
        if name in own.names:
            yield own.names[name], tensor
    for name, spec in own.rest.items():
        yield name, own.model.read(name).to(DTYPES[spec.dtype])


def _own(merged: Path, task: str, modules: Sequence[str], made: Path) -> Own | None:
    """Open the task's model in the merge's recipe; None if there is no recipe, or the model does not fit.

    `made`: a folder for the model in the merge's vocabulary, if rows were matched by token.
    """
    file = merged / RECIPE
    recipe = read_recipe(file) if file.is_file() else None
    source = recipe.models.get(task) if recipe else None
    if recipe is None or source is None:
        return None
    path = path_of(source, merged)
    if not path.exists():
        remedy = f"put it back, or name a file by --out NAME{SINGLE}, which has only the merge's files"
        raise InputError(f"{file}: models.{task}: {path} is not there any more; {remedy}")
    check_model(path)
    check_unchanged(file, f"models.{task}", source, path, copied=recipe.choice is not None)
    if gguf_in(path) is not None:  # its tensors have llama.cpp's names
        return None
    if recipe.tokenizer:
        path = write_like(merged, recipe.rows, task, path, made)
    model, shared = open_model(path, modules), open_checkpoint(merged, modules)
    taken = [name for name in shared.names if is_merged(name, shared.spec(name).dtype, recipe.rules)]
    if isinstance(model, Adapter):
        return _of_adapter(model, shared, taken, task, recipe.output)
    model = with_experts_of(unstacked(shared), model)
    view = matched(shared, model, recipe.rules, task)
    assert isinstance(view, View)
    pairs = sorted(((name, tensor_name(view.stored[name])) for name in taken), key=lambda pair: pair[0] == pair[1])
    once = {stored: name for name, stored in pairs}  # of what the task ties and the base does not, under its own name
    names = {name: stored for stored, name in once.items()}
    others = [name for name in model.names if name not in set(names.values())]
    dtypes = {name: NAMES_OF_DTYPES[recipe.output.dtype_of(model.spec(name).dtype)] for name in others}
    rest = {name: replace(model.spec(name), dtype=dtype) for name, dtype in dtypes.items()}
    return Own(path, model, names, rest, recipe.output)


def _of_adapter(adapter: Adapter, shared: Checkpoint, taken: list[str], task: str, output: OutputFormat) -> Own | None:
    """Add an adapter's own parameters, such as a head trained with it, to the shared model."""
    try:
        whole = Adapted(shared, bind(adapter, shared, ParameterRules(), task))
    except InputError:  # a head that the base lacks
        return None
    rest = {name: shared.spec(name) for name in shared.names if name not in set(taken)}
    return Own(None, whole, {name: name for name in taken}, rest, output)


def write_adapter_of(merged: Path, task: str, out: Path) -> None:
    """Write a task's parts as an adapter in PEFT's format, to load onto the shared model.

    Raises InputError if a part is not low-rank, or PEFT has no adapter for its parameter.
    """
    check_model(merged)
    overlays, shared = opened_parts(merged, task), open_for_merging(merged)
    place = overlays.tasks.index(task)
    held = [name for name in overlays.parameters if overlays.kind(name) == LowRank.kind and name.endswith(WEIGHT)]
    whole = [name for name in overlays.parameters if name not in set(held) and _adds(overlays, shared, task, name)]
    if whole:
        more = f" (and {len(whole) - 1} more)" if len(whole) > 1 else ""
        kind = f"the part of {whole[0]}{more} is {overlays.kind(whole[0])}"
        remedy = f"{without(whole, overlays.parameters, ParameterRules(flags=True))}, or reconstruct the whole model"
        raise InputError(f"{merged}: {kind}, and an adapter holds low-rank updates of weights alone; {remedy}")
    parts = {name: part for name in held if (part := overlays.low_rank(name)[place]) is not None and len(part.s)}
    if not parts:
        raise InputError(f"{merged}: {task} adds nothing to the shared model, so there is no adapter to write")
    turned = {name in shared.transposed for name in parts}
    if len(turned) > 1:
        raise InputError(f"{merged}: some maps are stored as in x out, others not; PEFT has no adapter for both")
    updates = {name: (part.u.float() * part.s, part.vh.float()) for name, part in parts.items()}
    with new_folder(out) as folder:
        write_adapter(folder, updates, {name: shared.spec(name).shape for name in parts}, turned.pop(), str(merged))


def _adds(overlays: OverlayFile, shared: Checkpoint, task: str, name: str) -> bool:
    delta = overlays.delta(task, name, shared.spec(name).shape)
    return delta is not None and bool(delta.any())


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
