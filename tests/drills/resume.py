"""Kill what learns, searches, measures, routes and operates in its middle: it goes on to the same bytes."""

from pathlib import Path
from typing import Any

from tests.drills.kill_stages import StageKills, Tiny, warm_server
from tests.drills.kills import prefect_server, spread

KILLS = 5
SECTIONS: dict[str, Any] = {
    "learned": {
        name: {"learner": name, "of": of, "steps": 12, "every": 1, "batch_size": 2}
        for name, of in (("adamerging", "deltas"), ("concrete", "deltas"), ("adarank", "svd"))
    },
    "searches": {
        "grid": {"method": "ties", "of": "deltas", "over": {"scaling": [0.4, 0.7, 1.0], "density": [0.2, 0.5]}},
        "evolved": {"method": "pcb", "of": "deltas", "evolve": {"generations": 3, "population": 4}},
    },
    "statistics": {"gram": {"kind": "gram", "examples": 4}, "fisher": {"kind": "fisher", "examples": 4, "base": True}},
    "methods": {"average": {"method": "average", "reads": "deltas"}},
    "differences": {"average": {"merged": "average"}},
    "routers": {"average": {"of": "differences/average"}},
    "surgery": {"average": {"of": "differences/average", "rank": 4, "steps": 30, "batch_size": 2}},
    "studies": {"tasks": {"subsets": 2, "methods": {}}, "rank": {"fractions": []}},
}
STAGES = [
    *(f"learn@{name}" for name in SECTIONS["learned"]),
    *(f"search@{name}" for name in SECTIONS["searches"]),
    *(f"statistics@{name}-dark" for name in SECTIONS["statistics"]),
    *("route@average", "surgery@average"),
]


def drill(folder: Path, sample: bool) -> None:
    """Kill each stage at five of its file operations, none in the first quarter and the last tenth; a sample once."""
    with prefect_server(folder / "prefect"):
        tiny = Tiny(folder / "pipeline", *STAGES, sections=SECTIONS)
    with warm_server(tiny) as server:
        kills = StageKills(tiny, server)
        for name in STAGES[:1] if sample else STAGES:
            count = tiny.counted[name]
            for at in spread(list(range(count // 4 + 1, count - count // 10)), 1 if sample else KILLS):
                assert kills.kill(name, at), f"{name} was not killed at operation {at} of {count}"
                kept = kills.kept(name)
                assert kept, f"{name}, killed at operation {at} of {count}, has nothing to go on from"
                kills.finish(name)
                print(f"{name}: killed at operation {at} of {count}, {kept} files kept, the same bytes", flush=True)
