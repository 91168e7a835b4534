"""The adapters' tests against the oldest and the newest DVC and Prefect of the declared ranges."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARIES = ("dvc", "prefect")
ENDS = ("oldest", "newest")
# What the engine and its tests import besides, by the ranges of pyproject.toml.
BESIDES = (
    "coolname", "dpath", "fastapi", "filelock", "openlineage-python", "prov", "psutil", "rich", "ruamel.yaml",
    "SQLAlchemy", "uvicorn", "PyYAML",
)  # fmt: skip
TESTS = ("internals", "lock_entries", "lockfiles", "storing", "database", "flow", "run", "plan")


def requirements(newest: bool) -> list[str]:
    """Return what to install: the libraries at one end of their ranges, and what is needed besides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = {
        re.split(r"[<>=!~ ]", each)[0]: each
        for each in [*project["dependencies"], *project["optional-dependencies"]["pipeline"]]
    }
    ends = [ranges[name] for name in LIBRARIES]
    if not newest:
        ends = [re.sub(r">=([\d.]+).*", r"==\1.0", each) for each in ends]
    return [*ends, *(ranges[name] for name in BESIDES), "pytest", "hypothesis"]


def make_environment(folder: Path, end: str) -> Path:
    """Make a virtual environment with one end of the ranges; return its interpreter."""
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements(end == "newest")], check=True)
    return python


def drill(folder: Path, sample: bool) -> None:
    """Make an environment for each end of the ranges, and run the tests in it; a sample only resolves their names."""
    for end in ENDS:
        wanted = requirements(newest=end == "newest")
        print(f"{end}: {', '.join(wanted[: len(LIBRARIES)])}", flush=True)
        if sample:
            continue
        python = make_environment(folder / end, end)
        tests = [f"tests/dvcfleet/test_{name}.py" for name in TESTS]
        environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        # Not tests/conftest.py, which needs the library that the engine does without.
        command = [str(python), "-m", "pytest", "-q", "--confcutdir=tests/dvcfleet", *tests]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
