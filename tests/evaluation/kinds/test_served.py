"""lm-eval's tasks asked of a model behind a server: each document's score as in the process."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.harness import make_lm_eval_task, network_as_lm, samples_of
from merganser.evaluation.kinds import language_model as kind
from merganser.evaluation.serving import ModelServer, serving
from merganser.models import Network, open_network
from tests.evaluation.kinds.test_language_model import CHOICE, LIKELIEST, ROWS, WRITTEN
from tests.evaluation.kinds.texts import prepared_in
from tests.evaluation.test_serving import command
from tests.support import python
from tests.tiny_transformers import FAMILIES, write_model

NAME = "llama, untied"
PROGRAM = Path(__file__).parents[2] / "serve_completions.py"
COMMAND = f"{shlex.join([*python(), '-c', f'exec(open({str(PROGRAM)!r}).read())'])} {{model}} {{port}}"
CHAT = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}on{% endif %}"
SHOWN = {"num_fewshot": 1, "fewshot_config": {"samples": [dict(ROWS[0])], "sampler": "first_n"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "the model"
    write_model(folder, NAME)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def network(folder: Path) -> Network:
    network, checkpoint = open_network(FAMILIES[NAME], folder), open_checkpoint(folder)
    network.load((name, checkpoint.read(name)) for name in checkpoint.names)
    return network


@pytest.fixture(scope="module")
def server(folder: Path) -> Any:
    os.environ["HTTP_PROXY"] = os.environ["http_proxy"] = "http://127.0.0.1:1"  # not asked for this machine's servers
    try:
        with serving(COMMAND, folder) as server:
            yield server
    finally:
        del os.environ["HTTP_PROXY"], os.environ["http_proxy"]


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        (CHOICE, "acc"),
        (CHOICE | SHOWN, "acc_norm"),
        (LIKELIEST, "acc"),
        (WRITTEN, "exact_match"),
    ],
)
@pytest.mark.parametrize("chat", [{}, {"chat_template": True, "system": "the mat"}])
def test_scores_are_those_in_the_process(
    folder: Path,
    network: Network,
    server: ModelServer,
    tmp_path: Path,
    task: dict[str, Any],
    metric: str,
    chat: dict[str, Any],
) -> None:
    evaluator = open_evaluator("language_model", {"task": task, **chat}, metric)
    prepared = prepared_in(tmp_path, kind.prepare(ROWS, evaluator.settings, network))
    here = evaluator.results(network, prepared, batch_size=4).score
    served = evaluator.served_results(server, folder, prepared, batch_size=3).score
    assert here is not None
    assert served is not None
    assert served.tolist() == here.tolist()


def test_what_is_written_is_the_same_text(network: Network, folder: Path, server: ModelServer) -> None:
    from merganser.evaluation.completions import Completions

    task = make_lm_eval_task(WRITTEN, "exact_match", list(ROWS))
    here, there = (samples_of(task, model) for model in (network_as_lm(network, 4), Completions(server, folder, 4)))
    texts = [sample["filtered_resps"] for sample in here]
    assert texts == [sample["filtered_resps"] for sample in there]
    assert len({text for (text,) in texts}) > 1


def test_tasks_of_likelihoods_are_refused_by_a_server_that_gives_none(
    folder: Path, network: Network, tmp_path: Path
) -> None:
    evaluator = open_evaluator("language_model", {"task": CHOICE}, "acc")
    prepared = prepared_in(tmp_path, kind.prepare(ROWS, evaluator.settings, network))
    said = r"evaluation\.server: this server does not give the log-probabilities .*; multiple_choice and loglikelihood"
    with serving(command(tmp_path, "texts"), folder) as server, pytest.raises(InputError, match=said):
        evaluator.served_results(server, folder, prepared, batch_size=3)


def test_a_chat_is_put_into_the_models_template(network: Network) -> None:
    task = make_lm_eval_task(CHOICE | SHOWN, "acc", list(ROWS))
    asked = samples_of(task, network_as_lm(network, 4), chat=True, system="the mat")[2]["arguments"][0][0]
    assert asked == "system the mat user the cat sat assistant on user the mat sat on"


def test_a_model_without_a_template_is_refused_before_its_data_are_prepared(tmp_path: Path) -> None:
    write_model(tmp_path, NAME)
    settings = kind.Settings(task=CHOICE, chat_template=True)
    with pytest.raises(InputError, match=r"data\.chat_template: the model's tokenizer has no chat template"):
        list(kind.prepare(ROWS, settings, open_network(FAMILIES[NAME], tmp_path)))


def test_few_questions_at_a_time_where_they_are_long(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 6  # tokens, at least, of each
    monkeypatch.setattr("merganser.evaluation.harness.LOGITS_BYTES", 4 * longest * 40 * 2)
    model = network_as_lm(network, 64)
    sizes = []
    monkeypatch.setattr(model, "_model_call", counted(model._model_call, sizes))
    samples_of(make_lm_eval_task(CHOICE, "acc", list(ROWS)), model)
    assert 1 <= max(sizes) <= 2


def counted(call: Any, sizes: list[int]) -> Any:
    def counting(inputs: Any, *args: Any, **more: Any) -> Any:
        sizes.append(len(inputs))
        return call(inputs, *args, **more)

    return counting
