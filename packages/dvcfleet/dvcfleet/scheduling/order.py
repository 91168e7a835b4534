"""Choose the ready stages to start next: wanted ones first, then those at the start of the longest path of work.

A stage waits for those that it reads from, and for the one before it in its group. None is passed over: one that does
not fit now has a machine reserved for it. Others start there only on what it leaves, or if they are expected to end
before it can start. Among machines with room a stage starts on the one that holds most of its inputs.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import log

from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.durations import Durations
from dvcfleet.scheduling.resource_pool import Allocation, Capacity, ResourcePool


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


# For how many stages machines are reserved at a time.
_RESERVED = 8
# How many stages of one request are looked at for one that ends before a reservation.
_LOOKS = 32


def paths(needs: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds from each stage's start to the last end, along the longest path of stages that wait for it.

    `needs`: in topological order. A stage that `seconds` lacks takes none.
    """
    lengths = dict.fromkeys(needs, 0.0)
    for name in reversed(list(needs)):
        lengths[name] += seconds.get(name, 0.0)
        for need in needs[name]:
            lengths[need] = max(lengths[need], lengths[name])
    return lengths


def followers(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Count the stages that wait for each stage, also through others; `needs`: in topological order."""
    sets = dict.fromkeys(needs, 0)  # as bits: thousands of stages wait for some
    for number, name in reversed(list(enumerate(needs))):
        for need in needs[name]:
            sets[need] |= sets[name] | 1 << number
    return {name: bits.bit_count() for name, bits in sets.items()}


def with_needs(names: Collection[str], needs: Mapping[str, Collection[str]]) -> set[str]:
    """Return stages with all that they wait for, also through others; `needs`: in topological order.

    >>> sorted(with_needs(["c"], {"a": [], "b": [], "c": ["a"], "d": ["b", "c"]}))
    ['a', 'c']
    """
    needed = set(names)
    for name in reversed(list(needs)):
        if name in needed:
            needed.update(needs[name])
    return needed


@dataclass
class _Reservation:
    """A machine reserved for a stage from a time on, and what the stage will leave of it."""

    at: float
    left: Capacity
    # The stage could not start when it was first expected to: nothing is put before it any more.
    is_late: bool


class ReadyStages:
    """The stages that are ready, in the order in which they start.

    `needs`: all stages of the plan with those they read from, in topological order; `resources`: of those that may
    run. `first`: stages whose results are wanted first. `in_order`: they start in that order, whatever is wanted.
    `locality`: the places of inputs. Among stages of similar rank, the one starts first whose largest input is on a
    machine with room, and it starts on the machine that holds most of its inputs.
    """

    def __init__(
        self,
        needs: Mapping[str, Sequence[str]],
        resources: Mapping[str, Resources],
        durations: Durations,
        pool: ResourcePool,
        clock: Callable[[], float] = time.monotonic,
        in_order: bool = False,
        first: Collection[str] = (),
        locality: Locality | None = None,
    ) -> None:
        self._wanted = with_needs(first, needs)
        self._in_order, self._locality = in_order, locality
        self._needs, self._resources, self._durations = needs, resources, durations
        self._pool, self._clock = pool, clock
        self._numbers = {name: number for number, name in enumerate(needs)}
        self._followers = followers(needs)
        self._measure()
        # Stages of one request share a heap: when one of them fits nowhere, no other does.
        self._heaps: dict[Resources, list[tuple[tuple[float, ...], str]]] = {}
        # Those of about one rank, by their largest input, in their order; what is taken of them stays in a heap.
        self._alike: dict[tuple[Resources, tuple[float, ...]], dict[str, list[tuple[int, str]]]] = {}
        self._taken: set[str] = set()
        self._began: dict[str, float] = {}
        # The machine reserved for a stage, and when the stage was first expected to start there.
        self._promises: dict[str, tuple[str, float]] = {}

    def __bool__(self) -> bool:
        return sum(map(len, self._heaps.values())) > len(self._taken)

    def add(self, name: str) -> None:
        """Add a stage that has become ready."""
        if name in self._taken:  # it is still in its heap
            self._taken.discard(name)
        else:
            heappush(self._heaps.setdefault(self._resources[name], []), (self._rank(name), name))
        if self._locality:
            alike = self._alike.setdefault(self._likeness(name), {})
            heappush(alike.setdefault(self._locality.largest(name), []), (self._numbers[name], name))

    def note(self, name: str, seconds: float) -> None:
        """Note how long a stage took; if it is the first of its kind, put the stages in order again."""
        if self._durations.note(name, seconds):
            self._measure()
            names = [name for heap in self._heaps.values() for _, name in heap if name not in self._taken]
            self._heaps, self._alike, self._taken = {}, {}, set()
            for each in names:
                self.add(each)

    def startable(self) -> Iterator[tuple[str, Allocation]]:
        """Take out the stages that can start now, the first in order first, each with the allocation offered to it.

        The pool must have given an allocation, if the stage needs it, before the next stage is asked for.
        """
        reserved: dict[str, _Reservation] = {}
        waiting: list[str] = []
        closed: set[Resources] = set()
        looks: Counter[Resources] = Counter()
        try:
            while self._pool.free_threads > 0 and (request := self._first(closed)) is not None:
                name = self._take(request)
                share = self._offer(name, reserved)
                if share is not None:
                    self._promises.pop(name, None)
                    self._began[name] = self._clock()
                    if self._locality:
                        self._locality.note_start(name, share.machine)
                    yield name, share
                    continue
                waiting.append(name)
                if self._pool.is_short_of_workers(self._resources[name]):
                    return
                looks[request] += 1
                is_reserved = self._reserve(name, reserved)
                # While something is free that is reserved for later, one of the next stages may be short enough.
                if not is_reserved and (looks[request] > _LOOKS or self._pool.offer(request) is None):
                    closed.add(request)
        finally:
            for name in waiting:
                self.add(name)

    def _first(self, closed: Set[Resources]) -> Resources | None:
        """Return the request of the first stage in order, of requests that are not closed; None if there is none."""
        for heap in self._heaps.values():
            while heap and heap[0][1] in self._taken:
                self._taken.discard(heappop(heap)[1])
        heads = [(heap[0], request) for request, heap in self._heaps.items() if heap and request not in closed]
        return min(heads, key=lambda head: head[0])[1] if heads else None

    def _take(self, request: Resources) -> str:
        """Take out the first stage of a request, or one of about its rank whose largest input lies where room is."""
        first = self._heaps[request][0][1]
        if self._locality is None:
            return heappop(self._heaps[request])[1]
        alike = self._alike[self._likeness(first)]
        wanted = self._pool.least(request)
        room = {machine for machine, free in self._pool.free.items() if free.holds(wanted)}
        content = self._locality.nearest(alike, room)
        name = first if content is None else alike[content][0][1]
        own = alike[self._locality.largest(name)]
        own.remove((self._numbers[name], name))
        heapify(own)
        if not own:
            del alike[self._locality.largest(name)]
        if name == first:
            heappop(self._heaps[request])
        else:
            self._taken.add(name)
        return name

    def _likeness(self, name: str) -> tuple[Resources, tuple[float, ...]]:
        """Return what stages of about one rank have in common: paths that differ by less than a tenth count as one."""
        later, path, *others, _ = self._rank(name)
        return self._resources[name], (later, round(10 * log(-path)) if path else 0.0, *others)

    def _offer(self, name: str, reserved: Mapping[str, _Reservation]) -> Allocation | None:
        """Return an allocation that delays no stage for which a machine is reserved, as near the inputs as can be."""
        resources = self._pool.least(self._resources[name])
        held = self._locality.held(name) if self._locality else {}
        machines = self._pool.by_free_capacity()
        for machine in sorted(machines, key=lambda key: -held.get(key, 0.0)) if held else machines:
            share = self._pool.offer(resources, machine)
            if share is None:
                continue
            kept = reserved.get(machine)
            if kept is None:
                return share
            if kept.left.holds(resources):
                kept.left = kept.left.without(resources)
                return share
            if not kept.is_late and self._clock() + self._durations[name] <= kept.at:
                return share
        return None

    def _reserve(self, name: str, reserved: dict[str, _Reservation]) -> bool:
        """Reserve a machine for a stage, the one promised before or where it can start first; return whether any is."""
        resources = self._pool.least(self._resources[name])
        able = [key for key, each in self._pool.machines.items() if key not in reserved and each.has.holds(resources)]
        if not able or len(reserved) >= _RESERVED:
            return False
        promised, first_at = self._promises.get(name, ("", 0.0))
        machine = promised if promised in able else min(able, key=lambda key: self._when_free(key, resources)[0])
        at, capacity = self._when_free(machine, resources)
        if name not in self._promises:
            first_at = at
        self._promises[name] = machine, first_at
        reserved[machine] = _Reservation(at, capacity.without(resources), self._clock() > first_at)
        return True

    def _when_free(self, machine: str, resources: Resources) -> tuple[float, Capacity]:
        """Return when a machine is expected to have what a stage requests, and what is free then."""
        capacity, at = self._pool.free[machine], self._clock()
        running = sorted((self._began[name] + self._durations[name], name) for name in self._pool.on[machine])
        for end, name in running:
            if capacity.holds(resources):
                break
            capacity, at = capacity.plus(self._pool.given[name].capacity), max(at, end)
        return at, capacity

    def _rank(self, name: str) -> tuple[float, ...]:
        """What is wanted, then the longest path; of equal ones what most others wait for, and the larger request."""
        if self._in_order:
            return (self._numbers[name],)
        wanted = self._resources[name]
        later = name not in self._wanted
        return (later, -self._paths[name], -self._followers[name], -wanted.gpus, -wanted.threads, self._numbers[name])

    def _measure(self) -> None:
        self._paths = paths(self._needs, {name: self._durations[name] for name in self._resources})
