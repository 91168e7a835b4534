"""Run a comparison on nodes whose DVC remote is an S3 server's, or a folder reached by ssh, and kill one of them."""

import shutil
from pathlib import Path

import pytest

from tests.dvcfleet.toy import Toy
from tests.faults import nodes
from tests.faults.remotes import REMOTES


def drill(folder: Path, sample: bool) -> None:
    """Run the tiny comparison, or a toy, on Dask's nodes with each remote; hashes are those of a local run."""
    make, kill_after = (nodes.toy_source, 2) if sample else (nodes.tiny_source, 10)
    source = make(folder / "source")
    local = Path(shutil.copytree(source, folder / "local", symlinks=True))
    if sample:  # without the seconds that a process of its own takes to start
        code, said = Toy(local, "", {}).run()
    else:
        process = nodes.run(local)
        said, _ = process.communicate()
        code = process.returncode
    assert code == 0, said
    skipped = []
    for name, served in REMOTES.items():
        copy = Path(shutil.copytree(source, folder / name / "source", symlinks=True))
        try:
            with served(folder / name) as remote:
                print(f"{name}: {remote['url']}", flush=True)
                assert nodes.drill("dask", copy, local, kill_after, remote=remote), name
        except pytest.skip.Exception as reason:
            print(f"{name} skipped: {reason}", flush=True)
            skipped.append(str(reason))
    if len(skipped) == len(REMOTES):
        pytest.skip("; ".join(skipped))
