"""The functions of `import merganser`."""

import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from merganser.errors import InputError
from merganser.extras import naming_extras

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from merganser.evaluation.scoring import Score
    from merganser.models import DeviceName, Precision
    from merganser.progress import Progress
    from merganser.standalone.results import Report

Model = str | os.PathLike[str]


@overload
def merge(
    method: str, base: Model | None, models: Mapping[str, Model], *, out: None = None, **options: Any
) -> "dict[str, Tensor]": ...


@overload
def merge(method: str, base: Model | None, models: Mapping[str, Model], *, out: Model, **options: Any) -> Path: ...


def merge(
    method: str,
    base: Model | None,
    models: Mapping[str, Model],
    *,
    out: Model | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    only: Sequence[str] = ("*",),
    excepted: Sequence[str] = (),
    matrices: Literal["linear", "any_2d"] = "linear",
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
    max_shard_size: str | None = None,
    tokenizer: str | None = None,
    rows: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    progress: "Progress | None" = None,
    **parameters: Any,
) -> "Path | dict[str, Tensor]":
    """Merge fine-tuned models onto their base, to the same bytes as `merganser merge`.

    `base`, `models`: each a checkpoint's folder or file, an adapter's folder, or as text also `org/name@revision` of a
    hub; without a base the models' mean takes its place. `parameters`: the method's own, as `methods()` lists them,
    and `seed` of random masks (0), and `merged`, a method whose merge takes the base's place.

    With `out`, a new folder, the merged model is written there with its card, its recipe `merge.yaml` and, for a method
    with parts per task, its overlays; the folder is returned. Without, the parameters are returned by their names in
    the base, each with the base's shape, in `dtype` or else the base's; on the way they pass through a temporary
    folder as large as the model. A method with parts per task needs `out`: one state dict cannot hold it.

    `only`, `excepted`: patterns of the names that are merged, and that stay as in the base, such as heads.
    `matrices`: what counts as a matrix: linear maps and convolutions, or all that has two dimensions.
    `max_shard_size`: of a file of weights, such as "5GB"; as the base's if not given. `tokenizer`: base, union or a
    model's name, to match rows by token; `rows`: by token the model that its rows are of; `chat_template`: base, or a
    model's name. `threads`: layers at once; OMP_NUM_THREADS or the CPUs if not given. `progress`: called with what is
    being done, how much of it is done, and how much there is, in bytes.

    What a user should know of the models, such as files that are left out, is issued as warnings. Raises InputError
    for a mistake in what was given, as the command line words it, ExtraError for a library that is not installed.
    """
    from merganser import registry
    from merganser.checkpoints.reading import open_checkpoint
    from merganser.checkpoints.writing import parse_size
    from merganser.config.recipes import checked_recipe
    from merganser.outputs import refuse_existing
    from merganser.progress import unwatched
    from merganser.standalone.merge import merge_by
    from merganser.workers import threads_wanted

    recipe = checked_recipe(
        {
            "method": method,
            "parameters": parameters,
            "base": None if base is None else _source(base),
            "models": {name: _source(model) for name, model in models.items()},
            "classes": {name: list(names) for name, names in (classes or {}).items()},
            "only": list(only),
            "excepted": list(excepted),
            "matrices": matrices,
            "dtype": dtype,
            "max_shard_size": parse_size(max_shard_size) if max_shard_size else None,
            "tokenizer": tokenizer,
            "rows": rows or {},
            "chat_template": chat_template,
            "device": device,
        },
        "merge",
    )
    if out is None and not registry.get(method).one_model:
        raise InputError(
            f"{method}: has a part for each task, which a state dict cannot hold; name a new folder by out="
        )
    with tempfile.TemporaryDirectory(prefix="merganser-") as made, naming_extras():
        folder = Path(made) / "merged" if out is None else Path(out)
        refuse_existing(folder)
        notes = merge_by(
            recipe, Path("merge.yaml"), folder, threads=threads or threads_wanted(), progress=progress or unwatched
        )
        for note in notes:
            warnings.warn(note, stacklevel=2)
        if out is not None:
            return folder
        checkpoint = open_checkpoint(folder)
        return {name: checkpoint.read(name) for name in checkpoint.names}


