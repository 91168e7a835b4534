"""Run random repositories by `dvc repro` and by the engine: both leave the same, also after a random change.

Several repositories are folders of one, so that a run costs as little as for one. Compared are which commands ran,
dvc.lock byte for byte, the workspace and DVC's cache with modes and links, the run cache, and whether the run
succeeded.
"""

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dvcfleet.options import Options
from tests.dvcfleet.repositories import Change, Repository, changes, make, repositories
from tests.dvcfleet.twins import OURS, THEIRS, Twins

WHOLE, SAMPLE = (500, 10), (5, 4)  # repositories, and how many of them at once: but the first, which is the simplest
ALL = Options(all_pipelines=True)


@dataclass
class Tried:
    """How many repositories were tried, how many stages ran in them, and descriptions of the differences."""

    repositories: int = 0
    ran: int = 0
    again: int = 0
    differences: list[str] = field(default_factory=list)


def drill(folder: Path, sample: bool) -> None:
    """Try them, and print how many, and each difference with its repository."""
    tried = Tried()
    try_all(tried, *(SAMPLE if sample else WHOLE))
    print(
        f"{tried.repositories} repositories, {tried.ran} stages ran, and {tried.again} after a change: "
        f"{len(tried.differences)} differ",
        flush=True,
    )
    assert not tried.differences, "\n\n".join(tried.differences[:3])


def try_all(tried: Tried, count: int, together: int, number: int = 0) -> None:
    """Try so many repositories, some together; `number` chooses others."""

    @seed(number)
    @settings(
        max_examples=1 + math.ceil((count - 1) / together),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def batch(data: st.DataObject) -> None:
        may_fail = data.draw(st.booleans())
        drawn = [data.draw(repositories(f"r{each}", may_fail)) for each in range(together if tried.repositories else 1)]
        changed = [data.draw(changes(each)) for each in drawn]
        with tempfile.TemporaryDirectory(prefix="differential-") as folder:
            try_batch(tried, Path(folder) / "twins", drawn, changed)

    batch()


def try_batch(tried: Tried, folder: Path, drawn: list[Repository], changed: list[Change]) -> None:
    """Try repositories as folders of one: run, change each, run, and run once more."""
    names = [f"r{number}" for number in range(len(drawn))]
    files = {
        f"{name}/{path}": text for name, each in zip(names, drawn, strict=True) for path, text in each.files.items()
    }
    added = tuple(f"{name}/{path}" for name, each in zip(names, drawn, strict=True) for path in each.added)
    twins = Twins(folder, files, added)
    described = {name: each.described() for name, each in zip(names, drawn, strict=True)}
    tried.repositories += len(drawn)
    for when in ("first", "after a change", "again"):
        if when == "after a change":
            for side in (OURS, THEIRS):
                for name, change in zip(names, changed, strict=True):
                    make(change, twins.at(side) / name)
                    described[name] += f"\n# then: {change.kind}, {change.what}"
        found = twins.both(ALL)
        tried.ran += len(twins.did) if when == "first" else 0
        tried.again += len(twins.did) if when == "after a change" else 0
        if found:
            tried.differences.append(_told(when, found, described, twins.said))
            return  # what follows differs because of it


def _told(when: str, found: dict[str, tuple[Any, Any]], described: dict[str, str], said: str) -> str:
    """Describe a difference: the repositories that it is in, and what each side left."""
    lines = [f"run {when}: {len(found)} differences"]
    names = {name for name in described if any(path.startswith(f"{name}/") for path in found)}
    if "ran" in found:
        theirs, mine = (set(each) for each in found["ran"])
        names |= {stage.partition("/")[0] for stage in theirs ^ mine}
    for path, (theirs, mine) in found.items():
        lines += [f"{path}:", f"  dvc repro: {theirs}", f"  the engine: {mine}"]
    lines += [f"{described[name]}\n{_lines_of(name, said)}" for name in sorted(names)]
    return "\n".join(lines)


def _lines_of(name: str, said: str) -> str:
    return "\n".join(line for line in said.splitlines() if f"{name}/" in line)
