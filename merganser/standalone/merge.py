"""Merge checkpoints on disk into a merged checkpoint on disk, without the pipeline."""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from merganser import registry
from merganser.checkpoints.adapters.adapted import open_whole
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.companions import companion_names, left_out, names_in, other_folders, refuse_code
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.origins import Origin
from merganser.checkpoints.output import AS_THE_BASE, Output
from merganser.checkpoints.reading import Checkpoint, dropped_of, open_checkpoint, open_for_merging
from merganser.checkpoints.vocabularies import check_vocabulary
from merganser.config.recipes import RECIPE, Recipe, Source, check_unchanged, source_of
from merganser.errors import InputError
from merganser.inputs.layers import LayerSource
from merganser.inputs.model_deltas import open_models, unchanged
from merganser.merging.by_layer import check_tasks
from merganser.merging.cards import CARD, model_card
from merganser.merging.driver import choose_device
from merganser.merging.entry import as_taken, merge_entry
from merganser.merging.method import Method
from merganser.models import embed_classes, text_family_of
from merganser.outputs import new_folder
from merganser.progress import Progress, unwatched
from merganser.sources.named import fetch_named
from merganser.sources.pointers import HubPointer
from merganser.sources.read_files import is_weights
from merganser.sources.weights import weight_names

NOT_CHOICES = {"method", "parameters", "base", "models", "classes"}  # what a card says elsewhere
BASE = "(base)"  # among the sources of a merge
EQUAL = "warning: equal to the base in all that is merged, so that it adds nothing; is this the fine-tuned model?"
AGAIN = (
    f"## Recipe\n\n`{RECIPE}` says where the models lay, the sha256 of every file that was read, and all choices. "
    f"`merganser merge {RECIPE} --out DIR` refuses a model that has changed, and with the same versions of merganser "
    "and torch and the same kind of device writes the same weights again."
)


@dataclass(frozen=True)
class _How:
    """How models are merged, whatever the method."""

    rules: ParameterRules
    device: str
    threads: int
    seed: int
    progress: Progress


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
    output: Output = AS_THE_BASE,
    progress: Progress = unwatched,
    pointers: Mapping[str, HubPointer] | None = None,
) -> list[str]:
    """Merge models on disk onto their base, or onto their mean where there is none; return what a user should know.

    `values`: the method's parameters; `merged`, a method whose merge takes the base's place (difference vectors); and
    `seed`, of random masks (0).
    `classes`: each task's class names, for a method that needs them. `threads`: layers at once. `pointers`: where on a
    hub models are from, by their names, the base's under "(base)".
    """
    method, own = registry.get(name), dict(values)
    merged, seed = _start_of(method, own.pop("merged", None)), _seed_of(own.pop("seed", 0))
    filled = method.validate(name, own)
    check_tasks(filled, list(models), f"{name}.")
    method.check_count(len(models), "--model")
    _check_classes(method, models, classes or {})
    if method.beside or method.reads == "statistics":
        made = f"{method.beside}, which is trained" if method.beside else "statistics, which are measured"
        reason = f"needs {made} on the tasks' data"
        raise InputError(f"{name}: {reason}; declare it in params.yaml, and run `merganser run`")
    choose_device(device)
    for path in (base, *models.values()):
        if path is not None:
            refuse_code(path)
    how = _How(rules or ParameterRules(), device, threads, seed, progress)
    given = {BASE: base, **models} if base else dict(models)
    with (
        new_folder(out) as written,
        tempfile.TemporaryDirectory(prefix=".made-", dir=written) as made,
        ThreadPoolExecutor(1) as reader,
    ):
        folder = Path(made)
        base = start = base or _mean_of(models, folder / "base", progress)
        if merged:
            start = _merged_start(registry.get(merged), base, models, folder / "merged", how)
        embeddings = embed_classes(text_family_of(base), base, classes or {}) if method.embeddings else {}
        source, notes = _open(method, filled, base, start, models, how, embeddings)
        described = reader.submit(_sources, given, out, pointers or {})  # hashed while the models are merged

        def texts() -> dict[str, str]:
            recipe = _recipe(name, {**filled, **_more(merged, seed)}, described.result(), classes or {}, how, output)
            choices = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=NOT_CHOICES)
            shown = filled | _more(merged) | choices
            origins = _origins(given, models, recipe)
            return {
                CARD: model_card(name, method, shown, method.reads, seed, base, origins, again=AGAIN),
                RECIPE: recipe.text(),
            }

        merge_entry(
            method, filled, source, start, written, profile, texts, device, threads, output=output, progress=progress
        )
        return notes + _notes(base)


def _merged_start(method: Method, base: Path, models: Mapping[str, Path], out: Path, how: _How) -> Path:
    """Merge the models by a method with its defaults, for difference vectors to start from."""
    values = method.validate(method.name, {})
    source, _ = _open(method, values, base, base, models, how)
    out.mkdir()
    merge_entry(method, values, source, base, out, None, dict, how.device, how.threads, progress=how.progress)
    return out


