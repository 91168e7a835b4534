"""Let PEFT apply an adapter to its base, once per base."""

from collections.abc import Mapping

from merganser.checkpoints.adapters.by_peft import ByPeft
from merganser.checkpoints.adapters.files import Adapter, Update
from merganser.checkpoints.kinds import FLOATS
from merganser.checkpoints.reading import architecture_beside
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import View, as_in_file
from merganser.errors import InputError


def put_on(adapter: Adapter, base: Checkpoint, named: Mapping[str, Update]) -> ByPeft:
    """Return an object that computes an adapter's parameters; raise InputError if PEFT cannot apply it to the base.

    `named`: the adapter's updates by the base's names.
    """
    assert adapter.kind is not None
    computed = {name: (update.computed, update.whole) for name, update in named.items() if update.computed}
    modules = {name.rpartition(".")[0]: each.module for name, (each, _) in computed.items() if each}
    place = id(_innermost(base)), tuple(sorted(modules.items()))
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


def _innermost(checkpoint: Checkpoint) -> Checkpoint:
    return _innermost(checkpoint.inner) if isinstance(checkpoint, View) else checkpoint
