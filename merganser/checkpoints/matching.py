"""Show a task's checkpoint in its base's layout: under the base's names, linear maps and experts as in the base.

transformers 5 stacks the experts of Mixtral, Qwen's, DeepSeek's and others when it loads a model, and writes them one
by one. A file that was written otherwise, as by torch.save(model.state_dict()), has the stacks.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from merganser.checkpoints.architecture import is_buffer, known_ties, tied_names
from merganser.checkpoints.kinds import ParameterRules, is_merged
from merganser.checkpoints.known_models import ExpertConversion, stacks_of, todays_names
from merganser.checkpoints.reading import architecture_beside
from merganser.checkpoints.tensors import DTYPES, Checkpoint, Rows, Spec
from merganser.checkpoints.views import Composed, Made, View, laid_out_like, unstacked
from merganser.errors import InputError

ONE = re.compile(r".+\.experts?\.\d+\..+")  # a tensor of one expert
STACK = re.compile(r".+\.experts?\.(?!\d+\.).+")


@dataclass(frozen=True)
class Stack:
    """A stack of experts as a loaded model has it, built from a file's tensors of each expert."""

    file: Checkpoint
    name: str
    conversion: ExpertConversion

    @cached_property
    def spec(self) -> Spec:
        """Return its dtype and shape."""
        specs = {pattern: self.file.spec(names[0]) for pattern, names in self.conversion.parts.items()}
        one = {pattern: [_empty(spec)] for pattern, spec in specs.items()}
        shape = self.conversion.stack(self.name, one).shape
        return Spec(next(iter(specs.values())).dtype, (self.conversion.count, *shape[1:]))

    def read(self, start: int, stop: int | None) -> Tensor:
        """Read the experts from `start` to before `stop`."""
        parts = self.conversion.parts.items()
        read = {pattern: [self.file.read(name) for name in names[start:stop]] for pattern, names in parts}
        return self.conversion.stack(self.name, read)


@dataclass(frozen=True)
class Expert:
    """One expert's tensor, taken from a file's stack; `name`: the stack's in the model, `stack`: in the file."""

    file: Checkpoint
    stack: str
    name: str
    conversion: ExpertConversion
    pattern: str
    number: int

    @cached_property
    def spec(self) -> Spec:
        """Return its dtype and shape."""
        whole = self.file.spec(self.stack)
        one = self.conversion.apart(self.name, _empty(Spec(whole.dtype, (1, *whole.shape[1:]))))
        return Spec(whole.dtype, tuple(one[self.pattern].shape))

    def read(self, start: int, stop: int | None) -> Tensor:
        """Read its rows from `start` to before `stop`."""
        rows = self.file.read_rows(Rows(self.stack, self.number, self.number + 1, self.conversion.count))
        return self.conversion.apart(self.name, rows)[self.pattern][start:stop].contiguous()


def with_experts_of(base: Checkpoint, tuned: Checkpoint) -> Checkpoint:
    """Show a model's experts in the layout of the base's files, one by one or in stacks; other layouts stay."""
    if base is tuned or not any(len(each.spec(name).shape) == 3 for each in (base, tuned) for name in each.names):
        return tuned
    config = architecture_beside(base).config
    ours, loaded = stacks_of(config, base.names)
    theirs, held = stacks_of(architecture_beside(tuned).config or config, tuned.names)
    made, hidden = dict[str, Made](), set[str]()
    for name, conversion in ours.items():
        stack = held.get(name)
        if stack is not None and tuned.spec(stack).shape[:1] == (conversion.count,):
            hidden.add(stack)
            made |= {
                own: Expert(tuned, stack, name, conversion, pattern, number)
                for pattern, names in conversion.parts.items()
                for number, own in enumerate(names)
            }
    for name, conversion in theirs.items():
        if name in loaded:
            hidden |= {own for names in conversion.parts.values() for own in names}
            made[loaded[name]] = Stack(tuned, name, conversion)
    rest = {name: name for name in tuned.names if name not in hidden}
    return Composed(tuned, rest, dropped=tuned.dropped, made=made) if made else tuned


