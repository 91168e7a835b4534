"""Kill runs and stages at their file operations, each time followed by a clean finish with the same bytes.

`python -m tests.faults.kills --count 200` tries as many and prints how many of each kind hit: the run's own process on
a small repository (alone, or with its process group); single processes of the real stages that decompose, join and
merge; and all stages of a level of the pipeline at once, at their first operation, their last, in between or at exit.
"""

import argparse
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dvcfleet.prefect_adapter.server import Server
from tests.faults.pipeline import StageKills, Tiny, WaveKills, warm_server
from tests.faults.small import RunKills


def try_runs(folder: Path, count: int, chance: random.Random) -> Iterator[tuple[str, bool]]:
    """Kill a run at as many of its operations, with copies in DVC's cache and with links out of it."""
    for links in (False, True):
        kills = RunKills(folder / ("links" if links else "copies"), links)
        for number in spread(list(range(1, kills.total + 1)), count // 2):
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


def trials(folder: Path, count: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Try kills of each kind; what was killed, and whether the kill hit."""
    chance = random.Random(seed)
    tiny = Tiny(folder / "pipeline")
    yield from try_stages(tiny, round(0.4 * count))
    yield from try_runs(folder, round(0.4 * count), chance)
    yield from try_waves(tiny, folder / "waves", round(0.2 * count), chance)


def main() -> None:
    """Try them and print the counts; what does not end well stops it with what is amiss."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills")
    parser.add_argument("--count", type=int, default=200, help="kills to try")
    parser.add_argument("--seed", type=int, default=0, help="of the random ones")
    given = parser.parse_args()
    hits: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="merganser-kills-") as folder:
        server = Server(Path(folder) / "prefect")
        try:
            os.environ["PREFECT_API_URL"] = server.wait()
            for kind, hit in trials(Path(folder), given.count, given.seed):
                hits[kind] += hit
                print(f"{hits.total()} kills so far", end="\r", flush=True)
        finally:
            server.stop()
    for kind, count in hits.items():
        print(f"{count:5} times {kind}")
    print(f"{hits.total():5} kills, each followed by a clean finish with identical hashes")


if __name__ == "__main__":
    main()