def methods(
    *,
    data: Literal["none", "validation", "test"] | None = None,
    parts: Literal["yes", "no"] | None = None,
    family: str | None = None,
    cost: str | None = None,
    needs: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Describe the registered methods, by their names, as `merganser methods --json` does: its keys are stable.

    Only those are given that have what is named: the data that their inputs are computed from, parts per task, family,
    cost, or what they need. Raises InputError for a value that no method has.
    """
    from merganser import registry
    from merganser.descriptions import describe_method, matching

    chosen = {"data": data, "parts": parts, "family": family, "cost": cost, "needs": needs}
    wanted = ",".join(f"{key}={value}" for key, value in chosen.items() if value is not None)
    described = matching([describe_method(registry.describe(name)) for name in registry.names()], wanted)
    return {method["name"]: method for method in described}


def evaluate(
    model: Model,
    task: str | Mapping[str, Any],
    *,
    family: str | None = None,
    heads: Sequence[str] | None = None,
    name: str | None = None,
    split: str | None = None,
    batch_size: int | None = None,
    device: "DeviceName | None" = None,
    precision: "Precision | None" = None,
    params: Model = "params.yaml",
) -> "Score":
    """Measure a model, merged or not, on a task, as the stage `evaluate` does.

    `model`: a folder with its configuration and its weights. `task`: the name of one in the `params.yaml` that
    `params` names, or the settings that would stand there, such as `{"kind": "text_classification", "data":
    {"source": "datasets/reviews"}}`; then `family` is needed too. Its `source`, the task's own checkpoint, is needed
    where `heads`, patterns of names, are read from it.

    `name`: whose part of a merge with parts per task is measured; the task's if it is named. The rest is what
    params.yaml has under `evaluation`: `split` ("test"), `batch_size` (64, or 32 without a params.yaml), `device`
    ("cpu") and `precision` ("float32") if it is not given there either.

    Returns `metric`, its `value`, the `count` of examples, the sampling error `stderr` of the value (None for one
    example) and `device`; of a merge that routes its inputs also `known`, the value with the task's label, and
    `router`, how often the router is right. The data pass through a temporary folder.

    Raises InputError for a mistake in what was given, ExtraError for a library that is not installed.
    """
    with naming_extras():
        from merganser.standalone.evaluate import Declared, declared_task, evaluate_model, task_of

        folder = Path(model)
        if isinstance(task, str):
            about = declared_task(task, Path(params))
        else:
            if family is None:
                raise InputError('family: missing; name the family of the model\'s network, for example "encoder"')
            called = name or "task"
            settings = task_of(task, called, folder)
            about = Declared(called, settings, family, (), settings.data.split or "test", 32)
        given: dict[str, Any] = {
            **{"name": name, "family": family, "heads": heads, "split": split},
            **{"batch_size": batch_size, "device": device, "precision": precision},
        }
        return evaluate_model(
            folder, replace(about, **{key: value for key, value in given.items() if value is not None})
        )


def open_report(folder: Model = ".") -> "Report":
    """Open the report of a comparison as pandas frames: `results`, `pairs`, and `studies` by their names.

    `folder`: a comparison's, or its report's. In a notebook the object shows the entries with their scores.

    Raises InputError where there is no report, ExtraError without pandas.
    """
    with naming_extras():
        from merganser.standalone.results import Report, report_folder

        return Report(report_folder(Path(folder)))


def load(results: Model) -> "DataFrame":
    """Read results as a pandas frame with typed columns.

    `results`: a repository's folder, a report's folder or one of its tables, by default `results.csv`: a row an entry,
    with a column for each task and for `mean`, fractions as they are; or `data/metrics`, or the repository of a run
    without a report yet: a row for each entry and task. Names are text, whatever they look like; counts are whole
    numbers (Int64); what is not known is missing.

    Raises InputError where there are no results, ExtraError without pandas.
    """
    with naming_extras():
        from merganser.standalone.results import load_results

        return load_results(Path(results))


def _source(model: Model) -> dict[str, Any]:
    """Return a model as a recipe names it."""
    from merganser.config.recipes import source_named

    return source_named(model).model_dump() if isinstance(model, str) else {"path": os.fspath(model)}
