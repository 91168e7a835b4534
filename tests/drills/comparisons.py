"""Comparisons that share one DVC cache: two that begin at once with it empty; one that is left and taken up again."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.drills.repro import hashes
from tests.tiny import CODE, ROOT, dvc, make_repository, merganser

ROUNDS = 10  # of beginning at once: what two writers of a cache get wrong they get wrong seldom
NAMES = ("one", "two")


def drill(folder: Path, sample: bool) -> None:
    """Run two comparisons at once on an empty cache, then leave one for the other and come back."""
    root = make_root(folder / "root")
    for number in range(1 if sample else ROUNDS):
        places = {name: folder / f"{name}-{number}" for name in NAMES}
        shutil.rmtree(root / ".dvc/cache", ignore_errors=True)
        for name, place in places.items():
            merganser(folder, "init", str(place), "--suite", name, "--cache-of", str(root))
        with ThreadPoolExecutor(len(NAMES)) as beside:
            runs = {name: beside.submit(run, place) for name, place in places.items()}
            ran = {name: done.result() for name, done in runs.items()}
        found = {name: hashes(place) for name, place in places.items()}
        assert {out for out in found["one"] if out.startswith("data/svd")}
        for name, place in places.items():
            assert "up to date" in dvc(place, "status")
            print(
                number, name, f"{len(ran[name])} stages run beside the other,", len(found[name]), "outputs", flush=True
            )
        same = {out for out in found["one"].keys() & found["two"].keys() if out.startswith(("data/svd", "data/deltas"))}
        assert all(found["one"][out] == found["two"][out] for out in same)
    take_up(root, found)


def take_up(root: Path, found: dict[str, dict[str, str]]) -> None:
    """Use one, the other, and both again: all is restored, and only what says when it was written runs again."""
    for name in NAMES:
        merganser(root, "use", name)
        run(root)
        assert results(hashes(root)) == results(found[name])
    for name in NAMES:
        merganser(root, "use", name)
        assert {stage.partition("@")[0] for stage in run(root)} <= {"record", "report"}
        assert "up to date" in dvc(root, "status")
        assert results(hashes(root)) == results(found[name])


def results(found: dict[str, str]) -> dict[str, str]:
    """Return the hashes of merges and scores."""
    return {out: md5 for out, md5 in found.items() if out.startswith(("data/merged", "data/metrics"))}


def run(root: Path) -> set[str]:
    """Run a comparison; return the stages that were run, not restored."""
    return set(re.findall(r"(\S+) done in", merganser(root, "run", "--prune", "--workers", "2").stdout))


def make_root(folder: Path) -> Path:
    """Make a committed repository with two suites: the tiny comparison, and one of other parameters and entries."""
    make_repository(folder)
    text = (ROOT / "tests/tiny/params.yaml").read_text()
    other = text.replace("density: 0.5", "density: 0.25").replace(
        "  average: {method", "  tsv_m: {method: tsv_m, reads: svd}\n  average: {method"
    )
    for name, content in zip(NAMES, (text, other), strict=True):
        (folder / "suites").mkdir(exist_ok=True)
        (folder / f"suites/{name}.yaml").write_text(content)
    git = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", *CODE, "params.yaml", "suites", ".dvc/config"], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    return folder
