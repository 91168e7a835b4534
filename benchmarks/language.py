"""Measure merges of language models against mergekit's: `python -m benchmarks.language [METHOD ...]`.

A base and three models fine-tuned from it of TinyLlama's shape (Zhang et al., 2024, arXiv:2401.02385): 1.1 billion
parameters each, random, in bfloat16, in shards of a gigabyte with an index, as transformers saves them. `merganser
merge` against `mergekit-yaml`, each as a process of its own on a terminal, so that both show their progress. It takes
twelve gigabytes of disk. Methods that mergekit does not have are measured alone. `--map 28672 8192` takes models of one
linear map, here of the largest that Llama 2 70B has beside its embeddings: a merge holds pieces of it at a time.
mergekit refuses models that lack what their architecture has, so these are measured alone.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from benchmarks.harness import RESULTS, Run, described, machine, write_results
from benchmarks.llama import VOCABULARY, specs
from benchmarks.mergekit import KIN, Kin, Row, alternated, installed, table, versions
from benchmarks.models import SIZE, STEP
from benchmarks.sides import Setting, writing
from merganser.checkpoints.tensors import Spec

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS = 22, 2048, 5632, 32, 4
TASKS, TIMES = 3, 2
SHARDS = "1GB"
DEFAULT = ("task_arithmetic", "ties", "dare", "tsv_m")


def main() -> None:
    """Measure each method on both sides, in alternation; print a table as Markdown, and write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"({', '.join(DEFAULT)})")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of each model ({LAYERS}: TinyLlama)")
    parser.add_argument("--map", type=int, nargs=2, metavar=("M", "N"), help="models of one linear map of this shape")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"how many models are merged ({TASKS})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of our method")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each side ({TIMES})")
    parser.add_argument("--threads", type=int, default=2, help="of a merge (2)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--json", type=Path, default=RESULTS / "language.json", help="where the figures go")
    options = parser.parse_args()
    print(f"{described(machine())}; {options.threads} threads a merge; {versions()}\n", flush=True)
    rows = []
    shapes = shapes_of(options.layers, options.map)
    with made(options.folder, shapes, options.threads) as models:
        setting = replace(models, models=dict(list(models.models.items())[: options.tasks]))
        for method in options.methods or DEFAULT:
            kin = None if options.map or options.set else KIN.get(method)
            rows.append(measured(method, setting, options.times, kin, options.set))
            write_results(options.json, {"versions": versions(), "threads": options.threads, "rows": rows})
    print(table(rows))


class Shapes(NamedTuple):
    """What models are made of, and a name for it."""

    name: str
    layers: int
    specs: Mapping[str, Spec]


def shapes_of(layers: int, linear_map: Sequence[int] | None) -> Shapes:
    """Return the shapes of models of so many layers, or of one linear map alone."""
    if linear_map:
        name = "x".join(map(str, linear_map))
        return Shapes(name, 1, {"model.layers.0.mlp.up_proj.weight": Spec("BF16", tuple(linear_map))})
    narrow = HIDDEN // HEADS * KEY_VALUE_HEADS
    return Shapes(f"{layers}-layers", layers, specs(layers, HIDDEN, INTERMEDIATE, narrow))


@contextmanager
def made(folder: Path | None, shapes: Shapes, threads: int) -> Iterator[Setting]:
    """Make the models, unless they are in the folder, and a temporary folder for what is written."""
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        place = (folder or Path(temporary)).absolute() / shapes.name
        for task in range(TASKS + 1):
            if not (place / f"model{task}" / "config.json").is_file():
                _save_model(place / f"model{task}", shapes, task)
        base, *models = (place / f"model{task}" for task in range(TASKS + 1))
        yield Setting(base, {path.name: path for path in models}, Path(temporary), threads)


def _save_model(folder: Path, shapes: Shapes, task: int) -> None:
    """Save one model as transformers does; 0: the base."""
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(
        {name: _weights(place, task, spec.shape) for place, (name, spec) in enumerate(shapes.specs.items())},
        folder,
        max_shard_size=SHARDS,
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_hidden_layers": shapes.layers,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _weights(place: int, task: int, shape: tuple[int, ...]) -> Tensor:
    values = SIZE * torch.randn(shape, generator=torch.Generator().manual_seed(place))
    if task:
        values += STEP * torch.randn(shape, generator=torch.Generator().manual_seed(1000 * task + place))
    return values.to(torch.bfloat16)


def measured(method: str, setting: Setting, times: int, kin: Kin | None, values: Sequence[str]) -> Row:
    """Measure one method on both sides, or on ours where mergekit has no kin of it."""
    sides = {"ours": ours(method, setting, values)} | ({"mergekit": theirs(kin, setting)} if kin else {})
    return Row(method, kin, alternated(method, sides, times), None)


def ours(method: str, setting: Setting, values: Sequence[str]) -> Run:
    """Merge by `merganser merge`."""
    models = [f"--model={task}={path}" for task, path in setting.models.items()]
    command = [sys.executable, "-m", "merganser.flows", "merge", method, "--base", str(setting.base), *models]
    command += [f"--set={each}" for each in values]
    return on_terminal([*command, "--device", "cpu", "--threads", str(setting.threads), "--out"], "ours", setting)


def theirs(kin: Kin, setting: Setting) -> Run:
    """Merge by `mergekit-yaml`."""
    parameters = {"weight": kin.weight, **dict(kin.parameters)}
    config = {
        "merge_method": kin.method,
        "models": [{"model": str(path), "parameters": parameters} for path in setting.models.values()],
        "dtype": "bfloat16",
        **({"base_model": str(setting.base)} if kin.method != "linear" else {}),
    }
    file = setting.folder / f"{kin.method}.yaml"
    file.write_text(yaml.safe_dump(config))
    program = installed().with_name("mergekit-yaml")
    return on_terminal([str(program), str(file), "--num-threads", str(setting.threads)], "mergekit", setting)


def on_terminal(command: Sequence[str], side: str, setting: Setting) -> Run:
    """Make a run on a terminal of its own, which `script` gives it; the folder it writes to is its last word."""
    run = writing(side, command, setting, option=None)
    return replace(run, command=["script", "-qefc", shlex.join(run.command), "/dev/null"])


if __name__ == "__main__":
    main()
