"""Describe models and their compatibility, and what merging them would do and cost, before a merge.

Configurations, tokenizers and headers tell; tensors are read only to compare the names of tied weights.
"""

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.adapters.settings import adapter_base
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.architecture import CONFIG, architecture_of, read_config
from merganser.checkpoints.companions import check_model, shared_modules
from merganser.checkpoints.kinds import HEADS, ParameterRules, is_head
from merganser.checkpoints.mean import averageable
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import DTYPES, Checkpoint, parameter_of
from merganser.checkpoints.vocabularies import ResizedTablesError, template_of, vocabulary_of
from merganser.checkpoints.writing import AS_THE_BASE, OutputFormat
from merganser.config.recipes import Recipe
from merganser.errors import InputError
from merganser.inputs.deltas import check_pair
from merganser.inputs.model_deltas import ModelDeltas, open_models
from merganser.inputs.pieces import PIECE
from merganser.machine import bytes_a_second, flop_a_second
from merganser.merging.method import Cost
from merganser.sources.named import read_files
from merganser.standalone.digests import BASE
from merganser.standalone.merge import plan_merge, readable
from merganser.standalone.notes import notes_on_files, notes_on_patterns

FLOAT = 4  # bytes of a value in float32
START_BYTES = 6e8  # of memory that a merge takes whatever its models are
# Operations by entry and by the shorter side of each matrix of each task: measured on models of ViT-B's shapes.
BY_COST: Mapping[Cost, float] = {
    "elementwise": 0,
    "fourier transform": 0,
    "linear system": 8,
    "svd": 12,
    "joint svd": 32,
    "gradient steps": 160,
}
# Copies of a layer of each task that are in memory at once.
COPIES: Mapping[Cost, float] = {"joint svd": 6}
Described = dict[str, Any]


@dataclass
class ModelCheck:
    """The result of a check, as plain data with stable keys.

    `models`: descriptions. `merge`: the parameters and files that a merge would merge, copy and write, and its
    cost; None if the models do not fit. `notes`: for the user. `refused`: all reasons why they cannot be merged.
    """

    models: dict[str, Described] = field(default_factory=dict)
    merge: Described | None = None
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @contextmanager
    def noting_refusal(self) -> Iterator[None]:
        """Record a refusal in the block, and continue with the next check."""
        try:
            yield
        except InputError as error:
            self.refused.append(str(error))


def check_models(
    models: Mapping[str, Path],
    rules: ParameterRules,
    output: OutputFormat = AS_THE_BASE,
    costs: Collection[Cost] = ("elementwise", "svd", "joint svd"),
    compared: Mapping[str, Path] | None = None,
    origin: tuple[str, Path] | None = None,
) -> ModelCheck:
    """Describe models, and compare the others with the first one, which stands for their base.

    `models`: folders or files, by name. `costs`: of the methods to estimate. `compared`: the models in the form in
    which they are merged, if that differs. `origin`: the model whose files a merge gets, and its folder, if not the
    first model, which is then no base.
    """
    check = ModelCheck()
    for name, path in models.items():
        with check.noting_refusal():
            check.models[name] = describe_model(path)
    if check.refused or len(models) < 2:
        return check
    with check.noting_refusal():
        modules = _compare(check, compared or models, rules, output, costs)
        if not check.refused:
            first = next(iter(models))
            owner, folder = origin or ("the base", models[first])
            left = BASE if origin else first
            others = {name: path for name, path in models.items() if name != left}
            check.notes += notes_on_files(folder, others, modules, owner)
    return check


def check_merge(recipe: Recipe, where: Path) -> ModelCheck:
    """Check a recipe's merge as `check_models` does; without a base, the first model stands for the models' mean.

    If rows are matched by token, the tables are written into a temporary folder. Raises InputError if the recipe
    itself is wrong.
    """
    plan = plan_merge(recipe, where)
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        plan = readable(plan, recipe, Path(made) / "dequantised")
        base, models = plan.written(Path(made))
        compared = ({BASE: base} if base else {}) | models
        check = check_models(plan.given, recipe.rules, recipe.output, [plan.method.cost], compared, plan.origin)
        for name, path in plan.models.items() if base is None else ():
            with check.noting_refusal():
                averageable(open_model(path), name)
    check.notes[:0] = plan.notes
    return check


