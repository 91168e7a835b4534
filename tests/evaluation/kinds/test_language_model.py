"""Tasks of lm-eval on tiny models, against what lm-eval's own `simple_evaluate` says of them."""

import hashlib
import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from lm_eval import evaluator as lm_evaluator
from lm_eval import simple_evaluate, utils
from lm_eval import tasks as lm_tasks
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from pydantic import ValidationError

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.harness import installed_task
from merganser.evaluation.kinds import language_model as kind
from merganser.evaluation.kinds.language_model import Settings
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import score_of
from merganser.models import open_network
from tests.evaluation.kinds.texts import prepared_in
from tests.tiny_transformers import FAMILIES, write_model

WORDS = ["cat", "dog", "mat", "red", "dark", "light", "yes", "no", "on"]
ROWS = Dataset.from_list(
    [
        {"question": f"the {WORDS[i]} sat", "choices": [WORDS[i - 1], f"{WORDS[i - 2]} ran", "."], "answer": i % 3}
        for i in range(9)
    ]
)
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
}
YES_NO = CHOICE | {"doc_to_choice": ["yes", "no"], "doc_to_target": "{{answer % 2}}"}
WRITTEN = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3},
}
LIKELIEST = {"output_type": "loglikelihood", "doc_to_text": "{{question}}", "doc_to_target": " {{choices[0]}}"}
NAMES = ("llama, untied", "t5")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp(name)
        write_model(folder, name)
        made[name], checkpoint = open_network(FAMILIES[name], folder), open_checkpoint(folder)
        made[name].load((parameter, checkpoint.read(parameter)) for parameter in checkpoint.names)
    return made


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing connect to anything, and lm-eval not spend seconds on listing what is installed."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a task of lm-eval connected to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(lm_evaluator, "add_env_info", lambda _: None)


def evaluated(network: Any, task: Any, metric: str, rows: Dataset = ROWS) -> Results:
    evaluator = open_evaluator("language_model", {"task": task}, metric)
    evaluator.check_data({"test": rows}, Path("data"))
    assert evaluator.outputs([]) is None
    with TemporaryDirectory() as folder:
        prepared = prepared_in(Path(folder), kind.prepare(rows, evaluator.settings, network))
        return evaluator.results(network, prepared, batch_size=4)


