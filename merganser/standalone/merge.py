"""Merge checkpoints on disk into a merged checkpoint on disk, without the pipeline."""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from merganser import registry
from merganser.checkpoints.adapters.binding import open_whole
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.companions import ModelOrigin, check_model, licences_in, shared_modules
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.reading import Checkpoint, open_for_merging
from merganser.checkpoints.vocabulary.plan import BASE as BASE_WORD
from merganser.checkpoints.vocabulary.plan import (
    OneVocabulary,
    TokenizerChoice,
    check_model_names,
    check_template,
    in_one_vocabulary,
)
from merganser.checkpoints.vocabulary.tokenizers import take_template
from merganser.checkpoints.vocabulary.writing import write_models, write_with_template
from merganser.config.recipes import RECIPE, Recipe, Source, check_unchanged, source_of
from merganser.errors import InputError
from merganser.inputs.layers import GivenLayers
from merganser.inputs.model_deltas import ModelDeltas, open_models, unchanged
from merganser.merging.binding import check_tasks
from merganser.merging.cards import CARD, model_card
from merganser.merging.driver import choose_device
from merganser.merging.entry import merge_entry
from merganser.merging.licences import licence_warnings
from merganser.merging.method import Method
from merganser.models import embed_classes, text_family_of
from merganser.outputs import new_folder
from merganser.progress import Progress, unwatched
from merganser.sources.installing import dequantised
from merganser.sources.licences import facts_in
from merganser.sources.named import fetch_named, is_weights
from merganser.sources.pointers import HubPointer
from merganser.standalone.digests import BASE, ModelDigests, is_copied
from merganser.standalone.notes import notes_on_files, notes_on_parameters, notes_on_patterns

NOT_CHOICES = {"method", "parameters", "base", "models", "classes", "notes"}  # what a card says elsewhere
EQUAL = "warning: equal to the base in every merged parameter, so it adds nothing; is this the fine-tuned model?"
AGAIN = (
    f"## Recipe\n\n`{RECIPE}` says where the models lay, the sha256 of every file that was read, and all choices. "
    f"`merganser merge {RECIPE} --out DIR` refuses a model that has changed, and with the same versions of merganser "
    "and torch and the same kind of device writes the same weights again."
)


@dataclass(frozen=True)
class _Merge:
    """The models of a recipe on disk, and the settings of the merge that do not depend on its method."""

    recipe: Recipe
    models: Mapping[str, Path]
    modules: Sequence[str]  # in folders of all models, the base's too
    seed: int
    threads: int
    progress: Progress
    digests: ModelDigests

    def opened(self, base: Path, start: Path) -> tuple[ModelDeltas, list[str]]:
        """Open the models' deltas and return notes about them; refuse models that do not fit."""
        rules = self.recipe.rules
        opened: dict[str, Checkpoint | Adapter] = {  # an adapter stays one where its base is what the deltas start from
            task: open_model(path, self.modules) if start == base else open_whole(path, base, rules, task, self.modules)
            for task, path in self.models.items()
        }
        checkpoint = open_for_merging(start, self.modules)
        for model in (checkpoint, *opened.values()):
            if isinstance(model, Checkpoint):
                self.digests.watch(model)
        agreement = Agreement(base, rules)
        pairs = ((task, path, (checkpoint, opened[task])) for task, path in self.models.items())
        notes = [note for task, path, pair in pairs for note in agreement.check(task, path, pair)]
        deltas = open_models(checkpoint, opened, rules, self.seed)
        others = {task for task, path in self.models.items() if path.resolve() != base.resolve()}  # than the base
        notes += [f"{task}: {EQUAL}" for task in unchanged(deltas, others)]
        return deltas, notes

    def start_by(self, method: Method, base: Path, out: Path) -> Path:
        """Merge the models by a method with its defaults, as the start of difference vectors."""
        values = method.validate(method.name, {})
        source, _ = self.opened(base, base)
        out.mkdir()
        how = self.recipe.device, self.threads
        merge_entry(method, values, source, base, out, None, dict, *how, progress=self.progress, modules=self.modules)
        return out


