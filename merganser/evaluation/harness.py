"""Run an lm-eval task on a loaded network and data in memory, without downloads and without code of the task.

A task of the installed lm-eval may have functions: they are as trusted as lm-eval itself. Part of the extra
`merganser[lm]`.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from merganser.errors import InputError, did_you_mean, quoting
from merganser.evaluation.serving import ModelServer

MISSING = "language_model: needs lm-eval: pip install 'merganser[lm]'"
SEED = 1234  # of the examples in front of a question; lm-eval's own
SPLIT, SHOWN = "test", "shown"  # what lm-eval calls the documents that are asked, and those that may be shown before
LOGITS_BYTES = 2**31  # of a batch of questions, which each have a number for every token of the vocabulary
FLOAT32 = 4
# What a task may say; the rest is code, or about where data come from.
KEYS = frozenset(
    {
        *("output_type", "doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix"),
        *("target_delimiter", "fewshot_delimiter", "fewshot_config", "num_fewshot", "metric_list"),
        *("generation_kwargs", "filter_list", "repeats"),
    }
)
WITHOUT_EFFECT = frozenset({"task", "task_alias", "tag", "group", "metadata"})  # names, for lists of tasks
OWN_CODE = frozenset({"process_docs", "process_results"})  # which only installed tasks may have
DATA = frozenset({"dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset"})
CODE = frozenset({"class", "unsafe_code", "process_docs", "process_results", "use_prompt", "include"})
# What lm-eval asks of the model, and the metrics that it then gives.
OUTPUT_TYPES = {
    "multiple_choice": ("acc", "acc_norm", "exact_match", "mcc", "f1"),
    "generate_until": ("exact_match",),
    "loglikelihood": ("acc",),
}
DEFAULT_TYPE = "generate_until"


def check_task(task: Mapping[str, Any]) -> None:
    """Refuse a task with code or with data of its own; raise ValueError with the key."""
    for key in task:
        if key in CODE:
            raise ValueError(f"{key!r} asks for code, which is never run; write the task by templates alone")
        if key in DATA or key.endswith("_split"):
            raise ValueError(f"{key!r} says where data lie; they come from data.source, and data.split picks the split")
        if key not in KEYS | WITHOUT_EFFECT:
            raise ValueError(f"{key!r} is not a key of a task{did_you_mean(key, KEYS)}")
    if task.get("output_type", DEFAULT_TYPE) not in OUTPUT_TYPES:
        raise ValueError(f"output_type must be one of {', '.join(OUTPUT_TYPES)}, got {task['output_type']!r}")
    if "doc_to_text" not in task:
        raise ValueError("must say doc_to_text, the template of the question")
    shown = task.get("fewshot_config") or {}
    if set(shown) - {"samples", "sampler"} or shown.get("sampler", "first_n") not in ("default", "first_n"):
        raise ValueError("fewshot_config may hold `samples`, and the sampler default or first_n")
    if task.get("num_fewshot") and not shown.get("samples"):
        raise ValueError("num_fewshot needs fewshot_config.samples, the examples to show")
    if any(metric.get("hf_evaluate") for metric in task.get("metric_list") or []):
        raise ValueError("metric_list: hf_evaluate would fetch the metric; choose one of lm-eval's own")
    filters = [step["function"] for steps in task.get("filter_list") or [] for step in steps["filter"]]
    if "custom" in filters:
        raise ValueError("filter_list: the filter 'custom' asks for code, which is never run")


def installed_task(file: str, version: str, shown: bool = False) -> dict[str, Any]:
    """Read a task of the installed lm-eval by its file in lm_eval/tasks; raise InputError if it cannot run here.

    `version`: the expected version in its metadata, so that another lm-eval's task is not used unseen. `shown`:
    whether there are examples to show.
    """
    try:
        from lm_eval import tasks
        from lm_eval.tasks._yaml_loader import load_yaml
    except ImportError as error:
        raise InputError(MISSING) from error
    place = Path(tasks.__path__[0])
    if not (place / file).resolve().is_relative_to(place.resolve()) or not (place / file).is_file():
        raise InputError(f"data.task.installed: lm-eval has no {file}; its tasks lie in {place}")
    _check_installed(load_yaml(place / file, resolve_func=False), file, version, shown)
    try:
        task: dict[str, Any] = load_yaml(place / file)  # imports what it names
    except ImportError as error:
        more = f"{file} needs {error.name or 'more than that'}"
        raise InputError(f"data.task.installed: {more}, which extras of lm-eval bring: pip install it") from error
    return task


def _check_installed(task: Mapping[str, Any], file: str, version: str, shown: bool) -> None:
    where = f"data.task.installed: {file}"
    here = (task.get("metadata") or {}).get("version")
    if str(here) != version:
        raise InputError(f"{where} is of version {here} here; write it under data.task.version if it is the right one")
    if task.get("unsafe_code") or "class" in task or "doc_to_text" not in task:
        raise InputError(f"{where} is a group, or runs code that a model wrote; choose a task of questions and answers")
    if task.get("output_type", DEFAULT_TYPE) not in OUTPUT_TYPES:
        raise InputError(f"{where}: output_type must be one of {', '.join(OUTPUT_TYPES)}, got {task['output_type']!r}")
    if task.get("num_fewshot") and not shown and not (task.get("fewshot_config") or {}).get("samples"):
        count, split = task["num_fewshot"], task.get("fewshot_split") or task.get("training_split") or "train"
        remedy = f"write data.num_fewshot ({count} there) and data.fewshot_split ({split} there)"
        raise InputError(f"{where} shows examples of another split; {remedy}")


def check_given(task: Mapping[str, Any], metric: str) -> None:
    """Refuse a metric that lm-eval does not compute for a task."""
    asked = task.get("output_type", DEFAULT_TYPE)
    given = [each["metric"] for each in task["metric_list"]] if "process_results" in task else OUTPUT_TYPES[asked]
    if metric not in given:
        raise InputError(f"data.metric: {metric} is not a metric of a {asked} task, which has {', '.join(given)}")


def make_lm_eval_task(
    task: Mapping[str, Any],
    metric: str,
    documents: Sequence[Mapping[str, Any]],
    shown: Sequence[Mapping[str, Any]] = (),
    count: int = 0,
) -> Any:
    """Create lm-eval's task from documents in memory; `shown`: documents, of which so many precede each question.

    Raises InputError if lm-eval is not installed, or if a template does not fit the first document.
    """
    with _quiet():
        try:
            from lm_eval import utils
            from lm_eval.api.task import ConfigurableTask
        except ImportError as error:
            raise InputError(MISSING) from error
        from datasets import Dataset

        sandbox = ImmutableSandboxedEnvironment(undefined=utils.env.undefined, keep_trailing_newline=True)
        sandbox.filters |= {name: how for name, how in utils.env.filters.items() if name not in sandbox.filters}
        utils.env = sandbox  # in which templates reach nothing but the document
        whole = "process_results" in task  # which gives all of its metrics at once
        metrics = [dict(one) for one in task.get("metric_list") or [] if whole or one["metric"] == metric]
        own = {key: value for key, value in task.items() if key in KEYS | OWN_CODE}
        made: dict[str, Any] = {"task": "task", "test_split": SPLIT, "num_fewshot": task.get("num_fewshot") or 0}
        if count:
            own["fewshot_config"] = {
                key: how for key, how in (own.get("fewshot_config") or {}).items() if key != "samples"
            }
            made |= {"num_fewshot": count, "fewshot_split": SHOWN}
        elif not task.get("num_fewshot"):
            own.pop("fewshot_config", None)
        made["metric_list"] = metrics or [{"metric": metric}]
        rows = {SPLIT: Dataset.from_list([dict(document) for document in documents])}
        rows |= {SHOWN: Dataset.from_list([dict(document) for document in shown])} if count else {}
        with quoting("data.task: lm-eval cannot make this task of the data"):
            opened = ConfigurableTask(config=own | made | {"custom_dataset": lambda **_: rows})
            opened.set_fewshot_seed(seed=SEED)
    return opened


def network_as_lm(network: Any, batch_size: int) -> Any:
    """Wrap a loaded network for lm-eval; `batch_size`: the largest number of questions at a time."""
    with _quiet():
        from lm_eval.models.huggingface import HFLM
        from transformers import LogitsProcessorList

        from merganser.models import defined

        class InProcess(HFLM):
            def _loglikelihood_tokens(self, requests: Any, *args: Any, **more: Any) -> Any:
                longest = max((len(context) + len(asked) for _, context, asked in requests), default=1)
                fitting = LOGITS_BYTES // (FLOAT32 * longest * self.model.config.get_text_config().vocab_size)
                self.batch_size_per_gpu = max(1, min(batch_size, fitting))
                return super()._loglikelihood_tokens(requests, *args, **more)

            def _model_call(self, *args: Any, **more: Any) -> Any:
                return defined(super()._model_call(*args, **more))

            def _model_generate(self, *args: Any, **more: Any) -> Any:
                checked = LogitsProcessorList([lambda _, scores: defined(scores)])
                return super()._model_generate(*args, **more, logits_processor=checked)

        with _ties_kept(network.module):
            return InProcess(pretrained=network.module, tokenizer=network.tokenizer, batch_size=batch_size)


def server_as_lm(server: ModelServer, folder: Path, batch_size: int) -> Any:
    """Wrap the server of a model's folder for lm-eval; `batch_size`: questions at a time."""
    with _quiet():
        try:
            from merganser.evaluation.completions import Completions
        except ImportError as error:
            raise InputError(MISSING) from error
        return Completions(server, folder, batch_size)


def samples_of(task: Any, model: Any, chat: bool = False, system: str | None = None) -> list[dict[str, Any]]:
    """Return lm-eval's record of each document, in order, by the task's first filter.

    `chat`: questions become user messages, with shown examples as earlier turns, in the model's chat template.
    `system`: the text before them.
    """
    with _quiet():
        from lm_eval.evaluator import evaluate

        with quoting("data.task: lm-eval cannot run this task"):
            outcome = evaluate(
                lm=model,
                task_dict={"tasks": {"task": task}},
                bootstrap_iters=0,
                log_samples=True,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
                system_instruction=system,
            )
    samples = outcome["samples"]["task"]
    kept = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    return sorted(kept, key=lambda sample: int(sample["doc_id"]))


@contextlib.contextmanager
def _ties_kept(module: Any) -> Iterator[None]:
    """Keep lm-eval from tying weights again: a checkpoint may tie others."""
    module.tie_weights = lambda *_, **__: None
    try:
        yield
    finally:
        del module.tie_weights


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and remarks."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