def check_layouts(base: Checkpoint, tuned: Checkpoint, missing: Collection[str], task: str) -> None:
    """Refuse experts in stacks on one side and one by one on the other if transformers cannot convert them.

    `missing`: the base's parameters not found in the task's model.
    """
    by_one, stacked = (ONE, "one by one"), (STACK, "in a stack")
    for (kind, first), (other, second) in ((by_one, stacked), (stacked, by_one)):
        ours = next((name for name in missing if kind.fullmatch(name)), None)
        theirs = next((name for name in tuned.names if other.fullmatch(name) and name not in base), None)
        if ours is not None and theirs is not None and not any(kind.fullmatch(name) for name in tuned.names):
            stored = f"experts are stored {second} ({theirs}), those of the base {first} ({ours})"
            raise InputError(
                f"{task}: its {stored}, and the installed transformers does not convert them\n"
                "Save both by one version of transformers: from_pretrained(FOLDER).save_pretrained(OUT)"
            )


def _empty(spec: Spec) -> Tensor:
    return torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")


SPELLINGS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))

Finder = Callable[[str], str | None]  # from the base's name to the task's


def matched(base: Checkpoint, tuned: Checkpoint, rules: ParameterRules, task: str) -> Checkpoint:
    """Return a task's checkpoint under the base's names.

    Its names may all have one prefix more than the base's, or one less (`model.`, `bert.`), TensorFlow's names of
    LayerNorm's parameters, or the names of another version of transformers. A weight that the task ties is there
    under each of the base's names for it. Raises InputError if two prefixes fit.
    """
    whole = unstacked(base)
    merged = [name for name in whole.names if is_merged(name, whole.spec(name).dtype, rules)]
    find = _finder(whole, tuned, merged, task, rules)
    if missing := [name for name in merged if find(name) is None]:
        tuned = with_experts_of(whole, tuned)
        find = _finder(whole, tuned, merged, task, rules)
        check_layouts(whole, tuned, [name for name in missing if find(name) is None], task)
    stored = {name: stored_name for name in whole.names if (stored_name := find(name)) is not None}
    others, ties = set(tuned.names) - set(stored.values()), known_ties(frozenset(tuned.names))
    stored |= {name: name for name in sorted(others) if not _is_surplus(whole, tuned, name, rules, ties)}
    return laid_out_like(View(tuned, stored, dropped=tuned.dropped), base)


def _finder(base: Checkpoint, tuned: Checkpoint, merged: Sequence[str], task: str, rules: ParameterRules) -> Finder:
    """Choose how names are matched: as they are, by one prefix, or by transformers.

    If no way matches all names, it is the one that matches most.
    """
    or_tied = partial(_found_or_tied, tuned, cache(lambda: architecture_beside(tuned).tied is True))
    plain = partial(or_tied, partial(_found, tuned, "", ""))
    absent = [name for name in merged if plain(name) is None]
    missing = {name.split(".")[0]: name for name in sorted(absent, key=lambda name: name.count("."))}  # the deepest
    if not missing:
        return plain
    prefixes = dict.fromkeys(pair for name in missing.values() for pair in _prefixes(tuned, name))
    by_prefix = {pair: partial(_found, tuned, *pair) for pair in prefixes}
    finders = {pair: partial(or_tied, find) for pair, find in by_prefix.items() if _keeps_apart(merged, find)}
    counts = {pair: _fits(merged, find) for pair, find in finders.items()}
    fitting = {pair: find for pair, find in finders.items() if counts[pair] == len(merged)}
    alike = {prefixes: finder for prefixes, finder in fitting.items() if _same_shapes(base, tuned, merged, finder)}
    chosen = alike or fitting
    if len(chosen) > 1:
        places = " and ".join(repr(more or less) for less, more in chosen)
        remedy = "give a file with one of them" if rules.flags else "take one off by `strip` in a pointer file"
        raise InputError(f"{task}: its names fit the base under {places}; {remedy}")
    if chosen:
        return next(iter(chosen.values()))
    others = [partial(or_tied, find) for find in (_by_transformers(base, tuned), _without_ddp(base, tuned)) if find]
    return max((plain, *others, *finders.values()), key=partial(_fits, merged))


def _found_or_tied(tuned: Checkpoint, is_tied: Callable[[], bool], find: Finder, name: str) -> str | None:
    """Match a base's name, or find the name under which the task stores a weight that it ties."""
    if (stored_name := find(name) or tuned.dropped.get(name)) is not None:
        return stored_name
    other = next((stored_name for other in tied_names(name) if (stored_name := find(other)) is not None), None)
    return other if other is not None and is_tied() else None