def expected(network: Any, task: dict[str, Any], metric: str) -> float:
    own = {"task": "one", "test_split": "test", "custom_dataset": lambda **_: {"test": ROWS}}
    model = HFLM(pretrained=network.module, tokenizer=network.tokenizer, batch_size=1)
    found = simple_evaluate(
        model=model,
        tasks=[task | own | {"metric_list": [{"metric": metric}]}],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    return float(found["results"]["one"][f"{metric},none"])


@pytest.mark.parametrize(
    ("name", "task", "metric"),
    [
        ("llama, untied", CHOICE, "acc"),
        ("llama, untied", CHOICE, "acc_norm"),
        ("llama, untied", YES_NO, "mcc"),
        ("llama, untied", YES_NO, "f1"),
        ("llama, untied", WRITTEN, "exact_match"),
        ("llama, untied", LIKELIEST, "acc"),
        ("t5", CHOICE, "acc"),
    ],
)
def test_a_score_is_lm_evals_own(networks: dict[str, Any], name: str, task: dict[str, Any], metric: str) -> None:
    found = evaluated(networks[name], task, metric)
    assert len(found) == len(ROWS)
    assert score_of(metric, found)["value"] == pytest.approx(expected(networks[name], task, metric))


def test_each_documents_score_is_whether_the_likeliest_choice_is_the_right_one(networks: dict[str, Any]) -> None:
    network = networks["llama, untied"]
    found = evaluated(network, CHOICE | {"target_delimiter": " "}, "acc")
    alone = []
    for row in ROWS:
        options = network.rank(network.encode([row["question"]], 20), row["choices"])
        alone.append(float(int(options.argmax()) == row["answer"]))
    assert found.score is not None
    assert found.score.tolist() == alone
    assert 0 < found.score.mean() < 1


def test_examples_are_shown_before_the_question(networks: dict[str, Any]) -> None:
    shown = {"num_fewshot": 1, "fewshot_config": {"samples": [dict(ROWS[0])], "sampler": "first_n"}}
    from merganser.evaluation.harness import make_lm_eval_task, network_as_lm, samples_of

    task = make_lm_eval_task(CHOICE | shown, "acc", list(ROWS))
    arguments = samples_of(task, network_as_lm(networks["llama, untied"], 4))[2]["arguments"]
    assert arguments[0][0] == "the cat sat on\n\nthe mat sat"


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("task", [CHOICE, CHOICE | {"fewshot_config": {"sampler": "first_n"}}])
def test_examples_of_another_split_are_shown_as_lm_eval_shows_them(
    networks: dict[str, Any], tmp_path: Path, task: dict[str, Any], chat: bool
) -> None:
    network = networks["llama, untied"]
    if chat:
        network.tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    DatasetDict({"test": ROWS.select(range(5)), "train": ROWS.select(range(5, 9))}).save_to_disk(tmp_path / "data")
    own = {"num_fewshot": 2, "fewshot_split": "train", "chat_template": chat}
    evaluator = open_evaluator("language_model", {"task": task, **own}, "acc_norm")
    evaluator.prepare(tmp_path / "data", "test", network, fresh(tmp_path / "prepared"))
    found = evaluator.results(network, Prepared(tmp_path / "prepared"), batch_size=4)
    splits = {"test": ROWS.select(range(5)), "train": ROWS.select(range(5, 9))}
    asked = {"task": "one", "test_split": "test", "fewshot_split": "train", "custom_dataset": lambda **_: splits}
    expected = simple_evaluate(
        model=HFLM(pretrained=network.module, tokenizer=network.tokenizer, batch_size=1),
        tasks=[task | asked | {"num_fewshot": 2, "metric_list": [{"metric": "acc_norm"}]}],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        apply_chat_template=chat,
    )
    network.tokenizer.chat_template = None
    assert found.score is not None
    assert found.score.tolist() == [sample["acc_norm"] for sample in expected["samples"]["one"]]
    prompt = expected["samples"]["one"][0]["arguments"][0][0]
    assert sum(question in prompt for question in splits["train"]["question"]) == 2


def test_the_split_that_is_measured_on_is_not_shown(networks: dict[str, Any], tmp_path: Path) -> None:
    DatasetDict({"test": ROWS}).save_to_disk(tmp_path / "data")
    evaluator = open_evaluator("language_model", {"task": CHOICE, "num_fewshot": 1, "fewshot_split": "test"}, "acc")
    with pytest.raises(InputError, match=r"data\.fewshot_split: 'test' is the split that is measured on"):
        evaluator.prepare(tmp_path / "data", "test", networks["llama, untied"], fresh(tmp_path / "prepared"))


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_task_file_is_the_one_whose_sum_is_declared(
    networks: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in CHOICE.items()))
    named = {"file": "task.yaml", "sha256": hashlib.sha256(Path("task.yaml").read_bytes()).hexdigest()}
    network = networks["llama, untied"]
    assert score_of("acc", evaluated(network, named, "acc")) == score_of("acc", evaluated(network, CHOICE, "acc"))
    Path("task.yaml").write_text("doc_to_text: !function mine.run\n")
    with pytest.raises(InputError, match=r"data\.task\.sha256: task\.yaml has [0-9a-f]{64}; write this there"):
        evaluated(network, named, "acc")
    changed = {"file": "task.yaml", "sha256": hashlib.sha256(Path("task.yaml").read_bytes()).hexdigest()}
    with pytest.raises(InputError, match=r"task\.yaml.*!function"):
        evaluated(network, changed, "acc")
    with pytest.raises(InputError, match="outside its folder"):
        evaluated(network, changed | {"file": "../task.yaml"}, "acc")
    with pytest.raises(InputError, match=r"data\.task\.file: no\.yaml cannot be read"):
        evaluated(network, changed | {"file": "no.yaml"}, "acc")


def test_a_group_asks_each_data_set_as_alone_and_counts_all_questions(networks: dict[str, Any]) -> None:
    network = networks["llama, untied"]
    tasks = {"choices": CHOICE, "yes or no": YES_NO}
    members = [list(tasks)[i % 3 > 0] for i in range(len(ROWS))]
    rows = Dataset.from_dict({"member": members, "document": [json.dumps(row) for row in ROWS]})
    evaluator = open_evaluator("language_model", {"group": tasks}, "acc")
    evaluator.check_data({"test": rows}, Path("data"))
    with TemporaryDirectory() as folder:
        prepared = prepared_in(Path(folder), kind.prepare(rows, evaluator.settings, network))
        found = evaluator.results(network, prepared, batch_size=4)
    assert found.score is not None
    for member, task in tasks.items():
        own = [i for i, each in enumerate(members) if each == member]
        alone = evaluated(network, task, "acc", ROWS.select(own)).score
        assert alone is not None
        assert found.score[own].tolist() == alone.tolist()
    assert score_of("acc", found)["count"] == len(ROWS)
    with pytest.raises(InputError, match=r"data\.group: data is not a group of data sets"):
        evaluator.check_data({"test": ROWS}, Path("data"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs `task`, or `group`, a task for each data set of a group"),
        ({"task": CHOICE, "group": {"a": CHOICE}}, "needs `task`, or `group`"),
        ({"task": CHOICE, "num_fewshot": 2}, "needs both of num_fewshot and fewshot_split"),
        ({"group": {"a": {"class": "mine.Task"}}}, "'class' asks for code, which is never run"),
        ({"group": {"a": {"installed": "arc.yaml"}}}, "a task has installed and version, or file and sha256, as texts"),
    ],
)
def test_a_task_or_a_group_is_given_whole(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": "mine.Task"}, "'class' asks for code, which is never run"),
        ({"unsafe_code": True}, "'unsafe_code' asks for code"),
        ({"process_docs": "run"}, "'process_docs' asks for code"),
        ({"filter_list": [{"name": "a", "filter": [{"function": "custom"}]}]}, "the filter 'custom' asks for code"),
        ({"dataset_path": "glue"}, "'dataset_path' says where data lie; they come from data.source"),
        ({"test_split": "test"}, "data.split picks the split"),
        ({"doc_to_txt": "x"}, "'doc_to_txt' is not a key of a task; did you mean"),
        ({"output_type": "loglikelihood_rolling"}, "output_type must be one of"),
        ({"num_fewshot": 2}, r"num_fewshot needs fewshot_config\.samples"),
        ({"metric_list": [{"metric": "acc", "hf_evaluate": True}]}, "hf_evaluate would fetch the metric"),
    ],
)
def test_a_task_that_brings_code_or_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(task=CHOICE | change)


