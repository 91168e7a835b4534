"""An adapter's tensors, and the role of each in the model that it was trained on.

Some are factors or plain values; PEFT computes with the others; some are rows of an embedding for trained tokens
(PEFT's trainable tokens). Shape legend: M rows, N columns, Q rank of the adapter.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.adapters.by_peft import ROOT, ByPeft
from merganser.checkpoints.adapters.peft_settings import PeftKind, peft_kind, refuse_unmergeable, wrapping_of
from merganser.checkpoints.adapters.settings import REMEDY, Settings, is_plain, read_adapter_config, read_settings
from merganser.checkpoints.reading import ADAPTER_CONFIG, ADAPTER_FILES, open_checkpoint
from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError

INSIDE = ".base_layer"  # of a module that PEFT has put something around


@dataclass(frozen=True)
class Computed:
    """A module's parameter that PEFT computes, or one matrix of a stack, by its name in training."""

    module: str
    parameter: str
    place: int | None = None
    optional: bool = False  # a module need not have it

    def of(self, peft: ByPeft, transposed: bool) -> Tensor:
        """Return the update, in the base's orientation."""
        delta = peft.delta(self.module, self.parameter)
        shown = delta if self.place is None else delta[self.place]
        return shown.mT.contiguous() if transposed else shown


def computed_of(
    path: Path, kind: PeftKind, names: Sequence[str], wrapped_alone: bool
) -> tuple[dict[str, Computed], dict[str, str]]:
    """Return the parameters that PEFT computes, and the tensors that it needs for them, by module.

    `wrapped_alone`: for low-rank updates, only those on parameters; the others are read without PEFT.
    """
    computed: dict[str, Computed] = {}
    keys: dict[str, str] = {}
    pattern = re.compile(rf"(?P<module>.+?)(\{INSIDE})*\.{re.escape(kind.prefix)}.+")
    for key in names:
        match = pattern.fullmatch(key.removeprefix(ROOT)) if key.startswith(ROOT) else None
        if match is None:
            keys |= {} if key.startswith(ROOT) else {key: ""}
            continue
        module = match["module"]
        wrapped = kind.wrapping.parameters(module)
        if wrapped_alone and not wrapped:
            continue
        _check(path, kind, module, bool(wrapped))
        keys[key] = module
        for own in wrapped or kind.parameters:
            computed[f"{module}.{own}"] = Computed(module, own, optional=bool(wrapped) or own != kind.parameters[0])
    if not computed and not wrapped_alone:
        raise InputError(f"{path}: none of its tensors is of a layer; {REMEDY}")
    kind.check_targets(path, {each.module for each in computed.values() if not kind.wrapping.parameters(each.module)})
    return computed, keys


def _check(path: Path, kind: PeftKind, module: str, is_wrapped: bool) -> None:
    """Raise InputError for a module that PEFT would not adapt."""
    if is_wrapped and kind.wrapping.is_listed(module):
        raise InputError(f"{path}: target_modules and target_parameters both name {module}, which PEFT refuses")
    if f"{INSIDE}." in module:
        attention = f"{module.split(INSIDE)[0]} is an nn.MultiheadAttention"
        raise InputError(f"{path}: {attention}; only plain low-rank updates are read; {REMEDY}")


TOKENS = "TRAINABLE_TOKENS"
FIELDS = ("token_indices", "trainable_token_indices")  # of an adapter of that kind, and of one of another kind
ENDS = (".token_adapter.trainable_tokens_delta", ".trainable_tokens_delta")
LARGEST = 2**40


@dataclass(frozen=True)
class Tokens:
    """The trained rows of some tokens: their values and numbers."""

    name: str  # of the parameter
    key: str  # of the tensor with the values
    rows: tuple[int, ...]

    def put(self, delta: Tensor, values: Tensor, weights: Tensor) -> None:
        """Write the difference of these rows into a parameter's delta."""
        if values.shape[1:] != weights.shape[1:] or max(self.rows) >= len(weights):
            shapes = f"shape {list(values.shape)}, for {list(weights.shape)}"
            raise InputError(f"{self.name}: the rows of trained tokens have {shapes}; give the base it was trained on")
        rows = torch.tensor(self.rows)
        delta[rows] = values.to(torch.float32) - weights[rows].to(torch.float32)


def find_token_rows(path: Path, tensors: Checkpoint, config: Mapping[str, Any]) -> dict[str, Tokens]:
    """Find the tensors with rows of tokens; raise InputError if the configuration does not fit them."""
    token_rows = {}
    for key in tensors.names:
        end = next((end for end in ENDS if key.endswith(end)), None)
        if end is None:
            continue
        module = key.removeprefix(ROOT).removesuffix(end)
        rows, shape = _rows(path, config, module), tensors.spec(key).shape
        if len(shape) != 2 or len(rows) != shape[0]:
            raise InputError(f"{path}: {key} has shape {list(shape)}, for {len(rows)} tokens; save the adapter again")
        token_rows[key] = Tokens(f"{module}.weight", key, rows)
    named = [field for field in FIELDS if config.get(field)]
    if named and not token_rows:
        raise InputError(f"{path}: {named[0]} names tokens, and none of them is in it; save the adapter again")
    return token_rows


