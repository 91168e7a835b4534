"""The engine with the oldest and the newest DVC and Prefect of the declared ranges.

For each end the tests of the adapters, and a repository that knows nothing of the engine: its `dvc.lock` is that of
`dvc repro`, Prefect's server has every line that its stages printed, and the run says nothing else.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.internals import RANGE
from tests import PYTHONPATH

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "packages/dvcfleet"
LIBRARIES = ("dvc", "prefect")
ENDS = ("oldest", "newest")
# What the engine and its tests import besides, by the ranges of both pyproject.toml.
BESIDES = (
    "coolname", "dpath", "fastapi", "filelock", "openlineage-python", "prov", "psutil", "rich", "ruamel.yaml",
    "SQLAlchemy", "typer", "uvicorn", "PyYAML",
)  # fmt: skip
TESTS = ("internals", "lock_entries", "storing", "database", "flow", "plan", "twins")
# The lines of the log say how many there are: 3 of each of the 6 stages with a command.
SAYS = "for i in 1 2 3; do echo said $i by $DVC_STAGE; done"
LINES = 18
FOREIGN = {
    "params.yaml": "rate: 0.1\nmodel: {size: 3, name: big, date: '2024-01-01'}\nparts: {x: 1, y: 2}\n",
    "conf.toml": "[deep]\nnumber = 2\n",
    "source": "one\n",
    "dvc.yaml": f"""
vars: [{{word: hello}}]
stages:
  cut: {{cmd: "{SAYS}; cp source cut", deps: [source], params: [rate, conf.toml: [deep.number]], outs: [cut]}}
  part:
    foreach: ${{parts}}
    do: {{cmd: "{SAYS}; mkdir ${{key}}.d; cp cut ${{key}}.d/cut", deps: [cut], outs: ["${{key}}.d"]}}
  grid:
    matrix: {{n: [1]}}
    cmd: {SAYS}; echo ${{word}} > grid
    params: [model]
    outs: [grid]
  score:
    cmd: {SAYS}; echo '{{"a":1}}' > score.json; printf 'x,y\\n1,2\\n' > plot.csv
    deps: [x.d, y.d, grid]
    metrics: [{{score.json: {{cache: false}}}}]
    plots: [plot.csv]
""",
    "sub/dvc.yaml": f"stages: {{low: {{cmd: {SAYS}; cat ../cut > low, deps: [../cut], outs: [low]}}}}\n",
}
# How a run ends; anything else that it prints is a warning, or an error.
EXPECTED = re.compile(
    r"run \S+: \d+ of \d+ stages are not up to date|\[\d/\d\] \S+ done in [\d.]+ s|\d done(, \d up to date)?"
)


def requirements(newest: bool) -> list[str]:
    """Return what to install: the libraries at one end of their ranges, and what is needed besides."""
    needed = [
        *_project(ENGINE)["dependencies"],
        *_project(ROOT)["dependencies"],
        *_project(ROOT)["optional-dependencies"]["pipeline"],
    ]
    ranges = {re.split(r"[<>=!~ ]", each)[0]: each for each in reversed(needed)}
    ends = [ranges[name] for name in LIBRARIES]
    assert ends[0] == RANGE, f"dvcfleet asks for {RANGE}, pyproject.toml for {ends[0]}"
    if not newest:
        ends = [re.sub(r">=([\d.]+).*", r"==\1.0", each) for each in ends]
    return [*ends, *(ranges[name] for name in BESIDES), "pytest", "hypothesis"]


def _project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def make_environment(folder: Path, end: str) -> Path:
    """Make a virtual environment with one end of the ranges; return its interpreter."""
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements(end == "newest")], check=True)
    return python


def drill(folder: Path, sample: bool) -> None:
    """Make an environment for each end of the ranges and try the engine in it; a sample only resolves their names."""
    for end in ENDS:
        wanted = requirements(newest=end == "newest")
        print(f"{end}: {', '.join(wanted[: len(LIBRARIES)])}", flush=True)
        if sample:
            continue
        python = make_environment(folder / end, end)
        run_foreign(python, folder / f"{end}-foreign")
        tests = [f"tests/dvcfleet/test_{name}.py" for name in TESTS]
        command = [str(python), "-m", "pytest", "-q", *tests]
        subprocess.run(command, cwd=ROOT, env=_environment(python), check=True)


def run_foreign(python: Path, folder: Path) -> None:
    """Run a foreign repository by `dvc repro` and by the engine, from nothing and after a change, and compare."""
    ours, theirs = folder / "ours", folder / "theirs"
    shutil.copytree(ENGINE / "dvcfleet", folder / "only/dvcfleet", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FOREIGN.items():
        (ours / name).parent.mkdir(parents=True, exist_ok=True)
        (ours / name).write_text(text)
    for command in (["git", "init", "-q"], [str(python), "-m", "dvc", "init", "-q"]):
        subprocess.run(command, cwd=ours, env=_environment(python), check=True)
    shutil.copytree(ours, theirs)
    for rate, runner, count in ((0.1, "threads", LINES), (0.2, "processes", 2 * LINES)):
        for each in (ours, theirs):
            for name in ("params.yaml", "source"):
                (each / name).write_text(FOREIGN[name].replace("0.1", str(rate)).replace("one", runner))
            if runner == "processes":  # every stage again
                (each / "dvc.yaml").write_text(FOREIGN["dvc.yaml"].replace("hello", "again"))
        _said(python, theirs, "dvc", "repro", "-q", "-P")
        said = _said(python, ours, "dvcfleet", "run", "-P", "--runner", runner)
        other = [line for line in said.splitlines() if not EXPECTED.fullmatch(line)]
        assert not other, f"{runner}: {other}"
        for lock in ("dvc.lock", "sub/dvc.lock"):
            assert (ours / lock).read_bytes() == (theirs / lock).read_bytes(), f"{runner}: {lock}"
        assert _logged(ours) == count, f"{runner}: Prefect's server has {_logged(ours)} lines of {count}"
    assert _said(python, ours, "dvcfleet", "run", "-P") == "nothing to do: 6 stages are up to date\n"
    assert "up to date" in _said(python, ours, "dvc", "status")
    print(f"a foreign repository: dvc.lock as by dvc repro, {_logged(ours)} lines on Prefect's server, no warning")


def _said(python: Path, root: Path, *command: str) -> str:
    """Run a module in a repository; return all that it printed, which says how it failed if it did."""
    done = subprocess.run(
        [str(python), "-m", *command], cwd=root, env=_environment(python, str(root.parent / "only")), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def _logged(root: Path) -> int:
    """Count the lines of stages that Prefect's server has."""
    with closing(sqlite3.connect(root / ".dvcfleet/prefect/prefect.db")) as database:
        messages: Sequence[tuple[str]] = database.execute("SELECT message FROM log").fetchall()
    return sum(len(re.findall(r"^said \d by ", message, re.MULTILINE)) for (message,) in messages)


def _environment(python: Path, packages: str = PYTHONPATH) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return known | {"PATH": path, "PYTHONPATH": packages, "DVC_NO_ANALYTICS": "1"}
