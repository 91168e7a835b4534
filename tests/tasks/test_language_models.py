"""A comparison of a decoder with LoRA adapters, by the stages themselves: lm-eval's tasks, and texts that it writes."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from merganser.config.headers import check_sources
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.evaluation.data_sets import of_group
from merganser.evaluation.examples import read_results
from merganser.evaluation.harness import make_lm_eval_task, network_as_lm, samples_of
from merganser.tasks import evaluate, extract, fetch, merge, prepare
from tests.evaluation.kinds.test_served import COMMAND
from tests.tasks.comparison import inside
from tests.tiny_transformers import tokenizer, write_model

KIND = "llama, tied"
WORDS = ["cat", "dog", "mat", "red", "dark", "light", "yes", "no", "on"]
ROWS = [
    {"question": f"the {WORDS[i % 9]} {WORDS[i % 7]}", "choices": ["yes", "no", f"{WORDS[i % 4]}"], "label": i % 3}
    for i in range(40)
]
TASK = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
}
GROUP = {"few": ROWS[:7], "many": ROWS[7:]}
TASKS: dict[str, dict[str, Any]] = {
    "chosen": {"kind": "language_model", "data": {"metric": "acc", "task": TASK}},
    "grouped": {"kind": "language_model", "data": {"source": "sources/group", "group": dict.fromkeys(GROUP, TASK)}},
    "ranked": {
        "kind": "text_generation",
        "data": {"prompt": "{question}", "answers": ["yes", "no", "cat"], "scoring": "rank", "metric": "accuracy"},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stages on a tiny decoder and two adapters."""
    path = tmp_path_factory.mktemp("comparison")
    sources = path / "sources"
    write_model(sources / "base", KIND)
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(sources / "data")
    group = {name: [{"test": Dataset.from_list(rows)}] for name, rows in GROUP.items()}
    of_group(group).save_to_disk(sources / "group")
    for seed, task in enumerate(TASKS):
        adapted(sources / "base", seed).save_pretrained(sources / task)
    data = {
        name: task | {"source": f"sources/{name}", "data": {"source": "sources/data", **task["data"]}}
        for name, task in TASKS.items()
    }
    params = {
        "seed": 0,
        "base": {"source": "sources/base", "family": "causal"},
        "parameters": {"merged": ["*"], "matrices": "linear"},
        "tasks": data,
        "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
        "methods": {
            "average": {"method": "average", "reads": "deltas"},
            "individual": {"method": "individual", "reads": "deltas"},
        },
        "evaluation": {"split": "test", "batch_size": 8},
    }
    (path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with inside(path):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            fetch.main(["data", task])
            extract.main([task])
            prepare.main([task])
        for entry in params["methods"]:
            merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
    return path


def adapted(base: Path, seed: int) -> PeftModel:
    """Put a random adapter on the base, whose updates are about as large as the weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(base)
        tuned = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(seed)
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return tuned


def test_a_server_scores_as_this_process_each_tasks_own_model_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Path(shutil.copytree(folder, tmp_path / "served", symlinks=True))
    params = yaml.safe_load((made / "params.yaml").read_text())
    params["evaluation"]["server"] = COMMAND
    (made / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with inside(made):
        evaluate.main(["individual", "chosen"])
        evaluate.main(["individual", "ranked"])  # which is no task of lm-eval: it stays in this process
    for task, device in (("chosen", "server"), ("ranked", "cpu")):
        place = f"data/metrics/individual/{task}.json"
        before, after = (json.loads((each / place).read_text()) for each in (folder, made))
        assert after == before | {"device": device}
        place = f"data/examples/individual/{task}.safetensors"
        assert (made / place).read_bytes() == (folder / place).read_bytes()
    assert not list((made / "data/served").iterdir())


def test_a_split_of_examples_that_is_not_there_is_refused_before_any_work(folder: Path) -> None:
    content = yaml.safe_load((folder / "params.yaml").read_text())
    content["tasks"]["chosen"]["data"] |= {"num_fewshot": 2, "fewshot_split": "train"}
    said = r"tasks\.chosen\.data\.fewshot_split: .*sources/data has no split 'train'; it has test"
    with pytest.raises(InputError, match=said):
        check_sources(Params.model_validate(content), folder, lambda path: False)


class Plain:
    """A model as transformers loads it, to be asked by lm-eval."""

    def __init__(self, module: Any) -> None:
        self.module, self.tokenizer = module.eval(), tokenizer(ends=False)


def test_each_models_scores_are_lm_evals_of_the_adapter_merged_by_peft(folder: Path) -> None:
    found = read_results(folder / "data/examples/individual/chosen.safetensors")
    plain = Plain(adapted(folder / "sources/base", 0).merge_and_unload())
    expected = [sample["acc"] for sample in samples_of(make_lm_eval_task(TASK, "acc", ROWS), network_as_lm(plain, 8))]
    assert found.score is not None
    assert found.score.tolist() == expected
    assert 0 < found.score.mean() < 1


def test_a_group_has_a_value_for_each_of_its_data_sets(folder: Path) -> None:
    found = read_results(folder / "data/examples/average/grouped.safetensors").score
    score = json.loads((folder / "data/metrics/average/grouped.json").read_text())
    assert found is not None
    assert score["data_sets"] == {"few": found[:7].mean(), "many": found[7:].mean()}
    assert score["value"] == pytest.approx(found.mean())
    assert "data_sets" not in json.loads((folder / "data/metrics/average/chosen.json").read_text())


def test_a_merge_of_adapters_loads_in_transformers_and_scores_the_same_there(folder: Path) -> None:
    found = read_results(folder / "data/examples/average/chosen.safetensors")
    plain = Plain(AutoModelForCausalLM.from_pretrained(folder / "data/merged/average"))
    expected = [sample["acc"] for sample in samples_of(make_lm_eval_task(TASK, "acc", ROWS), network_as_lm(plain, 8))]
    assert found.score is not None
    assert found.score.tolist() == expected


def test_two_entries_are_compared_document_by_document(folder: Path) -> None:
    for task in TASKS:
        first, second = (
            read_results(folder / f"data/examples/{entry}/{task}.safetensors") for entry in ("average", "individual")
        )
        assert first.score is not None
        assert second.score is not None
        assert len(first) == len(second) == len(ROWS)
        assert (first.score != second.score).any()


def test_a_base_of_another_family_or_with_strange_parameters_is_refused_by_prepare(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "data/base", tmp_path / "data/base")
    shutil.copytree(folder / "data/datasets", tmp_path / "data/datasets")
    params = (folder / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(params.replace("family: causal", "family: seq2seq"))
    with inside(tmp_path), pytest.raises(InputError, match=r"not of the family seq2seq; set base\.family to causal"):
        prepare.main(["chosen"])
    (tmp_path / "params.yaml").write_text(params)
    base = load_file(tmp_path / "data/base/model.safetensors")
    save_file(base | {"model.odd.weight": torch.zeros(2)}, tmp_path / "data/base/model.safetensors")
    with inside(tmp_path), pytest.raises(InputError, match=r"parameter model\.odd\.weight is not in the architecture"):
        prepare.main(["chosen"])