def _rows(path: Path, config: Mapping[str, Any], module: str) -> tuple[int, ...]:
    """Return the numbers of a module's trained tokens."""
    given = next((config[field] for field in FIELDS if config.get(field)), None)
    if isinstance(given, dict):
        ends = [name for name in given if f".{module}".endswith(f".{name}")]
        given = given[ends[0]] if len(ends) == 1 else None
    numbers = given if isinstance(given, list) else []
    whole = all(type(number) is int and 0 <= number < LARGEST for number in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise InputError(f"{path}: its configuration does not name the tokens of {module}; save the adapter again")
    return tuple(numbers)


LINEAR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.[^.]+)?\.(?P<field>weight|bias)")
EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<side>[AB])(\.[^.]+)?")
WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")  # the module inside that which PEFT put around it
UNTRAINED = ".original_module."  # what it was before it was trained whole, saved too where embeddings were resized


@dataclass(frozen=True)
class Update:
    """The changes of one parameter, by the names of the adapter's tensors; several changes add up.

    Values that replace the base's come first, and PEFT computes from them.
    """

    whole: str | None = None  # takes the place of the base's values
    factors: tuple[str, str] | None = None  # B (M, Q) and A (Q, N): scale * B @ A is added
    added: str | None = None  # scale * this is added
    scale: float = 1.0
    transposed: bool = False  # the parameter is (N, M)
    whole_transposed: bool = False  # `whole` is stored the other way round
    computed: Computed | None = None  # PEFT computes the parameter from the base's
    tokens: Tokens | None = None  # some rows take the place of the base's

    @property
    def of_layer(self) -> bool:
        """Tell whether the update adds to a layer's weights, so that the base must have the layer."""
        return self.factors is not None or self.computed is not None


@dataclass(frozen=True)
class Adapter:
    """An adapter and its updates: by the names of the model it was trained on, or, once bound, by the base's names."""

    path: Path
    tensors: Checkpoint
    updates: Mapping[str, Update]
    kind: PeftKind | None = None  # of what PEFT computes
    keys: Mapping[str, str] = field(default_factory=dict)  # its tensors, with the module that each is of
    peft: ByPeft | None = None  # what computes it, once bound
    known: dict[Any, ByPeft] = field(default_factory=dict, compare=False)  # by what it was bound to before

    def is_low_rank(self, name: str) -> bool:
        """Tell whether an update is a product of two factors and nothing else."""
        update = self.updates[name]
        return update.factors is not None and update.whole is None and update.tokens is None

    def shapes(self, name: str) -> set[tuple[int, ...]]:
        """Return the shapes that an update fits: one, unless its tensors disagree; none if they do not tell."""
        update = self.updates[name]
        shapes = {self.tensors.spec(key).shape for key in (update.whole, update.added) if key}
        if update.factors is None:
            return shapes
        b, a = (self.tensors.spec(key).shape for key in update.factors)
        return shapes | {(a[1], b[0]) if update.transposed else (b[0], *a[1:])}

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """Read a low-rank update's factors in float32: left (M, Q), the scale in it, and right (Q, N)."""
        update = self.updates[name]
        b, a = (self.tensors.read(key).to(torch.float32).flatten(1) for key in update.factors or ())
        return (a.mT, update.scale * b.mT) if update.transposed else (update.scale * b, a)

    def delta(self, name: str, weights: Tensor) -> Tensor:
        """Return an update of the base's weights of a parameter, in float32 and their shape."""
        update, delta = self.updates[name], torch.zeros(weights.shape)
        if update.computed is not None:
            assert self.peft is not None, "an adapter is bound before it is read"
            return update.computed.of(self.peft, update.transposed)
        if update.whole is not None:
            whole = self.tensors.read(update.whole).to(torch.float32)
            delta += (whole.mT if update.whole_transposed else whole) - weights.to(torch.float32)
        if update.factors is not None:
            left, right = self.factors(name)
            delta += (left @ right).reshape(weights.shape)
        if update.added is not None:
            delta += update.scale * self.tensors.read(update.added).to(torch.float32)
        if update.tokens is not None:
            update.tokens.put(delta, self.tensors.read(update.tokens.key), weights)
        return delta


def adapter_names(names: Collection[str]) -> list[str]:
    """Return an adapter's files, configuration and tensors, among the names in a folder; empty if it has none."""
    tensors = [name for name in ADAPTER_FILES if name in names]
    return [ADAPTER_CONFIG, tensors[0]] if ADAPTER_CONFIG in names and tensors else []