@dataclass(frozen=True)
class MergePlan:
    """A recipe resolved: the paths of its models, its method, and default parameters.

    `named`: the models' folders and files, the base's under "(base)"; `given`: the same after dequantisation;
    `pointers`: of models on a hub. `merged`: the method whose merge replaces the base.
    """

    method: Method
    values: Mapping[str, Any]
    merged: str | None
    seed: int
    named: Mapping[str, Path]
    given: Mapping[str, Path]
    pointers: Mapping[str, HubPointer]
    notes: Sequence[str]
    vocabulary: OneVocabulary | None = None

    @property
    def models(self) -> dict[str, Path]:
        """Return the models without the base."""
        return {name: path for name, path in self.given.items() if name != BASE}

    @property
    def origin(self) -> tuple[str, Path]:
        """Return the model whose files the merge gets, the first one without a base, and its folder."""
        first = min(self.models)
        return ("the base", self.given[BASE]) if BASE in self.given else (first, self.models[first])

    def written(self, folder: Path) -> tuple[Path | None, dict[str, Path]]:
        """Return the base, if there is one, and the models, written in one vocabulary if one is chosen."""
        return write_models(self.vocabulary, folder) if self.vocabulary else (self.given.get(BASE), self.models)


def plan_merge(recipe: Recipe, where: Path) -> MergePlan:
    """Find a recipe's models and check its method, before anything is written; raise InputError as `merge_by` does."""
    notes, named, pointers = _located(recipe, where)
    method, own = registry.get(recipe.method), dict(recipe.parameters)
    merged, seed = _start_of(method, own.pop("merged", None)), _seed_of(own.pop("seed", 0))
    plan = MergePlan(method, method.validate(recipe.method, own), merged, seed, named, named, pointers, notes)
    check_tasks(method, plan.values, list(plan.models), f"{recipe.method}.")
    method.check_count(len(plan.models), "--model")
    _check_classes(method, plan.models, recipe.classes)
    if method.trained or method.reads == "statistics":
        made = f"{method.trained}, which is trained" if method.trained else "statistics, which are measured"
        reason = f"needs {made} on the tasks' data"
        raise InputError(f"{recipe.method}: {reason}; declare it in params.yaml, and run `merganser run`")
    return plan


def readable(plan: MergePlan, recipe: Recipe, folder: Path) -> MergePlan:
    """Dequantise GGUF models into a folder, and plan the vocabulary for the chosen tokenizer."""
    given, done = dequantised(plan.named, folder)
    plan = replace(plan, given=given, notes=[*plan.notes, *done])
    if recipe.choice is None:
        return plan
    paths = {BASE_WORD if name == BASE else name: path for name, path in given.items()}
    check_model_names(recipe.choice, paths)
    check_template(recipe.choice, paths)
    if recipe.choice.tokenizer is None:
        return plan
    vocabulary = in_one_vocabulary(given.get(BASE), plan.models, recipe.choice)
    return replace(plan, notes=[*plan.notes, *vocabulary.notes()], vocabulary=vocabulary)


def merge_by(
    recipe: Recipe,
    where: Path,
    out: Path,
    *,
    profile: Path | None = None,
    threads: int = 1,
    progress: Progress = unwatched,
) -> list[str]:
    """Merge as a recipe says, onto the models' mean where it names no base; return what a user should know.

    `where`: its file, from whose folder on its paths are. `threads`: layers at once. The parameters of a recipe may
    hold `merged`, a method whose merge takes the base's place (difference vectors), and `seed`, of random masks (0).

    Raises InputError where a model is not the one that the recipe was written for, and for all that does not fit.
    """
    plan, device = plan_merge(recipe, where), choose_device(recipe.device)
    with (
        new_folder(out) as written,
        tempfile.TemporaryDirectory(prefix=".made-", dir=written) as made,
        ThreadPoolExecutor(1) as reader,
    ):
        folder = Path(made)
        plan = readable(plan, recipe, folder / "dequantised")
        method, values = plan.method, dict(plan.values)
        base, models, modules = _with_choice(plan, recipe.choice or TokenizerChoice(), folder, progress)
        digests = ModelDigests(reader)
        merge, start = _Merge(recipe, models, modules, plan.seed, threads, progress, digests), base
        if plan.merged:
            start = merge.start_by(registry.get(plan.merged), base, folder / "merged")
        embeddings = embed_classes(text_family_of(base), base, recipe.classes) if method.embeddings else {}
        deltas, more = merge.opened(base, start)
        source = GivenLayers(deltas, {"embeddings": embeddings})
        digests.hash_others(recipe, plan.named)
        owner, origin = plan.origin
        beside = notes_on_files(origin, plan.models, modules, owner)
        licences = [f"licences: {line}" for line in licence_warnings(_origins(plan.named, recipe))]
        kept = [*notes_on_parameters(deltas), *notes_on_patterns(deltas, recipe.rules)]
        notes = [*plan.notes, *more, *kept, *beside, *licences]

        def texts() -> dict[str, str]:
            start_by = {"merged": plan.merged} if plan.merged else {}
            sources = {
                name: source_of(path, out, plan.pointers.get(name), is_copied(recipe, name), digests.sha256)
                for name, path in plan.named.items()
            }
            done = recipe.model_copy(
                update={
                    "parameters": {**values, **start_by, "seed": plan.seed},
                    "base": sources.get(BASE),
                    "models": {task: sources[task] for task in models},
                    "device": device.type,
                    "notes": notes,
                }
            )
            choices = done.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=NOT_CHOICES)
            shown = values | start_by | choices
            card = model_card(
                recipe.method, method, shown, method.reads, plan.seed, base, _origins(plan.named, done), again=AGAIN
            )
            return {CARD: card, RECIPE: done.text()}

        how = recipe.device, threads
        merge_entry(
            method,
            values,
            source,
            start,
            written,
            profile,
            texts,
            *how,
            output=recipe.output,
            progress=progress,
            modules=modules,
        )
        return notes


