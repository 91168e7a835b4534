"""Merge the tasks' models by one entry of `methods`."""

import platform
import resource
import shutil
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

from merganser import registry
from merganser.adapters.files import open_model
from merganser.checkpoints import Checkpoint, config_names, open_checkpoint
from merganser.deltas import extract, open_deltas
from merganser.driver import choose_device, merge
from merganser.factors import FactorSettings, decompose, open_factors
from merganser.layers import LayerSource
from merganser.overlays import FILE
from merganser.parameters import ParameterRules
from merganser.params import entry_of, load_params
from tasks.stage import BASE, DELTAS, FACTORS, MERGE_PROFILES, MERGED, fresh_folder, only_name, run, write_json


def merge_entry(
    method: registry.Method,
    values: dict[str, Any],
    source: LayerSource,
    base: Path,
    out: Path,
    profile: Path | None,
    device: str = "cpu",
) -> None:
    """Merge a source's layers onto the base into a fresh folder, with the base's configuration beside the weights."""
    start_wall, start_cpu = time.perf_counter(), time.process_time()
    checkpoint = open_checkpoint(base)
    with fresh_folder(out) as folder:
        merge(method, values, source, checkpoint, folder, choose_device(device))
        for name in config_names(path.name for path in base.iterdir() if path.is_file()) if base.is_dir() else []:
            shutil.copyfile(base / name, folder / name)
    if profile:
        times = {"wall_s": time.perf_counter() - start_wall, "cpu_s": time.process_time() - start_cpu}
        rate = {"amr": additional_memory_rate(out, checkpoint, source)}
        write_json(profile, times | _usage() | rate)


def additional_memory_rate(merged: Path, base: Checkpoint, source: LayerSource) -> float:
    """Return the bytes of the overlay file per task over the bytes of the merged parameters in float32."""
    overlay = merged / FILE
    if not overlay.is_file():
        return 0.0
    values = sum(prod(base.spec(name).shape) for name in source.names)
    return overlay.stat().st_size / len(source.tasks) / (4 * values)


def _usage() -> dict[str, Any]:
    """Read the process's peak memory and traffic (the latter where the system counts it)."""
    counters = Path("/proc/self/io")
    counts = dict(line.split(": ") for line in counters.read_text().splitlines()) if counters.exists() else {}
    return {
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "read_bytes": int(counts.get("rchar", 0)),
        "written_bytes": int(counts.get("wchar", 0)),
        "host": platform.node(),
    }


def merge_checkpoints(
    name: str,
    values: dict[str, Any],
    base: Path,
    models: dict[str, Path],
    out: Path,
    *,
    rules: ParameterRules | None = None,
    device: str = "auto",
    profile: Path | None = None,
) -> None:
    """Merge checkpoints on disk into a merged checkpoint on disk, without the pipeline."""
    method = registry.get(name)
    filled = method.validate(name, values)
    choose_device(device)
    rules = rules or ParameterRules()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        source = _source_of(method, filled, base, models, rules, Path(folder))
        merge_entry(method, filled, source, base, out, profile, device)


def _source_of(
    method: registry.Method,
    values: dict[str, Any],
    base: Path,
    models: dict[str, Path],
    rules: ParameterRules,
    folder: Path,
) -> LayerSource:
    """Extract and, for a method that reads factors, decompose into a working folder."""
    checkpoint = open_checkpoint(base)
    for task, path in models.items():
        extract(checkpoint, open_model(path), rules, task, folder / f"{task}.safetensors")
    deltas = open_deltas(folder, list(models))
    if method.reads == "deltas":
        return deltas
    share = method.rank_fraction(len(models), **values) if method.rank_fraction else 1.0
    for task, file in deltas.files.items():
        decompose(file, FactorSettings(share), folder / "svd" / task)
    return open_factors(folder / "svd", list(models))


def main(argv: list[str]) -> None:
    """Merge by the entry named on the command line."""
    key = only_name(argv, "merge")
    params = load_params(Path("params.yaml"))
    entry = entry_of(params, key)
    method = registry.get(entry.method)
    values = method.validate(f"methods.{key}", entry.values)
    tasks = list(params.tasks)
    source: LayerSource = open_deltas(DELTAS, tasks, params.seed)
    if method.reads == "svd":
        source = open_factors(FACTORS, tasks, params.seed)
    merge_entry(method, values, source, BASE, MERGED / key, MERGE_PROFILES / f"{key}.json")


if __name__ == "__main__":
    run(main)