def open_model(path: Path, modules: Sequence[str] = ()) -> Checkpoint | Adapter:
    """Open a task's model: a checkpoint with some of the modules in its folder, or an adapter's folder.

    Raises InputError for anything else.
    """
    if path.name in ADAPTER_FILES:
        raise InputError(f"{path}: an adapter's tensors alone; give its folder, with {ADAPTER_CONFIG} in it")
    names = adapter_names([file.name for file in path.iterdir()]) if path.is_dir() else []
    if not names:
        return open_checkpoint(path, modules)
    tensors, config = open_checkpoint(path / names[1]), read_adapter_config(path / names[0])
    return _adapter(path, tensors, config, path / names[0])


def _adapter(path: Path, tensors: Checkpoint, config: Mapping[str, Any], where: Path) -> Adapter:
    """Assign each tensor of an adapter: read as it is, or used by PEFT."""
    refuse_unmergeable(where, config)
    tokens, plainly = find_token_rows(path, tensors, config), is_plain(config)
    rest = [key for key in tensors.names if UNTRAINED not in key and key not in tokens]
    by_peft = not (plainly or config["peft_type"] == TOKENS) or wrapping_of(where, config).names
    kind, updates, keys = peft_kind(where, config) if rest and by_peft else None, dict[str, Update](), dict[str, str]()
    if kind is not None:
        computed, keys = computed_of(path, kind, rest, wrapped_alone=plainly)
        updates = {name: Update(computed=each) for name, each in computed.items()}
        rest = [key for key in rest if key not in keys]
    for name, update in _updates(path, tensors, rest, read_settings(where, config) if plainly else None).items():
        updates[name] = replace(updates[name], whole=update.whole) if name in updates else update
    for token_rows in tokens.values():
        if token_rows.name in updates:
            raise InputError(f"{path}: {token_rows.name} has an update of its tokens and another one; {REMEDY}")
        updates[token_rows.name] = Update(tokens=token_rows)
    if not updates:
        raise InputError(f"{path}: an adapter without tensors; save it again")
    return Adapter(path, tensors, updates, kind, keys)


def _updates(path: Path, tensors: Checkpoint, names: Sequence[str], settings: Settings | None) -> dict[str, Update]:
    """Assign each tensor: half of a product, or a parameter's own values (modules_to_save, trained biases).

    `settings`: those of low-rank updates, if the adapter is one.
    """
    updates: dict[str, Update] = {}
    sides: dict[str, dict[str, str]] = {}
    for key in names:
        own = key.removeprefix(ROOT)
        match = (LINEAR.fullmatch(own) or EMBEDDING.fullmatch(own)) if settings else None
        if match is None and "lora_" in own:
            raise InputError(f"{path}: {key} is not part of a low-rank update that can be read; {REMEDY}")
        if match is None:
            updates[WRAPPED.sub("", own)] = Update(whole=key)
            continue
        side = match["side"] + ("bias" if match.groupdict().get("field") == "bias" else "")
        if sides.setdefault(match["module"], {}).setdefault(side, key) != key:
            raise InputError(f"{path}: {match['module']} has two updates; save one adapter at a time")
    for module, keys in sides.items():
        assert settings is not None
        name, update = WRAPPED.sub("", module), _product(path, tensors, settings, module, keys)
        if (setting := settings.leaves_out(module)) is not None:
            told = f"PEFT leaves out {module} by {setting} of its {ADAPTER_CONFIG}"
            raise InputError(f"{path}: {told}; change it there, or save the adapter again")
        whole = updates.get(f"{name}.weight", Update()).whole
        updates[f"{name}.weight"] = replace(update, whole=whole)
        if "Bbias" in keys:
            whole = updates.get(f"{name}.bias", Update()).whole
            updates[f"{name}.bias"] = Update(whole=whole, added=keys["Bbias"], scale=update.scale)
    return updates


def _product(path: Path, tensors: Checkpoint, settings: Settings, module: str, keys: Mapping[str, str]) -> Update:
    """Combine a module's factors; raise InputError unless there are two of matching shapes."""
    missing = {"A", "B"} - keys.keys()
    if missing:
        raise InputError(f"{path}: {module} has no lora_{missing.pop()}; save the adapter again")
    (b, a), rank = (tensors.spec(keys[side]).shape for side in "BA"), settings.rank(module)
    if min(len(a), len(b)) < 2 or a[0] != rank or b[1] != rank or any(n != 1 for n in b[2:]):
        raise InputError(
            f"{path}: {module}: A of shape {list(a)} and B of shape {list(b)} make no update of rank {rank}; "
            f"if PEFT can load the adapter, {REMEDY}"
        )
    transposed = "lora_embedding_" in keys["A"] or (settings.fan_in_fan_out and len(a) == 2)
    return Update(factors=(keys["B"], keys["A"]), scale=settings.scale(module), transposed=transposed)