def _compare(
    check: ModelCheck, models: Mapping[str, Path], rules: ParameterRules, output: OutputFormat, costs: Collection[Cost]
) -> Sequence[str]:
    """Compare models with the first one, and estimate their merge; return the modules that all have."""
    (_, start), *others = models.items()
    modules = shared_modules(models.values())
    base, agreement = open_for_merging(start, modules), Agreement(start, rules)
    opened = {name: open_model(path, modules) for name, path in others}
    for name, path in others:
        tables: Sequence[str] = ()
        with check.noting_refusal():
            try:
                check.notes += agreement.check(name, path, (base, opened[name]))
            except ResizedTablesError as error:
                tables = error.tables
                raise
        with check.noting_refusal():
            check_pair(base, opened[name], replace(rules, heads=(*rules.heads, *tables)), name)
    if not check.refused:
        moved = sum(check.models[name]["bytes"] for name in models)
        deltas = open_models(base, opened, rules)
        check.notes += notes_on_patterns(deltas, rules)
        check.merge = _merge_of(base, deltas, output, moved, costs)
    return modules


def describe_model(path: Path) -> Described:
    """Describe a model's folder or file; raise InputError if it cannot be merged."""
    check_model(path)
    model, folder = open_model(path), path if path.is_dir() else path.parent
    is_adapter = isinstance(model, Adapter)
    held = model.tensors if isinstance(model, Adapter) else model
    config, vocabulary = read_config(folder / CONFIG) or {}, vocabulary_of(folder)
    specs = {name: held.spec(name) for name in held.names}
    dtypes = Counter[str]()
    for spec in specs.values():
        dtypes[str(DTYPES[spec.dtype]).removeprefix("torch.")] += prod(spec.shape)
    return {
        "path": str(path),
        "kind": "adapter" if is_adapter else "checkpoint",
        "trained_on": adapter_base(path) if is_adapter else None,
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures"),
        "parameters": sum(dtypes.values()),
        "bytes": sum(spec.nbytes for spec in specs.values()),
        "files": read_files(path),
        "dtypes": dict(dtypes),
        "tie_word_embeddings": architecture_of(folder).tied,
        "second_names": {second: first for second, first in held.dropped.items() if first},
        "heads": sorted(name for name in specs if is_head(name, HEADS)),
        "tokens": None if vocabulary is None else len(vocabulary),
        "chat_template": template_of(folder) is not None,
    }


def _merge_of(
    base: Checkpoint, deltas: ModelDeltas, output: OutputFormat, moved: int, costs: Collection[Cost]
) -> Described:
    """Describe a merge: parameters and files that it would merge, copy and write, and its cost."""
    specs, shards, kinds = output.specs(base), output.shards(base), Counter(deltas.kinds.values())
    written = sum(spec.nbytes for spec in specs.values())
    return {
        "matrices": kinds["matrix"],
        "vectors": kinds["vector"],
        "parameters": sum(prod(shape) for shape in deltas.shapes.values()),
        "copied": list(dict.fromkeys(parameter_of(name) for name in base.names if name not in deltas.kinds)),
        "bytes": written,
        "files": len(set(shards.values())) or 1,
        "expected": {cost: _expected(deltas, moved + written, cost) for cost in costs},
    }


def _expected(deltas: ModelDeltas, moved: int, cost: Cost) -> Described:
    """Estimate the seconds on one core and the bytes of memory of a merge of this cost."""
    matrices = [shape for name, shape in deltas.shapes.items() if deltas.kinds[name] == "matrix"]
    decomposed = sum(prod(shape) * min(shape) for shape in matrices) * len(deltas.tasks) * BY_COST.get(cost, 0)
    computed = decomposed / flop_a_second("cpu") if decomposed else 0.0
    largest = max(map(prod, matrices), default=0) if decomposed else PIECE
    held = largest * FLOAT * (len(deltas.tasks) + 1) * COPIES.get(cost, 3)
    return {"seconds": moved / bytes_a_second() + computed, "memory_bytes": START_BYTES + held}
