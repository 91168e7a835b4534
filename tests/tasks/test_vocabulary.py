"""Models of other vocabularies in the pipeline: what `merganser merge --tokenizer` makes of them, by the stages."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoTokenizer

from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.config.headers import check_sources
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.tasks import difference, extract, extract_difference, fetch, merge, vocabulary
from tests.merges import merge_checkpoints
from tests.tasks.comparison import inside
from tests.worded_models import LETTERS, Words, save

OWN = {"base": Words(LETTERS, 12), "a": Words([*LETTERS, "<x>"]), "b": Words([*LETTERS, "<y>"], 16)}
UNION = {"source": "sources/base", "tokenizer": "union", "rows": {"c": "b", "d": "base"}}
TASK = {
    "kind": "text_generation",
    "data": {"source": "sources/data", "prompt": "{text}", "answers": ["a", "b"], "scoring": "rank"},
}
METHODS = {"average": {}, "ties": {"reads": "differences/x"}}


def write(folder: Path, **sections: Any) -> None:
    params = {
        "base": {"source": "data/vocabularies/ours", "family": "causal"},
        "vocabularies": {"ours": UNION},
        "tasks": {task: TASK | {"source": f"sources/{task}"} for task in "ab"},
        "differences": {"x": {"merged": "average"}},
        "methods": METHODS,
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params | sections, sort_keys=False))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    for task, words in OWN.items():
        save(folder / "sources" / task, "untied", words, task, "words")
    DatasetDict({"test": Dataset.from_dict({"text": ["c"], "label": [0]})}).save_to_disk(folder / "sources" / "data")
    return folder


def run_stages() -> None:
    for task in "ab":
        fetch.main(["task", task])
    vocabulary.main(["ours"])
    fetch.main(["base"])
    for task in "ab":
        extract.main([task])
    merge.main(["average"])


def test_the_stages_merge_by_token_as_the_command_line_does(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(made)
    base, tasks = made / "sources/base", {task: made / "sources" / task for task in "ab"}
    with inside(made):
        check_sources(load_params(), made, lambda path: "data" in path.parts)
        run_stages()
        difference.main(["x"])
        for task in "ab":
            extract_difference.main(["x", task])
        merge.main(["ties"])
    assert "tokenizer union: 12 tokens, in tables of 12 rows" in capsys.readouterr().out
    choice = TokenizerChoice("union", UNION["rows"])
    for method, values in {"average": {}, "ties": {"merged": "average"}}.items():
        merge_checkpoints(method, values, base, tasks, made / method, choice=choice)
        here, there = (load_file(path / "model.safetensors") for path in (made / "data/merged" / method, made / method))
        assert here.keys() == there.keys()
        assert all(here[name].equal(there[name]) for name in here)
    words = AutoTokenizer.from_pretrained(made / "data/merged/average")
    assert words.convert_ids_to_tokens(list(range(12))) == [*LETTERS, "<x>", "<y>"]


def test_the_mean_of_models_is_brought_into_a_vocabulary(made: Path) -> None:
    write(made, vocabularies={"ours": {"source": "data/checkpoints", "tokenizer": "union"}})
    with inside(made):
        run_stages()
    tasks = {task: made / "sources" / task for task in "ab"}
    merge_checkpoints("average", {}, None, tasks, made / "mean", choice=TokenizerChoice("union"))
    here, there = (load_file(path / "model.safetensors") for path in (made / "data/merged/average", made / "mean"))
    assert all((here[name] - there[name]).abs().max() < 1e-6 for name in here)


@pytest.mark.parametrize(
    ("base", "vocabularies", "told"),
    [
        ("data/vocabularies/our", {"ours": UNION}, "base.source: no 'our' under vocabularies; did you mean \"ours\"?"),
        (
            "sources/base",
            {"ours": UNION},
            "vocabularies.ours: nothing reads it; write base.source: data/vocabularies/ours",
        ),
        (None, {"ours": UNION | {"tokenizer": "c"}}, "vocabularies.ours.tokenizer c: there is no model 'c'"),
        (
            None,
            {"ours": UNION | {"rows": {"<q>": "a"}}},
            "vocabularies.ours.rows '<q>': the merge's tokenizer has no such",
        ),
        (
            None,
            {"ours": UNION | {"source": "sources/a/model.safetensors"}},
            "no tokenizer in a format that Merganser reads",
        ),
    ],
)
def test_what_means_nothing_is_refused_before_a_run(made: Path, base: str | None, vocabularies: Any, told: str) -> None:
    write(made, vocabularies=vocabularies, base={"source": base or "data/vocabularies/ours", "family": "causal"})
    with inside(made), pytest.raises(InputError) as refusal:
        check_sources(load_params(), made, lambda path: "data" in path.parts)
    assert told in str(refusal.value)