def test_templates_run_in_a_sandbox_and_must_fit_the_documents(networks: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"lm-eval cannot make this task of the data: .*unsafe"):
        evaluated(networks["t5"], CHOICE | {"doc_to_text": "{{ question.__class__.__mro__ }}"}, "acc")
    with pytest.raises(InputError, match=r"lm-eval cannot make this task of the data: 'sentence' is undefined"):
        evaluated(networks["t5"], CHOICE | {"doc_to_text": "{{sentence}}"}, "acc")
    assert "regex_replace" in utils.env.filters


LM_TASKS = Path(lm_tasks.__path__[0])
ARC = [
    {
        **{"id": str(i), "instruction": f"the {WORDS[i]} sat [on] ", "answer": "ABC"[i % 3]},
        **{f"option_{letter}": f"{WORDS[(i + k) % 9]} ran" for k, letter in enumerate("abc")},
        **{"option_d": "", "option_e": ""},
    }
    for i in range(6)
]
# Each is asked with eight worked examples, and answered in 256 tokens by each side: two are enough to be two.
# The model writes no number: the task's filter reads [invalid], which is right for one of them.
GSM8K = [
    {"question": "how many cat", "answer": "so #### 0"},
    {"question": "how many dog", "answer": "so #### [invalid]"},
]


@pytest.mark.parametrize(
    ("file", "version", "metric", "rows"),
    [
        ("okapi/arc_multilingual/arc_fr.yaml", "2.0", "acc_norm", ARC),  # with a function of lm-eval's own
        ("gsm8k/gsm8k-cot.yaml", "3.0", "exact_match", GSM8K),  # with examples in the file
    ],
)
def test_an_installed_task_scores_as_lm_eval_itself(
    networks: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    version: str,
    metric: str,
    rows: list[dict[str, Any]],
) -> None:
    network, documents = networks["llama, untied"], Dataset.from_list(rows)
    monkeypatch.setattr(network.module.config, "max_position_embeddings", 2048)  # worked examples are long
    found = evaluated(network, {"installed": file, "version": version}, metric, documents)
    task = load_yaml(LM_TASKS / file) | {"dataset_path": None, "test_split": "test", "training_split": None}
    task |= {"validation_split": None, "custom_dataset": lambda **_: {"test": documents}}
    asked = simple_evaluate(
        model=HFLM(pretrained=network.module, tokenizer=network.tokenizer, batch_size=1),
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    scores = asked["results"][task["task"]]
    assert found.score is not None
    assert found.score.mean() == scores.get(f"{metric},none", scores.get(f"{metric},strict-match"))
    assert 0 < found.score.mean() < 1


@pytest.mark.parametrize(
    ("file", "version", "message"),
    [
        ("gsm8k/gsm8k-cot.yaml", "2.0", "is of version 3.0 here; write it under data.task.version"),
        ("gsm8k/gsm9k.yaml", "3.0", "lm-eval has no gsm8k/gsm9k.yaml; its tasks lie in"),
        ("gsm8k/gsm8k.yaml", "3.0", r"write data\.num_fewshot \(5 there\) and data\.fewshot_split \(train there\)"),
        ("humaneval/humaneval.yaml", "1.0", "runs code that a model wrote"),
    ],
)
def test_an_installed_task_that_cannot_be_run_is_refused(file: str, version: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        installed_task(file, version)


def test_a_metric_that_does_not_fit_the_task_is_refused_before_any_data_are_read() -> None:
    empty = Dataset.from_dict({name: [] for name in ROWS.column_names})
    with pytest.raises(InputError, match=r"data\.metric: acc is not a metric of a generate_until task"):
        open_evaluator("language_model", {"task": WRITTEN}, "acc").check_data({"test": empty}, Path("data"))


def test_a_metric_that_the_task_does_not_give_is_refused(networks: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"data\.metric: mcc is not a metric of a generate_until task, which has exact_match"
    ):
        evaluated(networks["llama, untied"], WRITTEN, "mcc")