def merge_by(
    recipe: Recipe,
    where: Path,
    out: Path,
    *,
    profile: Path | None = None,
    threads: int = 1,
    progress: Progress = unwatched,
) -> list[str]:
    """Merge as a recipe says; `where`: its file, from whose folder on its paths are. Return what a user should know.

    Raises InputError where a model is not the one that the recipe was written for.
    """
    sources = ({BASE: recipe.base} if recipe.base else {}) | dict(recipe.models)
    notes, paths, pointers = [], {}, {}
    for name, source in sources.items():
        if source.hub is None:
            paths[name] = where.parent / (source.path or "")
            continue
        paths[name], pointers[name], left = fetch_named(source.hub, source.revision)
        notes += [f"{source.hub}: left out: {', '.join(left)}"] if left and name == BASE else []
    for name, source in sources.items():
        check_unchanged(where, "base" if name == BASE else f"models.{name}", source, paths[name], name == BASE)
    base = paths.pop(BASE, None)
    return notes + merge_checkpoints(
        *(recipe.method, recipe.parameters, base, paths, out),
        classes=recipe.classes,
        rules=recipe.rules,
        device=recipe.device,
        profile=profile,
        threads=threads,
        output=recipe.output,
        progress=progress,
        pointers=pointers,
    )


def _open(
    method: Method,
    values: dict[str, Any],
    base: Path,
    start: Path,
    models: Mapping[str, Path],
    how: _How,
    embeddings: Mapping[str, Tensor] | None = None,
) -> tuple[LayerSource, list[str]]:
    """Open models as a method takes them, and say what a user should know of them; refuse those that do not fit."""
    opened = {task: _opened(path, base, start, how.rules, task) for task, path in models.items()}
    checkpoint = open_for_merging(start)
    pairs = ((task, path, (checkpoint, opened[task])) for task, path in models.items())
    notes = [note for task, path, pair in pairs for note in check_vocabulary(base, path, pair, task, how.rules)]
    deltas = open_models(checkpoint, opened, how.rules, how.seed, embeddings)
    others = {task for task, path in models.items() if path.resolve() != base.resolve()}  # that are not the base itself
    notes += [f"{task}: {EQUAL}" for task in unchanged(deltas) if task in others]
    return as_taken(method, values, deltas), notes


def _sources(given: Mapping[str, Path], out: Path, pointers: Mapping[str, HubPointer]) -> dict[str, Source]:
    """Describe the models with the hashes of their files."""
    return {name: source_of(path, out, pointers.get(name), copied=name == BASE) for name, path in given.items()}


def _more(merged: str | None, seed: int | None = None) -> dict[str, Any]:
    """Return what is set beside a method's own parameters."""
    return ({"merged": merged} if merged else {}) | ({"seed": seed} if seed is not None else {})


def _recipe(
    name: str,
    values: Mapping[str, Any],
    sources: Mapping[str, Source],
    classes: Mapping[str, Sequence[str]],
    how: _How,
    output: Output,
) -> Recipe:
    """Say all that decides what a merge writes."""
    return Recipe(
        method=name,
        parameters=values,
        base=sources.get(BASE),
        models={task: source for task, source in sources.items() if task != BASE},
        classes={task: list(names) for task, names in classes.items()},
        only=list(how.rules.merged),
        excepted=list(how.rules.heads),
        matrices=how.rules.matrices,
        dtype=output.dtype,
        max_shard_size=output.max_shard_size,
        device="cuda" if choose_device(how.device).type == "cuda" else "cpu",
    )


def _start_of(method: Method, merged: str | None) -> str | None:
    """Return the method whose merge the deltas start from, None for the base itself; refuse one that gives no model."""
    if merged is None:
        return "average" if method.reads == "differences" else None
    start = registry.get(str(merged))
    if not start.one_model or start.reads == "differences":
        kind = "starts from a merge itself" if start.reads == "differences" else "keeps a part per task"
        raise InputError(f"merged: {merged} {kind}; name a method that gives one model for all tasks")
    return merged


def _origins(given: Mapping[str, Path], models: Mapping[str, Path], recipe: Recipe) -> dict[str, Origin]:
    """Name where the models are from: a hub, or the last part of a path, which says nothing of this machine."""
    sources = {BASE: recipe.base, **recipe.models}
    origins = {BASE: Origin(f"the mean of {', '.join(models)}", "mean")}
    for name, path in given.items():
        source = sources[name] or Source(path="")
        files = {file: digest for file, digest in source.sha256.items() if is_weights(file)}
        kind: Literal["hub", "local"] = "hub" if source.hub else "local"
        origins[name] = Origin(source.hub or path.resolve().name, kind, files)
    return origins


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


def _mean_of(models: Mapping[str, Path], folder: Path, progress: Progress) -> Path:
    folder.mkdir()
    write_mean(models, folder, progress=progress)
    return folder


def _notes(base: Path) -> list[str]:
    """Say what of the base's folder the merge does not have."""
    if not base.is_dir():
        return []
    names = names_in(base)
    left = left_out(names, {*weight_names(names), *companion_names(names)}) + other_folders(base)
    dropped = dropped_of(open_checkpoint(base))
    notes = {"left out": left, "second names of tied weights and constants, left out": sorted(dropped)}
    return [f"{base}: {note}: {', '.join(found)}" for note, found in notes.items() if found]


def _opened(path: Path, base: Path, start: Path, rules: ParameterRules, task: str) -> Checkpoint | Adapter:
    """Open a task's model: an adapter stays one where its base is what the deltas start from."""
    return open_model(path) if start == base else open_whole(path, base, rules, task)
