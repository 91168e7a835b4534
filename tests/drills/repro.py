"""Run the tiny comparison by the flow and by `dvc repro`: the hashes agree, and neither finds work after the other."""

import shutil
from pathlib import Path

from tests.faults.whole import entries, is_pure
from tests.tiny import dvc, make_repository, merganser

SAMPLED = ("fetch_base",)


def drill(folder: Path, sample: bool) -> None:
    """Compare all stages, or those of a sample, and print how many outputs agree."""
    targets = SAMPLED if sample else ()
    flow = make_repository(folder / "flow")
    repro = Path(shutil.copytree(flow, folder / "dvc", symlinks=True))
    merganser(flow, "run", *targets)
    dvc(repro, "repro", "-q", *targets)
    expected, found = hashes(flow), hashes(repro)
    assert entries(repro).keys() == entries(flow).keys()
    assert len(expected) >= (2 if sample else 40)
    assert found == expected
    assert "Data and pipelines are up to date" in dvc(flow, "repro", *targets)
    assert "nothing to do" in merganser(repro, "run", *targets).stdout.lower()
    print(f"{len(entries(flow))} stages: {len(expected)} outputs agree", flush=True)


def hashes(folder: Path) -> dict[str, str]:
    """The hashes of all outputs that are pure functions of their inputs."""
    outs = [out for entry in entries(folder).values() for out in entry.get("outs", [])]
    return {out["path"]: out["md5"] for out in outs if is_pure(out["path"])}
