"""A step of learning, ours and as public code does it: `python -m benchmarks.learning`.

Models of ViT-B/32's width with random weights. Ours is the stage `learn`, which also measures the loss on the fixed
examples before and after the step; the other holds all task vectors in memory, and the merged model in one graph.

`--suite` times steps on the image suite in place of that, where `make run` has made it: of the stage with steps, less
one without.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.harness import MB, RESULTS, ROOT, Measured, Run, as_table, described, machine, measure, write_results
from benchmarks.projects import called, environment, prepare, write_project

WIDTH = 768  # ViT-B/32's
PREPARE = """
import sys
from merganser.tasks import fetch, prepare_validation
for task in sys.argv[1:]:
    fetch.main(["data", task])
    prepare_validation.main([f"{task}-split"])
"""


def main() -> None:
    """Measure both; print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=8, help="fine-tuned models (8)")
    parser.add_argument("--blocks", type=int, default=12, help="of the image tower (12: ViT-B/32)")
    parser.add_argument("--batch", type=int, default=16, help="examples a task and step (16)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--suite", action="store_true", help="time the steps of all learners on the image suite")
    options = parser.parse_args()
    print(described(machine()), flush=True)
    if options.suite:
        rows = []
        for name, step in suite_steps(options.batch):
            print(f"{name}: {step:.2f} s", flush=True)
            rows.append((name, f"{step:.2f}"))
        print(as_table(["learner", "a step, s"], rows))
        return
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        names = write_learning(folder, options.tasks, options.blocks, options.batch)
        sides = {"ours": ours(folder), "plain": plain(folder, names, options.batch)}
        found = {side: measure(run) for side, run in sides.items()}
    print(f"\n{options.tasks} tasks, {options.blocks} blocks, {options.batch} examples a task\n")
    print(table(found))
    write_results(RESULTS / "learning.json", {"options": vars(options) | {"folder": str(folder)}, "sides": found})


def write_learning(folder: Path, tasks: int, blocks: int, batch: int) -> list[str]:
    """Write a project that learns one step, as far as what learning reads; return the tasks' names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = write_project(folder, WIDTH, blocks, tasks, ["task_arithmetic"], images=batch)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["evaluation"]["split"], params["validation"] = "validation", {"split": "test"}  # the one split that is there
    params["learned"] = {"ada": {"learner": "adamerging", "of": "deltas", "steps": 1, "batch_size": batch}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    prepare(folder, names, until="extract")
    called(folder, [sys.executable, "-c", PREPARE, *names])
    return names


def ours(folder: Path, name: str = "ada") -> Run:
    """Learn by the stage."""
    return Run([sys.executable, "-m", "merganser.tasks.learn", name], folder, environment())


def suite_steps(batch: int) -> Iterator[tuple[str, float]]:
    """Time a step of each learner on the image suite, the mean of all its steps there with the checks of the loss.

    By its processes' CPU time.
    """
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params |= {name: {} for name in ("differences", "routers", "searches", "surgery")}
    params["methods"] = {"average": {"method": "average", "reads": "deltas"}}
    declared = params["learned"]
    params["learned"] = {
        f"{name}_{steps}": entry | {"steps": steps, "batch_size": batch}
        for name, entry in declared.items()
        for steps in (0, entry["steps"])
    }
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        folder = Path(temporary)
        (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        (folder / "data").mkdir()
        for path in (ROOT / "data").iterdir():
            if path.name != "learned":
                (folder / "data" / path.name).symlink_to(path)
        for name, entry in declared.items():
            before, after = (measure(ours(folder, f"{name}_{steps}")).cpu_s for steps in (0, entry["steps"]))
            yield name, (after - before) / entry["steps"]


def plain(folder: Path, names: list[str], batch: int) -> Run:
    """Learn as public code does."""
    pairs = [f"{folder}/datasets/{name}={folder}/hub/{name}" for name in names]
    command = [sys.executable, "-m", "benchmarks.plain.learning", f"{folder}/hub/base", str(batch), *pairs]
    return Run(command, environment=environment())


def table(found: dict[str, Measured]) -> str:
    """Write what each side took."""
    rows = [
        (side, f"{one.wall_s:.0f}", f"{one.cpu_s:.0f}", f"{one.peak_anonymous_bytes / MB:.0f}")
        for side, one in found.items()
    ]
    return as_table(["one step", "wall, s", "CPU, s", "anonymous, MB"], rows)


if __name__ == "__main__":
    main()
