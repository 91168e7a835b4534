"""Kill runs and stages with SIGKILL, each time followed by a clean finish with the same bytes.

Killed are: the run's own process at each of its file operations on a small repository (alone, or with its process
group); single processes of the real stages that decompose, join and merge; all stages of a level of the pipeline at
once, at their first operation, their last, in between or at exit; and whole runs of the pipeline at any moment.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dvcfleet.prefect_adapter.server import PrefectServer
from tests.drills.kill_runs import RunKills
from tests.drills.kill_stages import StageKills, Tiny, WaveKills, kill_at_moments, warm_server

STAGES, RUNS, WAVES, MOMENTS = 80, 80, 40, 5


def try_runs(folder: Path, count: int, chance: random.Random, links: bool) -> Iterator[tuple[str, bool]]:
    """Kill a run at as many of its operations, with copies in DVC's cache or with links out of it."""
    kills = RunKills(folder, links)
    for number in spread(list(range(1, kills.total + 1)), count):
        yield "the run", kills.trial(number, chance.random() < 0.5)


def try_stages(tiny: Tiny, count: int) -> Iterator[tuple[str, bool]]:
    """Kill as many processes of decompose, join and merge."""
    with warm_server(tiny) as server:
        kills = StageKills(tiny, server)
        for stage, at in spread(kills.points(), count):
            yield f"a process of {stage.split('@')[0]}", kills.trial(stage, at)


def try_waves(tiny: Tiny, folder: Path, count: int, chance: random.Random) -> Iterator[tuple[str, bool]]:
    """Kill whole levels of the pipeline until there were as many kills."""
    kills, hits = WaveKills(tiny, folder), 0
    moments: list[float | None] = [0.0, None, 1.0]
    while hits < count:
        now = kills.go(moments.pop(0) if moments else chance.random())
        assert now, "no kill hit"
        hits += now
        yield from [("a stage of the pipeline", True)] * now


def spread(points: list[Any], count: int) -> list[Any]:
    """As many of the points, evenly from the first to the last."""
    if count >= len(points):
        return points
    return [points[round(index * (len(points) - 1) / max(1, count - 1))] for index in range(count)]


def whole(folder: Path, chance: random.Random) -> Iterator[tuple[str, bool]]:
    """Try kills of each kind: what was killed, and whether the kill hit."""
    tiny = Tiny(folder / "pipeline")
    yield from try_stages(tiny, STAGES)
    for links in (False, True):
        yield from try_runs(folder / f"links {links}", RUNS // 2, chance, links)
    yield from try_waves(tiny, folder / "waves", WAVES, chance)
    for hit in kill_at_moments(tiny, folder / "moments", MOMENTS, chance):
        yield "the pipeline's run", hit


def some(folder: Path, chance: random.Random) -> Iterator[tuple[str, bool]]:
    """Try a few kills of runs; those of single stages have tests of their own."""
    yield from try_runs(folder / "runs", 2, chance, links=False)


def drill(folder: Path, sample: bool) -> None:
    """Try kills and print how many of each kind hit; raises AssertionError if few did, or if one does not end well."""
    hits: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    with prefect_server(folder / "prefect"):
        for kind, hit in (some if sample else whole)(folder, random.Random(0)):
            tried[kind] += 1
            hits[kind] += hit
    for kind, count in hits.items():
        print(f"{count:5} kills of {tried[kind]} tries: {kind}")
    print(f"{hits.total():5} kills, each followed by a clean finish with identical hashes", flush=True)
    assert all(hits[kind] >= int(0.6 * count) for kind, count in tried.items()), hits


@contextmanager
def prefect_server(home: Path) -> Iterator[None]:
    """Let the runs use the Prefect server that the environment names, or else one for all of them."""
    if "PREFECT_API_URL" in os.environ:
        yield
        return
    server = PrefectServer(home)
    try:
        with pytest.MonkeyPatch.context() as patch:
            server.wait()
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield
    finally:
        server.stop()
