"""Run the text suites from nothing on two seeds, whose scores rise as promised, and one seed by `dvc repro` too."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo

from merganser.config.loading import load_params
from merganser.report.scores import Scores, read_scores
from tests.drills.repro import hashes
from tests.tiny import CODE, ROOT, dvc, merganser

SUITES = ("encoder", "causal")
SEEDS = (0, 1)
LEAST = 40  # outputs that are compared
RISING = ("base", "average", "tsv_m", "individual")
# Of a sample: few texts and steps, two tasks, two entries.
FEW = {"data": {"train": 40, "validation": 12, "test": 15}, "steps": 2, "texts": 20}
KEPT = ("review", "count")
ENTRIES = ("average", "individual")


def drill(folder: Path, sample: bool) -> None:
    """Run both suites on both seeds, or a small one of a sample; print the mean scores."""
    if sample:
        root = make_suites(folder / "sample", 0)
        cut(root)
        run(root, "encoder")
        return
    with ThreadPoolExecutor(len(SUITES)) as beside:  # the longest: each stage starts an interpreter
        repros = {suite: beside.submit(repro, folder / f"{suite}-repro", suite) for suite in SUITES}
        flows = {seed: run_both(folder / str(seed), seed) for seed in SEEDS}
        for suite, done in repros.items():
            found = done.result()
            assert len(found) >= LEAST
            assert found.items() <= flows[SEEDS[0]][suite].items()  # of a second suite, which comes after the first
            print(f"{suite}: {len(found)} outputs of `dvc repro` agree", flush=True)


def run_both(folder: Path, seed: int) -> dict[str, dict[str, str]]:
    """Run both suites by the flow, then the first again, of which nothing is lost; return the hashes of each."""
    root, found = make_suites(folder, seed), {}
    for suite in SUITES:
        scores = run(root, suite)
        found[suite] = hashes(root)
        print(suite, seed, {entry: round(100 * one.mean, 1) for entry, one in scores.items()}, flush=True)
        assert_rising(scores)
    merganser(root, "use", SUITES[0])  # back to it: nothing is trained, merged or evaluated again
    done = re.findall(r"(\S+) done in", merganser(root, "run", "--prune").stdout)
    assert done == []
    assert hashes(root) == found[SUITES[0]]
    return found


def repro(folder: Path, suite: str) -> dict[str, str]:
    """Run a suite by `dvc repro` on the first seed; return the hashes."""
    root = make_suites(folder, SEEDS[0])
    merganser(root, "use", suite)
    dvc(root, "repro", "-q")
    return hashes(root)


def make_suites(folder: Path, seed: int) -> Path:
    """Make a repository with the project's code, its suites and the examples that make them, for another seed."""
    folder.mkdir(parents=True)
    made = shutil.ignore_patterns("*.pyc", "hub", "datasets", "dvc.lock")
    for name in (*CODE, "examples", "suites"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=made)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    edit(folder / "examples/texts/params.yaml", {"seed": seed})
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")
    return folder


def cut(root: Path) -> None:
    """Make the suites small."""
    path = root / "examples/texts/params.yaml"
    params = yaml.safe_load(path.read_text())
    for stage in (stage for suite in SUITES for stage in params[suite].values()):
        stage.update({key: FEW[key] for key in stage.keys() & FEW.keys()})
    edit(path, params | {"data": FEW["data"], "tasks": list(KEPT)})
    path = root / "suites/encoder.yaml"
    suite = yaml.safe_load(path.read_text())
    del suite["studies"]
    path.write_text(
        yaml.safe_dump(suite | {"tasks": {name: suite["tasks"][name] for name in KEPT}, "methods": list(ENTRIES)})
    )


def edit(path: Path, changes: dict[str, Any]) -> None:
    """Change sections of a YAML file."""
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


def run(root: Path, suite: str) -> dict[str, Scores]:
    """Put a suite in place and run it; check that nothing is left to do, and that nothing of other suites was made."""
    assert "params.yaml is that of" in merganser(root, "use", suite).stdout
    before = set(root.glob("examples/**/hub"))
    merganser(root, "run", "--prune", "--workers", "2")
    assert set(root.glob("examples/**/hub")) - before <= {root / f"examples/texts/{suite}/hub"}
    assert (root / "report/index.html").is_file()
    assert "up to date" in dvc(root, "status")
    assert "up to date" in dvc(root, "repro")
    return read_scores(load_params(root / "params.yaml"), root / "data/metrics", root / "data/profiles/merge")


def assert_rising(scores: dict[str, Scores]) -> None:
    """Each entry is better than the one before it by more than twice the sampling error of both."""
    for lower, higher in pairwise(RISING):
        low, high = scores[lower], scores[higher]
        assert low.error is not None
        assert high.error is not None
        assert high.mean - low.mean > 2 * (low.error**2 + high.error**2) ** 0.5, (lower, higher)
