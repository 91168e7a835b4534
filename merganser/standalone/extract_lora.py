"""Extract the difference between a fine-tuned model and its base as a LoRA adapter in PEFT's format.

Each matrix's delta is truncated to a rank, its best approximation (Eckart and Young, 1936). Norms, embeddings and heads
have no low-rank part: they are saved whole on request, and listed otherwise. Shape legend: M rows, N columns, Q rank of
a layer's update.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.adapters.writing import BIAS, WEIGHT, write_adapter
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.architecture import CONFIG, architecture_of, read_config
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.kinds import HEADS, ParameterRules, is_head, is_merged
from merganser.checkpoints.known_models import modules_of, todays_names
from merganser.checkpoints.matching import matched
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import in_file
from merganser.config.recipes import Source, path_of
from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas
from merganser.inputs.model_deltas import ModelDeltas, open_models
from merganser.linalg.svd import compact
from merganser.models.sequence_classifier import HEAD_NAMES
from merganser.outputs import new_folder
from merganser.progress import Progress, unwatched, watched
from merganser.workers import map_in_order, one_blas_thread

MODEL = "the model"


@dataclass(frozen=True)
class Cut:
    """The truncation of deltas: at most `rank` singular values, or the fewest with the share `energy`.

    `energy`: of the sum of their squares, which is the squared Frobenius norm of the delta.
    """

    rank: int | None = None
    energy: float | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.energy is None):
            raise InputError("--rank, --energy: give one of the two")
        if self.energy is not None and not 0 < self.energy <= 1:
            raise InputError(f"--energy: must be above 0 and at most 1, got {self.energy:g}")

    def factors(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return left (M, Q) and right (Q, N) in float32 whose product is closest to a delta (M, N)."""
        u, s, vh = compact(delta, self.rank)
        count = len(s)
        if self.energy is not None:
            squares = s.square().cumsum(0)
            count = int((squares < self.energy * squares[-1:]).sum()) + 1
        root = s[:count].sqrt()
        return (u[:, :count] * root).float(), (root.unsqueeze(1) * vh[:count]).float()


@dataclass(frozen=True)
class LayerError:
    """An adapter's version of a parameter: the `rank` of its update, None if it is whole, 0 if it has none.

    `norm`, `error`: Frobenius norms of the delta, and of its difference from the adapter's; 0 for a new head.
    """

    name: str
    rank: int | None
    norm: float
    error: float


@dataclass(frozen=True)
class ExtractedParameter:
    """An adapter's version of one parameter: factors of its delta, or its own values."""

    report: LayerError
    factors: tuple[Tensor, Tensor] | None = None
    whole: Tensor | None = None


def extract_adapter(
    model: Source,
    base: Source,
    out: Path,
    cut: Cut,
    *,
    rules: ParameterRules,
    saved: Sequence[str] = (),
    biases: bool = False,
    threads: int = 1,
    progress: Progress = unwatched,
) -> tuple[list[LayerError], list[str]]:
    """Write a fine-tuned model's difference from its base as an adapter; return each layer's error, and notes.

    `saved`: patterns of the parameters whose modules are saved whole (`modules_to_save`), `biases`: whether biases are.
    Raises InputError where the models do not belong together, and where nothing is left to write.
    """
    start, path = path_of(base, Path()), path_of(model, Path())
    for each in (start, path):
        check_model(each)
    tuned = open_model(path)
    if isinstance(tuned, Adapter):
        raise InputError(f"{path}: is an adapter already")
    checkpoint = open_for_merging(start)
    heads = _own_heads(checkpoint, tuned, rules, saved, path)
    rules = replace(rules, heads=(*rules.heads, *heads))
    notes = Agreement(start, rules).check(MODEL, path, (checkpoint, tuned))
    deltas = open_models(checkpoint, {MODEL: tuned}, rules)
    built = path if heads else start  # the adapter is loaded onto a model that has the head
    config = read_config(_folder_of(built) / CONFIG) or {}
    names = {name: name for name in deltas.names} | todays_names(config, checkpoint.names)
    there = modules_of(config)
    modules = _modules({name: names[name] for name in deltas.names} | {name: name for name in heads}, saved)
    inside = tuple(f"{module}." for module in modules)

    def keep(name: str) -> ExtractedParameter:
        today = names[name]
        is_loaded = there is None or today.rpartition(".")[0] in there
        return _kept(deltas, cut, today.startswith(inside) or (biases and name.endswith(BIAS)), is_loaded, name)

    sizes = {name: prod(shape) for name, shape in deltas.shapes.items()}
    with one_blas_thread():
        results = map_in_order(keep, deltas.names, threads, lambda name: 16 * sizes[name])
        kept = list(watched(results, lambda each: sizes[each.report.name], sum(sizes.values()), "factors", progress))
    changed = [each for each in kept if each.report.norm]
    factors = {each.report.name: each.factors for each in changed if each.factors}
    whole = {each.report.name: each.whole for each in kept if each.whole is not None}
    turned = {name in checkpoint.transposed for name in factors}
    if len(turned) != 1:
        raise InputError(f"{path}: no linear map differs from the base's, or maps of both orientations; PEFT has none")
    with new_folder(out) as folder:
        shapes = {names[name]: checkpoint.spec(name).shape for name in factors}
        updates = {names[name]: pair for name, pair in factors.items()}
        stored = {names.get(name, name): tensor for name, tensor in in_file(checkpoint, whole.items())}
        stored |= {name: tuned.read(name) for name in heads}
        second = {alias: stored[first] for alias, first in _second_names(_folder_of(start)).items() if first in stored}
        write_adapter(folder, updates, shapes, turned.pop(), base.hub or str(start), modules, stored, second)
    return [*(each.report for each in changed), *(LayerError(name, None, 0.0, 0.0) for name in heads)], notes


