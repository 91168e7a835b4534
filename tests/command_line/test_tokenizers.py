"""`merganser merge --tokenizer`: what it says, repeats, writes and refuses."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from merganser.config.recipes import RECIPE
from tests.command_line.conftest import Done, Refused
from tests.command_line.test_recipes import contents
from tests.worded_models import LETTERS, Words, save

MODELS = ["--base", "base", "--model", "a=a", "--model", "b=b"]
MERGE = ["merge", "average", *MODELS, "--device", "cpu"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    for task, words in {
        "base": Words(LETTERS, 12),
        "a": Words([*LETTERS, "<x>"]),
        "b": Words([*LETTERS, "<y>"]),
    }.items():
        save(folder / task, "untied", words, task, "words")
        (folder / task / "chat_template.jinja").write_text(f"{{{{ {task!r} }}}}")
    return folder


@pytest.fixture
def models(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_union_says_what_it_comes_to_and_is_repeated_to_the_same_bytes(models: Path, done: Done) -> None:
    options = ["--tokenizer", "union", "--rows", "<x>=a", "--rows", "c=b", "--chat-template", "b"]
    said = done(models, *MERGE, *options, "--out", "out").splitlines()
    assert "tokenizer union: 12 tokens, in tables of 12 rows" in said
    assert "the base: has no '<x>', '<y>': a row is the mean of those of models that have it" in said
    assert "a: has no '<y>': a row stays the base's for it" in said
    assert "row 10 is '<x>' in a and '<y>' in b: kept apart" in said
    assert "a: its chat template is not that of the merge" in said
    recipe = yaml.safe_load((models / "out" / RECIPE).read_text())
    assert (recipe["tokenizer"], recipe["rows"]) == ("union", {"<x>": "a", "c": "b"})
    assert "tokenizer.json" in recipe["models"]["a"]["sha256"]
    done(models, "merge", "out/merge.yaml")
    assert contents(models / "out") == contents(models / "out-again")
    assert (models / "out" / "chat_template.jinja").read_text() == "{{ 'b' }}"
    assert AutoTokenizer.from_pretrained(models / "out").convert_tokens_to_ids(["<x>", "<y>"]) == [10, 11]


def test_of_rows_that_the_merge_has_not_none_is_said_to_be_kept(models: Path, done: Done) -> None:
    said = done(models, *MERGE, "--tokenizer", "base", "--out", "out")
    assert "a: not among the merge's tokens: '<x>'" in said
    assert "kept apart" not in said


def test_a_changed_tokenizer_is_not_merged_by_an_older_recipe(models: Path, done: Done, refused: Refused) -> None:
    done(models, *MERGE, "--tokenizer", "a", "--out", "out")
    (models / "b" / "tokenizer.json").write_text((models / "b" / "tokenizer.json").read_text() + "\n")
    assert "models.b: tokenizer.json of" in refused(models, "merge", "out/merge.yaml")


def test_the_tokenizer_of_equal_vocabularies_changes_nothing_but_itself(models: Path, done: Done) -> None:
    save(models / "same", "untied", Words(LETTERS, 12), "a", "words")
    (models / "same" / "chat_template.jinja").write_text("same")
    plain = ["merge", "average", "--base", "base", "--model", "a=same", "--device", "cpu"]
    done(models, *plain, "--out", "plain")
    for option in ("--tokenizer", "--chat-template"):
        done(models, *plain, option, "a", "--out", option)
        kept = {"README.md", RECIPE, "chat_template.jinja"}
        one, other = (
            {name: data for name, data in contents(models / out).items() if name not in kept}
            for out in ("plain", option)
        )
        assert one == other
        assert (models / option / "chat_template.jinja").read_text() == "same"


def test_without_a_base_the_mean_has_all_tokens(models: Path, done: Done) -> None:
    done(models, *(each for each in MERGE if each not in ("--base", "base")), "--tokenizer", "union", "--out", "out")
    model = AutoModelForCausalLM.from_pretrained(models / "out").state_dict()
    a, b = (AutoModelForCausalLM.from_pretrained(models / task).state_dict() for task in "ab")
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        expected = [*((a[table] + b[table]) / 2)[:10], a[table][10], b[table][10]]
        for row, wanted in zip(model[table], expected, strict=True):
            assert row.sub(wanted).abs().max() < 1e-6


def test_a_dry_run_knows_the_union(models: Path, done: Done) -> None:
    said = json.loads(done(models, *MERGE, "--tokenizer", "union", "--dry-run", "--json"))
    assert "tokenizer union: 12 tokens, in tables of 12 rows" in said["notes"]
    assert said["merge"]["copied"] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tokenizer", "c"], "--tokenizer c: there is no model 'c'; name one of base, a, b, union"),
        (["--chat-template", "union"], "--chat-template union: there is no model"),
        (["--rows", "<x>=a"], "--rows: needs --tokenizer"),
        (["--tokenizer", "union", "--rows", "<z>=a"], "--rows '<z>': the merge's tokenizer has no such token"),
        (["--tokenizer", "union", "--rows", "<y>=a"], "--rows '<y>': a has no such token"),
        ([], "--tokenizer union"),
    ],
)
def test_what_means_nothing_is_refused(models: Path, refused: Refused, options: list[str], told: str) -> None:
    assert told in refused(models, *MERGE, *options, "--out", "out")
    assert not (models / "out").exists()


@pytest.mark.parametrize("task", ["a", "b"])
def test_a_task_comes_back_with_the_tokens_of_the_merge(models: Path, done: Done, task: str) -> None:
    options = ["--tokenizer", "union", "--except", "lm_head.weight", "--except", "model.layers.1.*"]
    done(models, "merge", "individual", *MODELS, "--device", "cpu", *options, "--out", "out")
    done(models, "reconstruct", "out", "--task", task, "--out", "own")
    own, theirs = (AutoModelForCausalLM.from_pretrained(models / folder).state_dict() for folder in ("own", task))
    words, before = (AutoTokenizer.from_pretrained(models / folder).get_vocab() for folder in ("own", task))
    assert words["<y>"] == 11
    for name, weights in theirs.items():
        rows = [words[token] for token in sorted(before, key=before.__getitem__)]
        found = own[name][rows] if len(weights) == 11 else own[name]
        assert found.sub(weights).abs().max() < 1e-6
