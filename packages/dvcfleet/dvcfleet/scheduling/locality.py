"""The places of stages' inputs, on machines that share only a DVC remote: a machine need not fetch what it has."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Locality:
    """The machines that hold each content; `inputs`: of a ready stage, the bytes of each content that it reads."""

    inputs: Callable[[str], Mapping[str, float]]
    _holders: dict[str, set[str]] = field(default_factory=dict)
    _known: dict[str, Mapping[str, float]] = field(default_factory=dict)  # inputs of stages that wait

    def held(self, name: str) -> Mapping[str, float]:
        """Return the bytes of a stage's inputs that each machine holds.

        >>> locality = Locality(lambda name: {"model": 5.0, "data": 1.0})
        >>> locality.note("n1", ["data"])
        >>> locality.held("s"), locality.largest("s")
        (Counter({'n1': 1.0}), 'model')
        """
        sizes: Counter[str] = Counter()
        for content, size in self._of(name).items():
            sizes.update(dict.fromkeys(self._holders.get(content, ()), size))
        return sizes

    def largest(self, name: str) -> str:
        """Return the largest content that a stage reads; empty if it reads none."""
        inputs = self._of(name)
        return max(inputs, key=lambda content: inputs[content], default="")

    def nearest(self, contents: Iterable[str], machines: Collection[str]) -> str | None:
        """Return the first of some contents that one of these machines holds; None if none of them does."""
        return next((each for each in contents if not self._holders.get(each, set()).isdisjoint(machines)), None)

    def note(self, machine: str, contents: Iterable[str]) -> None:
        """Note that a machine holds some contents."""
        for content in contents:
            self._holders.setdefault(content, set()).add(machine)

    def note_start(self, name: str, machine: str) -> None:
        """Note that a stage starts on a machine, which then holds what it reads."""
        self.note(machine, self._of(name))

    def _of(self, name: str) -> Mapping[str, float]:
        if name not in self._known:
            self._known[name] = self.inputs(name)
        return self._known[name]
