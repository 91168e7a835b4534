"""Match an adapter's layers with its base's parameters, by names and shapes, and apply it to them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.by_peft import ByPeft
from merganser.checkpoints.adapters.files import Adapter, Update, open_model
from merganser.checkpoints.architecture import tied_names
from merganser.checkpoints.kinds import FLOATS, ParameterRules, is_head, is_merged, without
from merganser.checkpoints.known_models import todays_names
from merganser.checkpoints.reading import architecture_beside, innermost, open_checkpoint
from merganser.checkpoints.tensors import Checkpoint, Part, Spec
from merganser.checkpoints.views import View, as_in_file, place_in_stack, stored_spec, unstacked
from merganser.errors import InputError

ONE_BY_ONE = "if it stores experts one by one, save it again by save_pretrained(folder, save_original_format=False)"


def bind(adapter: Adapter, base: Checkpoint, rules: ParameterRules, task: str) -> Adapter:
    """Return an adapter whose updates of merged parameters have the base's names.

    It may have been trained on a part of the base, so that all its names need one prefix, or on the base under the
    names of another version of transformers. Raises InputError if no prefix fits, if several do, or if the adapter
    changes no merged parameter.
    """
    whole = unstacked(base)
    adapter = _as_layers_are(adapter, whole)
    try:
        bound = _bind(adapter, whole, rules, task)
    except InputError:
        renamed = _by_transformers(adapter, whole)
        if renamed is None:
            raise
        bound = _bind(renamed, whole, rules, task)
    return _apart(bound, base)


def _as_layers_are(adapter: Adapter, base: Checkpoint) -> Adapter:
    """Transpose updates of linear maps by the layers' classes, as PEFT does; `fan_in_fan_out` is that of one layer.

    If nothing is known of the base, the adapter's own setting counts.
    """
    architecture = architecture_beside(base)
    if architecture.model_type is None:
        return adapter
    turned = {
        own: replace(update, transposed=architecture.is_in_by_out(own, adapter.tensors.spec(update.factors[1]).shape))
        for own, update in adapter.updates.items()
        if update.factors
        and "lora_embedding_" not in update.factors[1]
        and len(adapter.tensors.spec(update.factors[1]).shape) == 2
    }
    return replace(adapter, updates={**adapter.updates, **turned})


def _by_transformers(adapter: Adapter, base: Checkpoint) -> Adapter | None:
    """Rename an adapter's updates to the base's names by the installed transformers; None if none change.

    A model's files may have the names of an earlier version, while PEFT uses those of the loaded model.
    """
    config = architecture_beside(base).config
    ours, theirs = todays_names(config, base.names), todays_names(config, adapter.updates)
    stored = {today: name for name, today in ours.items()}
    names = {own: stored.get(today) or _tied_name(today, stored) or own for own, today in theirs.items()}
    if all(own == name for own, name in names.items()):
        return None
    return replace(adapter, updates={names[own]: update for own, update in adapter.updates.items()})


def _tied_name(today: str, stored: Mapping[str, str]) -> str | None:
    """Return the second name of a tied weight, which the base's files lack; None if it is none.

    `stored`: the names in the base's files by today's names.
    """
    firsts = (stored[first] for first in tied_names(today) if first in stored)
    return next((other for first in firsts for other in tied_names(first) if other.endswith(today)), None)


def _bind(adapter: Adapter, base: Checkpoint, rules: ParameterRules, task: str) -> Adapter:
    prefixes = _prefixes(adapter, base)
    misfits = {prefix: dict(_misfits(adapter, base, rules, prefix)) for prefix in prefixes}
    if not misfits:
        first = next(iter(adapter.updates))
        none = f"the base has none of the adapter's layers, such as {first}{_hint(adapter, first)}"
        raise InputError(f"{task}: another architecture: {none}")
    fitting = {prefix: _bound(adapter, base, rules, prefix) for prefix, mismatches in misfits.items() if not mismatches}
    if not fitting:
        nearest = min(misfits, key=lambda prefix: (len(misfits[prefix]), prefix))
        unfit = misfits[nearest]
        named = [*_bound(adapter, base, rules, nearest).updates, *unfit]
        remedy = f"; {without(list(unfit), named, rules, by_name=True)}" if len(named) > len(unfit) else ""
        raise InputError(f"{task}: {next(iter(unfit.values()))}{remedy}")
    merged = {prefix: bound for prefix, bound in fitting.items() if bound.updates}
    if not merged:
        keys = "--only and --except" if rules.flags else "parameters.merged"
        raise InputError(f"{task}: the adapter changes no merged parameter; see {keys}")
    if len(merged) > 1:
        places = " and ".join(repr(prefix.removesuffix(".") or "the whole") for prefix in sorted(merged))
        key = "--only" if rules.flags else "parameters.merged"
        raise InputError(f"{task}: the adapter fits {places} of the base; let {key} name one of them")
    prefix, bound = next(iter(merged.items()))
    if not any(update.computed for update in bound.updates.values()):
        return bound
    return replace(bound, peft=_put_on(adapter, base, _named(adapter, base, prefix)))


def _put_on(adapter: Adapter, base: Checkpoint, named: Mapping[str, Update]) -> ByPeft:
    """Let PEFT apply an adapter to its base, once per base; raise InputError if it cannot.

    `named`: the adapter's updates by the base's names.
    """
    assert adapter.kind is not None
    computed = {name: (update.computed, update.whole) for name, update in named.items() if update.computed}
    modules = {name.rpartition(".")[0]: each.module for name, (each, _) in computed.items() if each}
    place = id(innermost(base)), tuple(sorted(modules.items()))
    if place in adapter.known:
        return adapter.known[place]
    absent = sorted(set(adapter.keys.values()) - {"", *modules.values()})
    if absent and (adapter.kind.is_shared or adapter.kind.wrapping.parameters(absent[0])):
        raise InputError(f"{adapter.path}: {absent[0]} is not in the base; give the base it was trained on")
    sources: dict[str, dict[str, str]] = {module: {} for module in modules.values()}
    for name in base.names:
        of, _, own = name.rpartition(".")
        if of in modules and base.spec(name).dtype in FLOATS:
            sources[modules[of]][own] = name
    by_peft = ByPeft(
        path=adapter.path,
        kind=adapter.kind,
        tensors=adapter.tensors,
        keys={key: module for key, module in adapter.keys.items() if module in sources or not module},
        base=as_in_file(base),
        sources=sources,
        whole={(each.module, each.parameter): key for each, key in computed.values() if each and key},
        architecture=architecture_beside(base),
        changed=frozenset((each.module, each.parameter) for each, _ in computed.values() if each),
    )
    by_peft.check()
    adapter.known[place] = by_peft
    return by_peft


def _prefixes(adapter: Adapter, base: Checkpoint) -> set[str]:
    """List possible prefixes of the adapter's names: those of its modules' names in the base."""
    low_rank = [own for own, update in adapter.updates.items() if update.of_layer] or list(adapter.updates)
    inside = {name.rpartition(".")[0] for name in low_rank}
    modules = {f".{name.rpartition('.')[0]}" for name in base.names}
    return {module[1:].removesuffix(name) for name in inside for module in modules if module.endswith(f".{name}")}


def _target(adapter: Adapter, base: Checkpoint, prefix: str, own: str) -> str | None:
    """Return the base's parameter for an update; None if there is none.

    nn.MultiheadAttention has one matrix for its three projections, and no `weight`.
    """
    joined = f"{prefix}{own.removesuffix('weight')}in_proj_weight"
    names = [f"{prefix}{own}", *([joined] if adapter.updates[own].factors else [])]
    return next((name for name in names if name in base), None)


def _misfits(adapter: Adapter, base: Checkpoint, rules: ParameterRules, prefix: str) -> Iterator[tuple[str, str]]:
    """List merged updates that do not fit the base under a prefix: the base's name, and what is wrong."""
    for own in (own for own in adapter.updates if not is_head(own, rules.heads)):
        ours_named = _target(adapter, base, prefix, own)
        name = ours_named or f"{prefix}{own}"
        wanted = is_merged(name, base.spec(ours_named).dtype if ours_named else "F32", rules)
        others = {other: other.removeprefix(prefix) for other in tied_names(name)}
        source = next((other for other in others if other in base), None)
        shapes = adapter.shapes(own)
        if not ours_named and _is_optional(adapter, base, prefix, own):
            continue
        if not ours_named and not source and (wanted or adapter.updates[own].of_layer):
            yield name, f"the adapter's {own} is not in the base; give the base it was trained on{_hint(adapter, own)}"
        elif not ours_named and source and wanted and not _is_copy(adapter, base, own, source, others[source]):
            yield name, f"the adapter's {own} is not a separate weight in the base: it is tied to {source}"
        elif ours_named and wanted and shapes and shapes != {ours := stored_spec(base, ours_named).shape}:
            theirs = " and ".join(str(list(shape)) for shape in sorted(shapes))
            yield name, f"the adapter's {own} is for shape {theirs}, in the base {ours_named} has {list(ours)}"
        elif ours_named and wanted and _is_untied(adapter, base, own, ours_named, others):
            yield name, f"the adapter's {own} is for the input alone, which the base ties to its output embedding"


