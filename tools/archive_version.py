"""Keep a tiny comparison by this version: `python -m tools.archive_version` writes `tests/versions/VERSION.tar.xz`.

Every later version has to verify, restore and continue it (`tests/flows/test_versions.py`). A release adds one; none is
ever made again.
"""

import lzma
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import yaml

from merganser.flows.commands.init import Suite, init
from merganser.outputs import new_output, replacing
from tests.tasks.test_texts import write_sources

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests/versions"
PARAMS = {
    "seed": 0,
    "base": {"source": "sources/base", "family": "encoder", "heads": ["classifier.*"]},
    "parameters": {"merged": ["roberta.encoder.*"], "matrices": "linear"},
    "tasks": {
        task: {"source": f"sources/{task}", "kind": kind, "data": {"source": f"sources/{task}-data"}}
        for task, kind in {"linked": "text_classification", "graded": "regression"}.items()
    },
    "decompose": {"rank_fraction": 0.5, "dtype": "float32"},
    "methods": {
        "ties": {"method": "ties", "reads": "deltas"},
        "tsv_m": {"method": "tsv_m", "reads": "svd", "rank_fraction": 0.5},
    },
    "evaluation": {"split": "test", "batch_size": 16},
}


def main() -> None:
    """Make the comparison, run it, and write the archive."""
    with tempfile.TemporaryDirectory() as scratch, new_output(FOLDER / f"{version('merganser')}.tar.xz") as out:
        comparison, archive = Path(scratch, "comparison"), Path(scratch, "archive.tar")
        init(comparison, Suite("encoder"))
        shutil.rmtree(comparison / "examples")
        write_sources(comparison / "sources")
        (comparison / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
        for command in (["run"], ["archive", "--data", str(archive)]):
            commit(comparison, f"Before {command[0]}")
            subprocess.run([sys.executable, "-m", "merganser.flows", *command], cwd=comparison, check=True)
        with replacing(out) as file:
            file.write(lzma.compress(archive.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def commit(folder: Path, message: str) -> None:
    """Commit all of a comparison."""
    author = ("-c", "user.name=merganser", "-c", "user.email=merganser@localhost")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", message], cwd=folder, check=True)


if __name__ == "__main__":
    main()
