"""Miniatures of what the suites of Llama read: adapters with heads, labelled pairs, and questions of lm-eval."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification

from merganser.config.params import Params
from merganser.config.sections import UNMEASURED
from merganser.flows.suites import files as suite_files
from merganser.flows.suites.ready import load_suite
from merganser.sources import pointers
from tests.hub import serve
from tests.tiny import ROOT, dvc, make_clone, merganser
from tests.tiny_transformers import WORDS, random_model, write_model
from tests.transformers_models import tuned

KIND, OUTPUTS, LONG = "llama, untied", 3, 2048  # tokens: worked examples are long
NLI, MERGEBENCH = "llama-3-8b-nli-lora", "mergebench-llama-3.2-3b"
PADDING = 2  # `</s>`, as Llama-3's 128001 is the token that ends a text
COUNT = 12  # rows of each split
# An entry of each kind of what entries read.
ENTRIES = {
    NLI: (
        *("base", "individual", "task_arithmetic", "ties_1", "tsv_m", "knots", "knots_dare_ties", "emr_diff", "ties"),
        *("regmean", "fisher", "adamerging_task", "twin", "surgery"),
    ),
    MERGEBENCH: ("base", "individual", "task_arithmetic", "ties_03", "tsv_m", "drm_h", "emr_diff", "ties"),
}
READ = {"statistics": ("gram", "fisher"), "learned": ("adamerging_task",), "routers": ("task_arithmetic",)}
LANGUAGE_SPLITS = {
    "mmlu": ("train", "val", "test"),
    "arc": ("train", "validation", "test"),
    "hellaswag": ("val",),
}
NAMES = ["entailment", "neutral", "contradiction"]
# By data set: the splits and their labels, and the label column's type.
LABELLED: dict[str, tuple[dict[str, list[Any]], Any]] = {
    "snli": ({"train": [0, 1, 2, -1], "test": [2, 1, -1, 0]}, ClassLabel(names=NAMES)),
    "mnli": ({"train": [0, 1, 2], "validation": [1, 2, 0], "test": [-1]}, Value("int64")),
    "sick": ({"train": [0, 1, 2], "test": [2, 1, 0]}, ClassLabel(names=NAMES)),
    "qnli": ({"train": [0, 1], "validation": [1, 0], "test": [-1]}, Value("int64")),
    "rte": ({"train": [0, 1], "validation": [1, 0], "test": [-1]}, Value("int64")),
    "scitail": ({"train": ["entails", "neutral"], "test": ["neutral", "entails"]}, Value("string")),
}


def classifier_adapter(base: Path, seed: int) -> PeftModel:
    """Put a random adapter with a random head of three outputs on a decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=OUTPUTS)
        settings = LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "o_proj"])
        adapted = get_peft_model(model, settings)
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return adapted


def write_base(folder: Path) -> None:
    """Write a decoder of long texts whose tokenizer has no padding token, as Llama's."""
    write_model(folder, KIND)
    for name, changes in (
        ("config.json", {"max_position_embeddings": LONG, "pad_token_id": None}),
        ("tokenizer_config.json", {"pad_token": None}),
    ):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def write_tuned(folder: Path, base: Path, seed: int) -> None:
    """Write a full fine-tune of the base, in bfloat16."""
    write_base(folder)
    model = tuned(random_model(KIND), seed)
    model.config.max_position_embeddings = LONG
    model.to(torch.bfloat16).save_pretrained(folder)


def pairs_of(task: str, columns: dict[str, str]) -> DatasetDict:
    """Make a data set of pairs of texts with the labels, and names of columns, that the real one has."""
    splits, label = LABELLED[task]
    one, two = columns["text"], columns["pair"]
    features = Features({one: Value("string"), two: Value("string"), "label": label})
    made = {}
    for split, labels in splits.items():
        rows = [
            {one: f"the {WORDS[i % 9]} {WORDS[i % 7]}", two: " ".join(WORDS[: 1 + i % 4]), "label": given}
            for i in range(COUNT)
            for given in [labels[i % len(labels)]]
        ]
        made[split] = Dataset.from_list(rows, features=features)
    return DatasetDict(made)


def questions_of(task: str) -> dict[str, dict[str, Dataset]]:
    """Make the rows of a data set of lm-eval, by configuration and split."""
    words = WORDS[:COUNT]
    if task == "math":
        rows = [{"question": f"how many {word}", "answer": f"so #### {i}"} for i, word in enumerate(words)]
        return {"main": {split: Dataset.from_list(rows) for split in ("train", "test")}}
    if task == "instruction":
        asked = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]}
        rows = [{"key": i, "prompt": f"write of a {word}", **asked} for i, word in enumerate(words)]
        return {"default": {"train": Dataset.from_list(rows)}}
    found: dict[str, dict[str, Dataset]] = {}
    for language in ("fr", "es", "de", "ru"):
        rows = [in_language(task, f"{language} {word}", i) for i, word in enumerate(words[:4])]
        found[language] = {split: Dataset.from_list(rows) for split in LANGUAGE_SPLITS[task]}
    return found


