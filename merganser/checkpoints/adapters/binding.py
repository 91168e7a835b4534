"""Find an adapter's layers in its base, by names and shapes."""

from dataclasses import replace

from merganser.checkpoints.adapters.files import Adapter, Update
from merganser.checkpoints.kinds import ParameterRules, is_head, is_merged
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import stored_spec
from merganser.errors import InputError


def bind(adapter: Adapter, base: Checkpoint, rules: ParameterRules, task: str) -> Adapter:
    """Return an adapter with its updates of merged parameters under the base's names.

    It may have been trained on a part of the base: then one prefix to its names makes all of them fit. Raises
    InputError when none does, or more than one, and when nothing that it touches is merged.
    """
    misfits = {prefix: _misfits(adapter, base, rules, prefix) for prefix in _prefixes(adapter, base)}
    if not misfits:
        first = next(iter(adapter.updates))
        raise InputError(f"{task}: another architecture: the base has none of the adapter's layers, such as {first}")
    fitting = {prefix: _bound(adapter, base, rules, prefix) for prefix, found in misfits.items() if not found}
    if not fitting:
        nearest = min(misfits, key=lambda prefix: (len(misfits[prefix]), prefix))
        raise InputError(f"{task}: {misfits[nearest][0]}")
    merged = {prefix: bound for prefix, bound in fitting.items() if bound.updates}
    if not merged:
        raise InputError(f"{task}: the adapter touches no parameter that is merged; see parameters.merged")
    if len(merged) > 1:
        places = " and ".join(repr(prefix.removesuffix(".") or "the whole") for prefix in sorted(merged))
        raise InputError(f"{task}: the adapter fits {places} of the base; let parameters.merged name one of them")
    return next(iter(merged.values()))


def _prefixes(adapter: Adapter, base: Checkpoint) -> set[str]:
    """List what could stand before the adapter's names: what stands before one of its modules' names in the base."""
    low_rank = [name for name in adapter.updates if adapter.updates[name].factors] or list(adapter.updates)
    inside = {name.rpartition(".")[0] for name in low_rank}
    modules = {f".{name.rpartition('.')[0]}" for name in base.names}
    return {module[1:].removesuffix(name) for name in inside for module in modules if module.endswith(f".{name}")}


def _target(adapter: Adapter, base: Checkpoint, prefix: str, own: str) -> str | None:
    """Find the base's parameter that an update is for; None when there is none.

    nn.MultiheadAttention has one matrix for its three projections, and no `weight`.
    """
    joined = f"{prefix}{own.removesuffix('weight')}in_proj_weight"
    names = [f"{prefix}{own}", *([joined] if adapter.updates[own].factors else [])]
    return next((name for name in names if name in base), None)


def _misfits(adapter: Adapter, base: Checkpoint, rules: ParameterRules, prefix: str) -> list[str]:
    """List what does not fit the base under a prefix."""
    found = []
    for own, update in adapter.updates.items():
        if is_head(own, rules.heads):
            continue
        name = _target(adapter, base, prefix, own)
        if name is None:
            if update.factors or is_merged(f"{prefix}{own}", "F32", rules):
                remedy = "give the base it was trained on" + (
                    "" if update.factors else ", or exclude it by parameters.merged"
                )
                found.append(f"the adapter's {own} is not in the base; {remedy}")
            continue
        shapes, ours = adapter.shapes(own), stored_spec(base, name).shape
        if shapes != {ours}:
            theirs = " and ".join(str(list(shape)) for shape in sorted(shapes))
            found.append(f"the adapter's {own} is for shape {theirs}, in the base {name} has {list(ours)}")
    return found


def _bound(adapter: Adapter, base: Checkpoint, rules: ParameterRules, prefix: str) -> Adapter:
    named = {_target(adapter, base, prefix, own) or "": update for own, update in adapter.updates.items()}
    updates = {name: _oriented(named[name], base, name) for name in base.names if name in named}
    merged = {name: update for name, update in updates.items() if is_merged(name, base.spec(name).dtype, rules)}
    return replace(adapter, updates=merged)


def _oriented(update: Update, base: Checkpoint, name: str) -> Update:
    """Turn an update round where the base shows its parameter so."""
    if name not in base.transposed:
        return update
    return replace(update, transposed=not update.transposed, whole_transposed=update.whole is not None)
