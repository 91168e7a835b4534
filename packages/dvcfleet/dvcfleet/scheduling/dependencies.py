"""Which stages wait for which: for those that they read from, and for the one before them in their group."""

from collections.abc import Collection, Iterator, Mapping, Sequence


class Dependencies:
    """The stages that each stage still waits for; `needs`: the stages that each reads from."""

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        self.readers: dict[str, list[str]] = {name: [] for name in needs}
        self._waits_for = {name: set(upstream) for name, upstream in needs.items()}
        self._followers: dict[str, str] = {}  # of each stage that is not the last of its group
        for name, upstream in needs.items():
            for need in upstream:
                self.readers[need].append(name)

    def begin(self, before: Mapping[str, str], ended: Collection[str]) -> Iterator[str]:
        """Give the stages that wait for none; `before`: by stages, the one of their group that runs before them."""
        for name, earlier in before.items():
            self._waits_for[name].add(earlier)
            self._followers[earlier] = name
        for name, upstream in self._waits_for.items():
            upstream.difference_update(ended)
            if not upstream and name not in ended:
                yield name

    def follower(self, name: str) -> list[str]:
        """Return the next stage of a stage's group, which waits for it to end in whatever way; none if it reads it."""
        follower = self._followers.get(name)
        return [] if follower is None or follower in self.readers[name] else [follower]

    def release(self, names: Collection[str], ended: str) -> Iterator[str]:
        """Let stages no longer wait for one that has ended; give those that now wait for none."""
        for name in names:
            upstream = self._waits_for[name]
            if ended in upstream:
                upstream.discard(ended)
                if not upstream:
                    yield name
