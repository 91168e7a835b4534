"""Run a comparison on clusters whose nodes share nothing but a DVC remote, and kill one of the nodes."""

import shutil
from pathlib import Path

from tests.dvcfleet.toy import Toy
from tests.faults import nodes


def drill(folder: Path, sample: bool) -> None:
    """Run the embedded comparison on Ray and on Dask, or a toy on Dask; hashes are those of a local run."""
    make, runners, kill_after = (nodes.embedded_source, ("ray", "dask"), 40)
    if sample:
        make, runners, kill_after = nodes.toy_source, ("dask",), 2
    source = make(folder / "source")
    local = Path(shutil.copytree(source, folder / "local", symlinks=True))
    if sample:  # without the seconds that a process of its own takes to start
        code, said = Toy(local, "", {}).run()
    else:
        process = nodes.run(local)
        said, _ = process.communicate()
        code = process.returncode
    assert code == 0, said
    for runner in runners:
        copy = Path(shutil.copytree(source, folder / runner / "source", symlinks=True))
        assert nodes.drill(runner, copy, local, kill_after), runner