def _hint(adapter: Adapter, own: str) -> str:
    """Return a further possible cause if the base lacks a parameter of experts that PEFT adapts."""
    return f"; {ONE_BY_ONE}" if adapter.updates[own].computed and "expert" in own else ""


def _is_optional(adapter: Adapter, base: Checkpoint, prefix: str, own: str) -> bool:
    """Tell whether an update is of a parameter that its module may lack: the base has its other one."""
    computed = adapter.updates[own].computed
    if computed is None or not computed.optional:
        return False
    module = f"{prefix}{computed.module}."
    others = (each.computed for each in adapter.updates.values() if each.computed)
    return any(each.module == computed.module and f"{module}{each.parameter}" in base for each in others)


def _is_copy(adapter: Adapter, base: Checkpoint, own: str, source: str, first: str) -> bool:
    """Tell whether an update of a tied weight's second name equals that of its first, or changes nothing.

    `source`: the weight's name in the base; `first`: in the adapter.
    """
    other = adapter.updates.get(first, Update())
    if adapter.updates[own].computed or other.computed:
        return False
    if (adapter.updates[own].tokens is None) != (other.tokens is None):
        return False
    if (
        adapter.updates[own].tokens is None
        and adapter.updates[own].factors is None
        and (other.whole is None or other.factors is not None)
    ):
        return _is_unchanged(adapter, base, own, source)
    one, two = (_content(adapter, name) if name in adapter.updates else {} for name in (first, own))
    return one.keys() == two.keys() and all(torch.equal(one[part], two[part]) for part in one)