def _folder_of(model: Path) -> Path:
    return model if model.is_dir() else model.parent


def _own_heads(
    base: Checkpoint, tuned: Checkpoint, rules: ParameterRules, saved: Sequence[str], path: Path
) -> list[str]:
    """List parameters of a model's head that the base lacks, or has in another shape; they are saved whole.

    Raises InputError for one that is neither saved nor left out.
    """
    named = matched(base, tuned, rules, MODEL)
    other = [name for name in named.names if name not in base or named.spec(name).shape != base.spec(name).shape]
    own = [name for name in other if name in tuned and is_merged(name, tuned.spec(name).dtype, rules)]
    heads = [name for name in own if is_head(name, (*HEADS, *HEAD_NAMES))]
    if unsaved := [name for name in heads if not is_head(name, saved)]:
        has = "in another shape" if unsaved[0] in base else "not"
        pattern = f"{unsaved[0].split('.')[0]}.*"
        remedy = f"save it whole: --modules-to-save '{pattern}', or leave it out: --except '{pattern}'"
        raise InputError(f"{path}: the base has its head's {unsaved[0]} {has}; {remedy}")
    return [name for name in own if is_head(name, saved)]


def _second_names(folder: Path) -> dict[str, str]:
    """List the parameters that a model's transformers class ties to another one, with that one's name."""
    config = read_config(folder / CONFIG) or {}
    if not architecture_of(folder).tied:
        return {}
    import transformers

    named = config.get("architectures")
    model_class = getattr(transformers, str(named[0]) if isinstance(named, list) and named else "", None)
    keys = getattr(model_class, "_tied_weights_keys", None)
    return keys if isinstance(keys, dict) else {}


def _modules(names: Mapping[str, str], saved: Sequence[str]) -> list[str]:
    """List the modules of parameters that are saved whole: PEFT saves whole modules.

    `names`: today's name of each parameter.
    """
    chosen = {today.rpartition(".")[0] for name, today in names.items() if is_head(name, saved)} - {""}
    return sorted(module for module in chosen if not module.startswith(tuple(f"{other}." for other in chosen)))


def _kept(deltas: ModelDeltas, cut: Cut, is_whole: bool, is_loaded: bool, name: str) -> ExtractedParameter:
    """Read a parameter's delta and return the adapter's version of it.

    `is_whole`: it should be saved whole. `is_loaded`: PEFT finds its module, unlike those of experts that the
    installed transformers stacks in one tensor.
    """
    layer, tuned = deltas.layer(name), deltas.models[MODEL]
    assert isinstance(layer, LayerDeltas)
    assert isinstance(tuned, Checkpoint)
    delta = layer.deltas[0]
    norm = float(delta.double().norm())
    if not is_loaded:
        return ExtractedParameter(LayerError(name, 0, norm, norm))
    if is_whole:
        return ExtractedParameter(LayerError(name, None, norm, 0.0), whole=tuned.read(name))
    if norm and deltas.kinds[name] == "matrix" and name.endswith(WEIGHT):
        left, right = cut.factors(delta)
        error = float((delta.double() - left.double() @ right.double()).norm())
        return ExtractedParameter(LayerError(name, left.shape[1], norm, error), (left, right))
    return ExtractedParameter(LayerError(name, 0, norm, norm))
