"""Suites of real models from nothing: their own pointers, models of two layers and a few examples at their hub.

All is as a user has it, `merganser suites check`, `use`, `run`, but for the sizes and the steps of what learns.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset, Features, Image, Value
from dvc.repo import Repo
from PIL import Image as Pictures

from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.config.params import Data, Params, Task
from merganser.evaluation.kinds.text_generation import columns_of
from merganser.sources.pointers import HubPointer, read_pointer
from tests.hub import serve
from tests.tiny import CODE, ROOT, dvc, merganser
from tests.tiny_transformers import random_model, write_model
from tests.transformers_models import tuned

SUITES = {
    "clip-vit-b-32-8": "clip",
    "flan-t5-base-glue": "flan-t5",
    "flan-t5-base-glue-lora": "flan-t5",
    "gpt2-glue": "gpt2",
    "roberta-base-glue": "roberta",
}
SAMPLED = ("roberta-base-glue",)
ROWS = {"train": 12, "validation": 16, "validation_matched": 16, "test": 16}
FEW = {"steps": 2, "mask_steps": 2, "every": 1, "batch_size": 2}  # of what learns
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "dark", "light", "of", "image"]


def drill(folder: Path, sample: bool) -> None:
    """Check, use and run each suite on a hub of miniatures."""
    for name in SAMPLED if sample else SUITES:
        root = make_root(folder / name, name)
        params = load_params(root / "suites" / name / "params.yaml")
        with serve(make_hub(folder / f"{name}-hub", root, params, SUITES[name])) as hub:
            online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / f"{name}-cache")}
            said = merganser(root, "suites", "check", name, "--pin", **online).stdout
            assert f"{name}: 0 mistakes" in said, said
            merganser(root, "use", name)
            shorten(root / "params.yaml")
            merganser(root, "run", "--workers", "2", **online)
        results = json.loads((root / "metrics.json").read_text())
        assert set(results) == set(params.methods)
        assert "up to date" in dvc(root, "status")
        differences = json.loads(merganser(root, "suites", "diff", "--json").stdout)
        assert {line["entry"] for line in differences} <= set(params.methods)
        print(
            f"{name}: {len(results)} entries on {len(params.tasks)} tasks, {len(differences)} figures compared",
            flush=True,
        )


def make_root(folder: Path, name: str) -> Path:
    """Make a repository with the project's code and one of its suites."""
    folder.mkdir(parents=True)
    for part in (*CODE, f"suites/{name}", "suites/sources"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc*"))
        else:
            shutil.copyfile(ROOT / part, folder / part)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")
    return folder


def shorten(path: Path) -> None:
    """Have everything that learns take few steps, and ask for no more than miniatures have."""
    params = yaml.safe_load(path.read_text())
    params["decompose"]["rank_fraction"] = 1.0  # which an adaptive rank of half the bytes needs
    for entry in params["methods"].values():
        if entry.get("rank_fraction") == "adaptive":
            entry["ratio"] = 0.5  # of the bytes: one in a hundred of so few holds not even an index
    for section in ("learned", "surgery"):
        for about in params.get(section, {}).values():
            learns = {"steps", "batch_size"} if section == "surgery" else FEW.keys()
            inner = about.get("inner") != "adamerging"
            if about.get("learner") == "localize_stitch_learned":
                about["examples"] = 1  # of each class
            about.update({key: FEW[key] for key in learns if not (key == "mask_steps" and inner)})
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def make_hub(folder: Path, root: Path, params: Params, kind: str) -> dict[str, Path]:
    """Write all repositories that a suite's pointers name; return their folders."""
    repositories: dict[str, Path] = {}

    def place(source: str, what: str) -> tuple[Path, HubPointer]:
        pointer = read_pointer(root / source)
        assert isinstance(pointer, HubPointer)
        repositories[f"{what}/{pointer.hub}"] = folder / what / pointer.hub
        return folder / what / pointer.hub / (pointer.path or ""), pointer

    base, _ = place(params.base.source, "models")
    write_model(base, kind)
    for number, (name, task) in enumerate(params.tasks.items()):
        model, _ = place(task.source, "models")
        write_tuned(model, base, kind, task, number + 1, lora="_lora" in str(model))
        data, pointer = place(task.data.source, "datasets")
        write_data(data, pointer.name or "default", task, params.split_of(name))
    return repositories


def write_tuned(folder: Path, base: Path, kind: str, task: Task, seed: int, *, lora: bool) -> None:
    """Write a model fine-tuned from the base as the suite's are: a vision tower, an adapter, or one with a head."""
    outputs = {"text_classification": len(classes_of(task)), "regression": 1}.get(task.kind)
    model = random_model(kind)
    if lora:
        from peft import LoraConfig, get_peft_model

        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"]))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.data = 0.1 * torch.randn_like(parameter)
        adapted.save_pretrained(folder)
        return
    if outputs is not None:
        model = write_model(folder, kind, outputs)
    else:
        shutil.copytree(base, folder, dirs_exist_ok=True)
    tuned(model, seed).save_pretrained(folder)
    if kind == "clip":
        tower = {name: value for name, value in model.state_dict().items() if name.startswith("vision_model.")}
        save_tensors(folder / "model.safetensors", {name: value.contiguous() for name, value in tower.items()})
        model.config.vision_config.save_pretrained(folder)


def classes_of(task: Task) -> list[Any]:
    """Return the classes that a task of GLUE has: three of MNLI, two of the others."""
    named = task.data.own.get("classes") or task.data.own.get("answers")
    return list(named or range(3 if "mnli" in task.source else 2))


def write_data(folder: Path, config: str, task: Task, split: str) -> None:
    """Write the splits that are there of a data set, as parquet, under one of its configurations."""
    names = dict.fromkeys(["train", split, "test"])
    for name in names:
        secret = name == "test" and split != "test" and task.kind != "image_classification"
        (folder / config).mkdir(parents=True, exist_ok=True)
        count = max(
            ROWS[name], len(classes_of(task)) if name == "train" else 0
        )  # each class stands in what is learned of
        rows_of(task, count, secret).to_parquet(folder / config / f"{name}.parquet")
    readme, head = folder / "README.md", {"configs": []}
    if readme.is_file():
        head = yaml.safe_load(readme.read_text().split("---")[1])
    files = [{"split": name, "path": f"{config}/{name}.parquet"} for name in names]
    head["configs"].append({"config_name": config, "data_files": files})
    readme.write_text(f"---\n{yaml.safe_dump(head)}---\n")


def rows_of(task: Task, count: int, secret: bool) -> Dataset:
    """Make rows with the columns that a task reads, under the data set's own names; `secret`: without labels."""
    own = task.data.columns
    draw = np.random.default_rng(count)
    if task.kind == "image_classification":
        pictures = [Pictures.fromarray(draw.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(count)]
        labels = [number % len(classes_of(task)) for number in range(count)]
        image, label = own.get("image", "image"), own.get("label", "label")
        return Dataset.from_dict(
            {image: pictures, label: labels}, features=Features({image: Image(), label: Value("int64")})
        )
    rows: dict[str, list[Any]] = {
        column: [" ".join(draw.choice(WORDS, 5)) for _ in range(count)] for column in text_columns(task.data, own)
    }
    scores = task.kind == "regression" or task.data.metric in ("spearman", "pearson")
    if secret:
        labels = [-1.0 if scores else -1] * count
    else:
        labels = [5 * draw.random() if scores else number % len(classes_of(task)) for number in range(count)]
    made = Dataset.from_dict({**rows, "label": labels})
    if not scores:
        from datasets import ClassLabel

        made = made.cast_column(
            "label", ClassLabel(names=[f"class {number}" for number in range(len(classes_of(task)))])
        )
    return made


def text_columns(data: Data, own: Mapping[str, str]) -> list[str]:
    """Name the columns of texts that a task reads."""
    prompt = data.own.get("prompt")
    return columns_of(prompt) if prompt else [own[key] for key in ("text", "pair") if key in own]