def _content(adapter: Adapter, name: str) -> dict[str, Tensor]:
    update = adapter.updates[name]
    tensors = {part: adapter.tensors.read(key) for part in ("whole", "added") if (key := getattr(update, part))}
    if update.tokens is not None:
        tensors |= {"rows": torch.tensor(update.tokens.rows), "values": adapter.tensors.read(update.tokens.key)}
    if update.factors is None:
        return tensors
    b, a = map(adapter.tensors.read, update.factors)
    left, right = (a.mT, b.mT) if update.transposed else (b, a)
    return tensors | {"left": left, "right": right, "scale": torch.tensor(update.scale)}


def _is_unchanged(adapter: Adapter, base: Checkpoint, own: str, name: str) -> bool:
    """Tell whether an update gives a parameter the values that it already has."""
    weights = base.read(name)
    return adapter.shapes(own) == {tuple(weights.shape)} and not adapter.delta(own, weights).any()


def _is_of_one_name(adapter: Adapter, base: Checkpoint, own: str, others: Mapping[str, str]) -> bool:
    """Tell whether an update is for one name of a weight that the base ties; PEFT does not change the others.

    `others`: the weight's possible names in the base, with those in the adapter.
    """
    if not others or any(other in base or theirs in adapter.updates for other, theirs in others.items()):
        return False
    return architecture_beside(base).tied is True