def _with_choice(
    plan: MergePlan, choice: TokenizerChoice, folder: Path, progress: Progress
) -> tuple[Path, dict[str, Path], Sequence[str]]:
    """Return the base, or the models' mean, and the models as they are merged: with the chosen tokenizer.

    Also returns the modules that all of them have.
    """
    given, models = plan.written(folder / "vocabulary")
    base, modules = given or folder / "base", shared_modules([*models.values(), *([given] if given else [])])
    if given is None:
        base.mkdir()
        write_mean(models, base, progress=progress, modules=modules)
    template = {BASE_WORD: base, **plan.models}[choice.chat_template or BASE_WORD]
    if template == base or plan.vocabulary:
        return base, models, modules
    if given is None:
        take_template(template, base)
        return base, models, modules
    with_template = folder.joinpath("template", *base.resolve().parts[1:])
    with_template.mkdir(parents=True)
    write_with_template(base, template, with_template)
    return with_template, models, modules


def _located(recipe: Recipe, where: Path) -> tuple[list[str], dict[str, Path], dict[str, HubPointer]]:
    """Return notes about a recipe's models, their paths, and their pointers if they are on a hub.

    Both are by name, with the base's under "(base)" first.
    """
    sources = ({BASE: recipe.base} if recipe.base else {}) | dict(recipe.models)
    notes, paths, pointers = list[str](), dict[str, Path](), dict[str, HubPointer]()
    for name, source in sources.items():
        if source.hub is None:
            paths[name] = where.parent / (source.path or "")
            continue
        paths[name], pointers[name], left = fetch_named(source.hub, source.revision)
        notes += [f"{source.hub}: left out: {', '.join(left)}"] if left and name == BASE else []
    for name, source in sources.items():
        check_model(paths[name])
        key = "base" if name == BASE else f"models.{name}"
        check_unchanged(where, key, source, paths[name], is_copied(recipe, name))
    return notes, paths, pointers


def _start_of(method: Method, merged: str | None) -> str | None:
    """Return the method whose merge the deltas start from, None for the base; refuse one that gives no single model."""
    if merged is None:
        return "average" if method.reads == "differences" else None
    start = registry.get(str(merged))
    if not start.one_model or start.reads == "differences":
        kind = "starts from a merge itself" if start.reads == "differences" else "keeps a part per task"
        raise InputError(f"merged: {merged} {kind}; name a method that gives one model for all tasks")
    return merged


def _origins(given: Mapping[str, Path], recipe: Recipe) -> dict[str, ModelOrigin]:
    """Return the models' origins: a hub, or the last part of a path, which says nothing about this machine."""
    origins = {BASE: ModelOrigin(f"the mean of {', '.join(recipe.models)}", "mean")}
    for name, path in given.items():
        source = recipe.models[name] if name != BASE else recipe.base or Source(path="")
        files = {file: digest for file, digest in source.sha256.items() if is_weights(file)}
        kind: Literal["hub", "local"] = "hub" if source.hub else "local"
        facts = facts_in(path)
        licences, datasets = licences_in(facts), facts.get("datasets", [])
        origins[name] = ModelOrigin(source.hub or path.resolve().name, kind, files, licences, datasets)
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
