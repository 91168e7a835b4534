"""Merge checkpoints on disk into a merged checkpoint on disk, without the pipeline."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser import registry
from merganser.checkpoints.adapters.adapted import open_whole
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.companions import companion_names, left_out, names_in, refuse_code
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.origins import Origin
from merganser.checkpoints.reading import Checkpoint, dropped_of, open_checkpoint, open_for_merging
from merganser.checkpoints.vocabularies import check_vocabulary
from merganser.errors import InputError
from merganser.inputs.model_deltas import open_models
from merganser.merging.cards import model_card
from merganser.merging.driver import choose_device
from merganser.merging.method import Method
from merganser.models import embed_classes, text_family_of
from merganser.operators.coefficients import check_maps
from merganser.sources.weights import weight_names
from tasks.merge import as_taken, merge_entry


def merge_checkpoints(
    name: str,
    values: Mapping[str, Any],
    base: Path | None,
    models: Mapping[str, Path],
    out: Path,
    *,
    classes: Mapping[str, Sequence[str]] | None = None,
    rules: ParameterRules | None = None,
    device: str = "auto",
    profile: Path | None = None,
    threads: int = 1,
    max_shard_size: int | None = None,
) -> list[str]:
    """Merge models on disk onto their base, or onto their mean where there is none; return what a user should know.

    `values`: the method's parameters; `merged`, a method whose merge takes the base's place (difference vectors); and
    `seed`, of random masks (0).
    `classes`: each task's class names, for a method that needs them. `threads`: layers at once. `max_shard_size`: bytes
    of a file of weights; shards as the base has them where not given.
    """
    method, own = registry.get(name), dict(values)
    merged, seed = _start_of(method, own.pop("merged", None)), _seed_of(own.pop("seed", 0))
    filled = method.validate(name, own)
    check_maps(filled, list(models), f"{name}.")
    _check_classes(method, models, classes or {})
    if method.beside or method.reads == "statistics":
        made = f"{method.beside}, which is trained" if method.beside else "statistics, which are measured"
        reason = f"needs {made} on the tasks' data"
        raise InputError(f"{name}: {reason}; declare it in params.yaml, and run `merganser run`")
    choose_device(device)
    for path in (base, *models.values()):
        if path is not None:
            refuse_code(path)
    rules = rules or ParameterRules()
    out.parent.mkdir(parents=True, exist_ok=True)
    sources = _origins(base, models)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as made:
        folder = Path(made)
        base = start = base or _mean_of(models, folder / "base")
        if merged:
            start = folder / "merged"
            merge_checkpoints(merged, {"seed": seed}, base, models, start, rules=rules, device=device, threads=threads)
        opened = {task: _opened(path, base, start, rules, task) for task, path in models.items()}
        embeddings = embed_classes(text_family_of(base), base, classes or {}) if method.embeddings else {}
        checkpoint = open_for_merging(start)
        notes = [
            note
            for task, path in models.items()
            for note in check_vocabulary(base, path, (checkpoint, opened[task]), task)
        ]
        deltas = open_models(checkpoint, opened, rules, seed, embeddings)
        source = as_taken(method, filled, deltas)
        shown = filled | ({"merged": merged} if merged else {})
        card = model_card(name, method, shown, method.reads, seed, base, sources)
        merge_entry(method, filled, source, start, out, profile, card, device, threads, max_shard_size)
        return notes + _notes(base)


def _start_of(method: Method, merged: str | None) -> str | None:
    """Return the method whose merge the deltas start from, None for the base itself; refuse one that gives no model."""
    if merged is None:
        return "average" if method.reads == "differences" else None
    start = registry.get(str(merged))
    if not start.one_model or start.reads == "differences":
        kind = "starts from a merge itself" if start.reads == "differences" else "keeps a part per task"
        raise InputError(f"merged: {merged} {kind}; name a method that gives one model for all tasks")
    return merged


def _origins(base: Path | None, models: Mapping[str, Path]) -> dict[str, Origin]:
    """Name where the models lie, by the last part of each path; hashing them could take as long as merging them."""
    mean = f"the mean of {', '.join(models)}"
    tasks = {task: Origin(path.resolve().name) for task, path in models.items()}
    return {"(base)": Origin(base.resolve().name if base else mean), **tasks}


def _seed_of(given: Any) -> int:
    if type(given) is not int or given < 0:
        raise InputError(f"seed: must be a whole number from 0 on, got {given!r}")
    return given


def _check_classes(method: Method, models: Mapping[str, Path], classes: Mapping[str, Sequence[str]]) -> None:
    if not method.embeddings and classes:
        raise InputError(f"--classes: {method.name} does not use class names; leave it out")
    missing = [name for name in models if name not in classes] if method.embeddings else []
    strange = [name for name in classes if name not in models]
    if missing:
        raise InputError(f"{method.name}: needs the class names of {missing[0]}; give --classes {missing[0]}=FILE")
    if strange:
        raise InputError(f"--classes {strange[0]}: there is no --model {strange[0]}")


def _mean_of(models: Mapping[str, Path], folder: Path) -> Path:
    folder.mkdir()
    write_mean(models, folder)
    return folder


def _notes(base: Path) -> list[str]:
    """Say what of the base's folder the merge does not have."""
    if not base.is_dir():
        return []
    names = names_in(base)
    left = left_out(names, {*weight_names(names), *companion_names(names)})
    dropped = dropped_of(open_checkpoint(base))
    notes = {"left out": left, "second names of tied weights and constants, left out": sorted(dropped)}
    return [f"{base}: {note}: {', '.join(found)}" for note, found in notes.items() if found]


def _opened(path: Path, base: Path, start: Path, rules: ParameterRules, task: str) -> Checkpoint | Adapter:
    """Open a task's model: an adapter stays one where its base is what the deltas start from."""
    return open_model(path) if start == base else open_whole(path, base, rules, task)