def _is_untied(adapter: Adapter, base: Checkpoint, own: str, name: str, others: Mapping[str, str]) -> bool:
    """Tell whether an update gives one name of a tied weight new values of its own."""
    is_whole = adapter.updates[own].whole is not None and not adapter.updates[own].of_layer
    return is_whole and _is_of_one_name(adapter, base, own, others) and not _is_unchanged(adapter, base, own, name)


def moved_together(adapter: Adapter, base: Checkpoint) -> list[str]:
    """List tied weights with a low-rank update under only one of their names."""
    own = [name for name, update in adapter.updates.items() if update.of_layer and name in base]
    return [name for name in own if _is_of_one_name(adapter, base, name, {other: other for other in tied_names(name)})]


def _named(adapter: Adapter, base: Checkpoint, prefix: str) -> dict[str, Update]:
    named = {_target(adapter, base, prefix, own): update for own, update in adapter.updates.items()}
    return {name: update for name, update in named.items() if name is not None}


def _bound(adapter: Adapter, base: Checkpoint, rules: ParameterRules, prefix: str) -> Adapter:
    named = _named(adapter, base, prefix)
    updates = {name: _oriented(named[name], base, name) for name in base.names if name in named}
    merged = {name: update for name, update in updates.items() if is_merged(name, base.spec(name).dtype, rules)}
    return replace(adapter, updates=merged)


def _apart(adapter: Adapter, base: Checkpoint) -> Adapter:
    """Split the values of stacks into those of their matrices, if the base shows these."""
    places = {name: place for name in base.names if (place := place_in_stack(base, name)) is not None}
    stacked = {name: place for name, place in places.items() if place.name in adapter.updates}
    if not stacked:
        return adapter
    keys: dict[str, Part] = {key: key for key in adapter.tensors.names}
    updates = {name: update for name, update in adapter.updates.items() if name in base}
    for name, place in stacked.items():
        update = adapter.updates[place.name]
        if update.computed:
            computed = replace(update.computed, place=place.start)
            updates[name] = replace(update, computed=computed, transposed=name in base.transposed)
            continue
        key = update.whole
        assert key is not None, "no low-rank update has three dimensions"
        keys[name] = replace(place, name=key)
        updates[name] = Update(whole=name, whole_transposed=name in base.transposed)
    return replace(adapter, tensors=View(adapter.tensors, keys), updates=updates)


def _oriented(update: Update, base: Checkpoint, name: str) -> Update:
    """Transpose an update if the base shows its parameter transposed."""
    if name not in base.transposed:
        return update
    return replace(update, transposed=not update.transposed, whole_transposed=update.whole is not None)


@dataclass(frozen=True)
class Adapted(Checkpoint):
    """A base plus a bound adapter's updates; updated tensors are in float32."""

    base: Checkpoint
    adapter: Adapter

    @cached_property
    def specs(self) -> dict[str, Spec]:
        changed = {name: Spec("F32", self.base.spec(name).shape) for name in self.adapter.updates}
        return {**self.base.specs, **changed}

    def read(self, name: str) -> Tensor:
        weights = self.base.read(name)
        if name not in self.adapter.updates:
            return weights
        return weights.to(torch.float32) + self.adapter.delta(name, weights)


def open_whole(path: Path, base: Path, rules: ParameterRules, task: str, modules: Sequence[str] = ()) -> Checkpoint:
    """Open a task's model; an adapter is applied to the base that it was trained on."""
    model = open_model(path, modules)
    if not isinstance(model, Adapter):
        return model
    checkpoint = open_checkpoint(base)
    return Adapted(checkpoint, bind(model, checkpoint, rules, task))
