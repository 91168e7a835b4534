"""Run the tiny comparison by the flow and by `dvc repro`: the hashes agree, and neither finds work after the other.

The tiny comparison is widened by what looks at data, learns, searches and routes, and merged with two seeds.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.faults.whole import entries, is_pure
from tests.tiny import dvc, make_repository, merganser

SAMPLED = ("fetch_base",)
STEPS = {"steps": 3, "every": 1, "batch_size": 4}
WIDENED: dict[str, dict[str, Any]] = {
    "statistics": {"fisher": {"kind": "fisher", "examples": 4, "base": True}},
    "learned": {
        "concrete": {"learner": "concrete", "of": "deltas", "inner": "adamerging", "mask_steps": 2, **STEPS},
        "wemoe": {"learner": "wemoe", "of": "deltas", **STEPS},
    },
    "searches": {
        "grid": {"method": "ties", "of": "deltas", "over": {"scaling": [0.5, 1.0], "density": [0.2, 0.5]}},
        "evolved": {"method": "pcb", "of": "deltas", "evolve": {"generations": 1, "population": 4}},
    },
    "routers": {"average": {"of": "differences/from_average"}, "base": {"of": "deltas"}},
    "surgery": {"average": {"of": "differences/from_average", "rank": 4, "steps": 20, "batch_size": 2}},
    "methods": {
        "dare": {"method": "dare", "reads": "deltas"},
        "fisher": {"method": "fisher", "reads": "statistics/fisher"},
        "concrete": {"method": "concrete", "reads": "learned/concrete"},
        "wemoe": {"method": "wemoe", "reads": "learned/wemoe"},
        "grid": {"method": "ties", "reads": "searches/grid"},
        "evolved": {"method": "pcb", "reads": "searches/evolved"},
        "twin": {"method": "twin", "reads": "routers/average"},
        "free": {"method": "free", "reads": "routers/base"},
        "smile": {"method": "smile", "reads": "svd"},
        "surgery": {"method": "surgery", "reads": "surgery/average"},
    },
}


def drill(folder: Path, sample: bool) -> None:
    """Compare all stages, or those of a sample, and print how many outputs agree."""
    targets = SAMPLED if sample else ()
    flow = make_repository(folder / "flow")
    if not sample:
        widen(flow / "params.yaml")
    repro = Path(shutil.copytree(flow, folder / "dvc", symlinks=True))
    merganser(flow, "run", *targets)
    dvc(repro, "repro", "-q", *targets)
    expected, found = hashes(flow), hashes(repro)
    assert entries(repro).keys() == entries(flow).keys()
    assert len(expected) >= (2 if sample else 100)
    assert found == expected, sorted(path for path in expected if found[path] != expected[path])
    assert "Data and pipelines are up to date" in dvc(flow, "repro", *targets)
    assert "nothing to do" in merganser(repro, "run", *targets).stdout.lower()
    print(f"{len(entries(flow))} stages: {len(expected)} outputs agree", flush=True)


def widen(file: Path) -> None:
    """Add to a comparison what looks at data, learns, searches and routes, and a second seed."""
    params = yaml.safe_load(file.read_text())
    added = {section: params.get(section, {}) | declared for section, declared in WIDENED.items()}
    file.write_text(yaml.safe_dump(params | added | {"seed": [0, 1]}, sort_keys=False))


def hashes(folder: Path) -> dict[str, str]:
    """The hashes of all outputs that are pure functions of their inputs."""
    outs = [out for entry in entries(folder).values() for out in entry.get("outs", [])]
    return {out["path"]: out["md5"] for out in outs if is_pure(out["path"])}
