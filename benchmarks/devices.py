"""Stages on a GPU beside the CPU: `python -m benchmarks.devices merge evaluate@ties-movies ...`, or `--large` merges.

In a comparison that `merganser run` has made, on a machine with a GPU. A stage has its name in dvc.lock; `merge` means
all of that kind. The stages of a device run one after another in one process, in a copy of the comparison: once on the
CPU and twice on the GPU. Shown are the seconds of the last time, without the start of the libraries, the peak memory,
whether the GPU wrote the same bytes twice, and how far they are from the CPU's. `--large`: see large_models.py.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from benchmarks import large_models
from benchmarks.harness import MB, RESULTS, ROOT, as_table, described, machine, write_results
from benchmarks.projects import environment
from merganser.flows.steps.devices import changes_for
from merganser.tasks.stage import run_main
from merganser.tasks.stages import PROFILES, STAGES

DEVICES = ("cpu", "cuda")
TIMES = {"cpu": 1, "cuda": 2}  # after one of the first stage that does not count
THERE = "--there"
MARK = " took "


@dataclass(frozen=True)
class Took:
    """One time of one stage; `digest`: of all that it wrote but times."""

    seconds: float
    host_bytes: int  # resident at most, with torch and CUDA
    gpu_bytes: int  # allocated at most
    digest: str


def main() -> None:
    """Measure the stages named; print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="such as merge@ties, or a kind, such as merge")
    parser.add_argument("--large", action="store_true", help="merge models of 1.1 and 8 billion parameters, made here")
    parser.add_argument("--tiny", action="store_true", help="with --large: tiny models, also without a GPU")
    parser.add_argument("--folder", type=Path, default=Path(), help="with --large: where the models are made (here)")
    parser.add_argument("--minutes", type=float, default=10, help="with --large: after which no merge begins (10)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the CPU (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    if bool(options.stages) == options.large:
        parser.error("give stages, or --large")
    options.json = options.json or RESULTS / ("large_models.json" if options.large else "devices.json")
    if options.large and (options.tiny or torch.cuda.is_available()):
        large_models.main(options)
        return
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here")
    outputs = chosen(yaml.safe_load(Path("dvc.lock").read_text())["stages"], options.stages)
    print(f"{described(machine())}; {options.threads} threads; {torch.cuda.get_device_name()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix=".devices-", dir=Path()) as temporary:
        copies = {device: copied(Path(temporary, device).absolute(), device) for device in DEVICES}
        took = {device: measured(folder, outputs, options.threads) for device, folder in copies.items()}
        moved = {stage: differences(copies["cpu"], copies["cuda"], outs) for stage, outs in outputs.items()}
    print(table(took, moved))
    write_results(options.json, {"took": took, "moved": moved})


def chosen(stages: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return what each wanted stage writes, but for times; raise SystemExit for one that dvc.lock does not have."""
    found = {}
    for want in wanted:
        names = [name for name in stages if want in (name, name.partition("@")[0])]
        if not names or STAGES[want.partition("@")[0]].device is None:
            sys.exit(f"{want}: no stage of dvc.lock that may compute on a GPU")
        for name in names:
            paths = [out["path"] for out in stages[name]["outs"]]
            found[name] = [path for path in paths if not Path(path).is_relative_to(PROFILES)]
    return found


def copied(folder: Path, device: str) -> Path:
    """Make a comparison of links to this one's data, with this device wherever params.yaml declares one."""
    shutil.copytree("data", folder / "data", copy_function=os.link)  # a stage replaces what it writes
    content = yaml.safe_load(Path("params.yaml").read_text())
    for place in changes_for(device, Path("params.yaml")):
        *sections, key = place.split(".")
        section = content
        for each in sections:
            section = section.setdefault(each, {})
        section[key] = device
    (folder / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def measured(folder: Path, outputs: Mapping[str, Sequence[str]], threads: int) -> dict[str, list[Took]]:
    """Run the stages there, in a process of their own."""
    words = [sys.executable, "-m", "benchmarks.devices", THERE, folder.name, json.dumps(outputs)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "packages/dvcfleet"), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    variables = os.environ | environment(threads) | {"PYTHONPATH": path}
    found = dict[str, list[Took]]()
    with subprocess.Popen(words, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            stage, _, figures = line.rstrip().rpartition(MARK)
            if stage:
                took = Took(**json.loads(figures))
                found.setdefault(stage, []).append(took)
                print(f"{folder.name} {stage} {took.seconds:.2f} s", file=sys.stderr, flush=True)
    if process.returncode:
        sys.exit(f"a stage on {folder.name} ended with {process.returncode}")
    return found


def there(argv: list[str]) -> None:
    """Run the stages here; print a line each time."""
    _, device, text = argv
    outputs = json.loads(text)
    timed(*next(iter(outputs.items())))
    for stage, outs in outputs.items():
        for _ in range(TIMES[device]):
            print(f"{stage}{MARK}{json.dumps(asdict(timed(stage, outs)))}", flush=True)


def timed(stage: str, outs: Sequence[str]) -> Took:
    """Run a stage, the peaks of memory set back before."""
    kind, _, name = stage.partition("@")
    stage_main = import_module(f"tasks.{kind}").main
    for out in outs:  # what is there would be gone on with
        shutil.rmtree(out) if Path(out).is_dir() else Path(out).unlink()
    seconds, host_bytes, gpu_bytes = large_models.peaks_of(lambda: stage_main([name] if name else []))
    return Took(seconds, host_bytes, gpu_bytes, digest(outs))


def digest(outs: Iterable[str]) -> str:
    """Return the hash of the names and bytes of all files that a stage wrote."""
    found = hashlib.sha256()
    for path in files(Path(), outs):
        found.update(f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def files(folder: Path, outs: Iterable[str]) -> Iterator[Path]:
    """Give the files of outputs, those of a folder by their names."""
    for out in outs:
        path = folder / out
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def differences(one: Path, other: Path, outs: Sequence[str]) -> dict[str, float]:
    """Say how far two outputs of a stage are apart: of tensors |a - b| / |a| over all, of a score the numbers."""
    apart, length, scores = 0.0, 0.0, {}
    for path in files(one, outs):
        twin = other / path.relative_to(one)
        if path.suffix == ".safetensors":
            mine, theirs = load_file(path), load_file(twin)
            pairs = [(mine[name].double(), theirs[name].double()) for name in mine if mine[name].is_floating_point()]
            apart += sum(float((a - b).square().sum()) for a, b in pairs if a.shape == b.shape)
            length += sum(float(a.square().sum()) for a, _ in pairs)
        elif "value" in (content := json.loads(path.read_text()) if path.suffix == ".json" else {}):
            scores = {"score": content["value"], "score_gpu": json.loads(twin.read_text())["value"]}
    return {"relative": (apart / length) ** 0.5 if length else 0.0} | scores


def table(took: Mapping[str, Mapping[str, Sequence[Took]]], moved: Mapping[str, Mapping[str, float]]) -> str:
    """Write a row a stage."""
    heads = (
        "stage",
        "CPU, s",
        "GPU, s",
        "CPU / GPU",
        "CPU's host, MB",
        "GPU's host, MB",
        "GPU, MB",
        "same twice",
        "apart",
    )
    rows = []
    for stage, apart in moved.items():
        cpu, gpu = (took[device][stage] for device in DEVICES)
        most = [max(each.host_bytes for each in side) / MB for side in (cpu, gpu)]
        same = "yes" if len({each.digest for each in gpu}) == 1 else "no"
        value = f"{apart['score']:.4f}, {apart['score_gpu']:.4f}" if "score" in apart else f"{apart['relative']:.0e}"
        seconds = cpu[-1].seconds, gpu[-1].seconds
        figures = [f"{each:.2f}" for each in seconds] + [f"{seconds[0] / seconds[1]:.1f}"]
        held = max(each.gpu_bytes for each in gpu) / MB
        rows.append((f"`{stage}`", *figures, *(f"{each:.0f}" for each in (*most, held)), same, value))
    return as_table(heads, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == [THERE]:
        run_main(there)
    else:
        main()