def in_language(task: str, question: str, number: int) -> dict[str, Any]:
    """Make a row of a data set of several languages."""
    if task == "hellaswag":
        about = {
            "ind": number,
            "activity_label": "Walking",
            "source_id": f"activitynet~{number}",
            "split_type": "indomain",
        }
        asked = {"ctx_a": question, "ctx_b": "then they", "ctx": f"{question} then they", "split": "val"}
        return {**about, **asked, "endings": [f"{word} [step]" for word in WORDS[:4]], "label": str(number % 4)}
    options = {f"option_{letter}": WORDS[number + k] for k, letter in enumerate("abcd")}
    own = {"option_e": "" if number % 2 else None} if task == "arc" else {}
    return {"instruction": question, "answer": "ABCD"[number % 4], "id": str(number), **options, **own}


def write_configurations(folder: Path, configurations: dict[str, Any]) -> None:
    """Write a data set's repository: parquet files, and a README that names them."""
    listed = []
    for name, splits in configurations.items():
        (folder / name).mkdir(parents=True)
        for split, rows in splits.items():
            rows.to_parquet(folder / name / f"{split}.parquet")
        files = [{"split": split, "path": f"{name}/{split}.parquet"} for split in splits]
        listed.append({"config_name": name, "data_files": files})
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': listed})}---\n")


def make_hub(folder: Path, root: Path, params: Params) -> dict[str, Path]:
    """Write all repositories that such a suite's pointers name; return their folders."""
    repositories: dict[str, Path] = {}

    table = {path: pointers.pointer_of(content, path) for path, content in suite_files.pointers(root).items()}

    def place(source: str) -> Path:
        pointer = table[Path(source)]
        assert isinstance(pointer, pointers.HubPointer)
        found = repositories[f"models/{pointer.hub}"] = folder / "models" / pointer.hub
        return found

    base = place(params.base.source)
    write_base(base)
    for seed, (name, task) in enumerate(params.tasks.items()):
        model = place(task.source)
        if params.base.heads:
            classifier_adapter(base, seed).save_pretrained(model)
        else:
            write_tuned(model, base, seed + 1)
        if task.kind == UNMEASURED:
            continue
        for member, pointer in pointers.repositories(table[Path(task.data.source)]).items():
            data = repositories[f"datasets/{pointer.hub}"] = folder / "datasets" / pointer.hub
            if name in LABELLED:
                configuration = pointer.name if isinstance(pointer.name, str) else "default"
                write_configurations(data, {configuration: pairs_of(name, task.data.columns)})
            else:
                write_configurations(data, questions_of(member or name))
    return repositories


def cut(path: Path, name: str) -> None:
    """Keep some entries of a suite and what they read, and pad with a token that the miniatures have."""
    params = yaml.safe_load(path.read_text())
    params["methods"] = {entry: params["methods"][entry] for entry in ENTRIES[name]}
    for section, kept in READ.items():
        if section in params:
            params[section] = {key: params[section][key] for key in kept}
    for section in ("learned", "surgery"):
        for about in params.get(section, {}).values():
            about |= {"steps": 2, "batch_size": 2}
    if "pad_token_id" in params["base"]:
        params["base"]["pad_token_id"] = PADDING
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def run_suite(folder: Path, name: str) -> None:
    """Check, use and run a suite on a hub of miniatures, by an entry of each kind of what entries read."""
    root = make_clone(folder / name)
    for part in ("suites", "published"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("sources"))
    params = load_suite(root, name)
    with serve(make_hub(folder / f"{name}-hub", root, params)) as hub:
        online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / f"{name}-cache")}
        said = merganser(root, "suites", "check", name, "--pin", **online).stdout
        assert f"{name}: 0 mistakes" in said, said
        merganser(root, "use", name)
        cut(root / "params.yaml", name)
        merganser(root, "run", "--workers", "4", **online)
    if name == MERGEBENCH:
        lines = (root / "report/data_sets.csv").read_text().splitlines()
        assert len(lines) == 1 + len(ENTRIES[name]) * len(LANGUAGE_SPLITS)
    results: dict[str, Any] = json.loads((root / "data/scores.json").read_text())
    assert set(results) == set(ENTRIES[name])
    assert "up to date" in dvc(root, "status")
    print(f"{name}: {len(results)} entries on {len(params.measured)} tasks", flush=True)