def _by_transformers(base: Checkpoint, tuned: Checkpoint) -> Finder | None:
    """Match a name by the installed transformers' name for both; None if it does not know one of them."""
    ours, theirs = (todays_names(architecture_beside(model).config, model.names) for model in (base, tuned))
    stored = {today: name for name, today in theirs.items()}
    return (lambda name: stored.get(ours.get(name, name))) if ours and theirs else None


DDP = re.compile(r"(?<![^.])module\.")


def without_ddp(name: str) -> str:
    """Return a name without DDP's wrapper, `module`, at any place.

    >>> without_ddp("module.encoder.module.0.weight")
    'encoder.0.weight'
    """
    return DDP.sub("", name)


def _without_ddp(base: Checkpoint, tuned: Checkpoint) -> Finder | None:
    """Match names after removing DDP's wrapper from both; None if no name has it, or if two become equal."""
    stored = {without_ddp(name): name for name in tuned.names}
    ours = {without_ddp(name) for name in base.names}
    if len(stored) < len(tuned.names) or len(ours) < len(base.names) or {*stored, *ours} == {*tuned.names, *base.names}:
        return None
    return lambda name: next((stored[form] for s in _spellings(without_ddp(name)) if (form := s) in stored), None)


def _keeps_apart(names: Sequence[str], find: Finder) -> bool:
    stored = [name for name in map(find, names) if name is not None]
    return len(set(stored)) == len(stored)


def _fits(names: Sequence[str], find: Finder) -> int:
    return sum(find(name) is not None for name in names)


def _prefixes(tuned: Checkpoint, missing: str) -> Iterator[tuple[str, str]]:
    """List possible prefixes in the base and in the task: in one of the two, or a replaced one.

    The rest of a replaced prefix's names has three parts: a head's `dense.weight` does not match another head's.
    """
    parts = missing.split(".")
    divided = [("".join(f"{part}." for part in parts[:n]), ".".join(parts[n:])) for n in range(len(parts))]
    ends = {less: [more for spelled in _spellings(rest) for more in _before(tuned, spelled)] for less, rest in divided}
    yield from ((less, "") for less, longer in ends.items() if less and "" in longer)
    longest = next((less for less, rest in divided if ends[less] and (not less or rest.count(".") > 1)), "")
    yield from ((longest, more) for more in ends[longest])


def _before(tuned: Checkpoint, end: str) -> Iterator[str]:
    """List the prefixes of a task's names with this end."""
    yield from (name.removesuffix(end) for name in tuned.names if name == end or name.endswith(f".{end}"))


def _found(tuned: Checkpoint, less: str, more: str, name: str) -> str | None:
    """Match a base's name after replacing the prefix `less`, if it has that, by `more`."""
    named = (more + s.removeprefix(less) if s.startswith(less) else s for s in _spellings(name))
    return next((stored for stored in named if stored in tuned), None)


def _spellings(name: str) -> Iterator[str]:
    """Yield a name, and its form in files converted from TensorFlow, or the reverse."""
    yield name
    for pair in SPELLINGS:
        for ours, theirs in (pair, pair[::-1]):
            if name.endswith(ours):
                yield name.removesuffix(ours) + theirs


def _same_shapes(base: Checkpoint, tuned: Checkpoint, names: Sequence[str], find: Finder) -> bool:
    """Tell whether all parameters have the same number of values; their orientation is checked later."""

    def sizes(checkpoint: Checkpoint, name: str) -> list[int]:
        return sorted(checkpoint.spec(name).shape)

    return all(sizes(base, name) == sizes(tuned, find(name) or name) for name in names)


def _is_surplus(base: Checkpoint, tuned: Checkpoint, name: str, rules: ParameterRules, ties: Mapping[str, str]) -> bool:
    """Tell whether a tensor that the base lacks is a constant, or a second name of a parameter."""
    if name in base:
        return True  # there under another name
    spec, source = tuned.spec(name), ties.get(name)
    if source is None or source not in base or not is_merged(name, spec.dtype, rules):
        return is_buffer(name, spec)
    return spec == tuned.spec(source) and torch.equal(tuned.read(name), tuned.read(source))
