"""`merganser check` and `merganser merge --dry-run`: what is known before any work."""

import json
import shutil
from pathlib import Path

import pytest

from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.command_line.conftest import Done, Refused
from tests.transformers_models import save_models, tiny

MODELS = ("--model", "a=task0", "--model", "b=task1")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Save a Llama whose embeddings are tied, and two fine-tuned ones, as transformers does."""
    save_models(tmp_path, "llama, tied", tasks=2)
    return tmp_path


def test_it_says_what_models_are_and_what_merging_them_would_do(saved: Path, done: Done) -> None:
    found = json.loads(done(saved, "check", "task0", "task1", "--base", "base", "--except", "*embed*", "--json"))
    model = tiny("llama, tied")
    count = sum(parameter.numel() for parameter in model.parameters())
    size = (saved / "base/model.safetensors").stat().st_size
    assert list(found["models"]) == ["base", "task0", "task1"]
    for each in found["models"].values():
        assert each["architectures"] == ["LlamaForCausalLM"]
        assert each["dtypes"] == {"float32": count}
        assert each["tie_word_embeddings"]
        assert each["bytes"] == 4 * count < size
        assert each["tokens"] is None
    merge = found["merge"]
    assert merge["copied"] == ["model.embed_tokens.weight"]
    assert merge["matrices"] == 2 * 7
    assert merge["vectors"] == 2 * 2 + 1
    assert merge["parameters"] == count - model.lm_head.weight.numel()
    assert merge["bytes"] == 4 * count
    assert list(merge["expected"]) == ["elementwise", "svd", "joint svd"]
    assert found["notes"] == found["refused"] == []


def test_it_says_so_in_words(saved: Path, done: Done) -> None:
    said = done(saved, "check", "base", "task0")
    assert "LlamaForCausalLM" in said
    assert "would be merged: 14 matrices and 6 other parameters" in said
    assert "would be copied from the base: none" in said
    assert "by a method of cost joint svd" in said


def test_no_name_in_a_model_controls_the_terminal(saved: Path, done: Done) -> None:
    for model, more in (("base", {"own": 1}), ("task0", {"a\x1b[2J": 1, "architectures": ["b\x1b[2J"]})):
        config = json.loads((saved / model / "config.json").read_text())
        (saved / model / "config.json").write_text(json.dumps(config | more))
    (saved / "base/c\x1b[2J.npy").touch()
    said = done(saved, "check", "base", "task0") + done(
        saved, "merge", "average", "--base", "base", *MODELS, "--out", "m"
    )
    assert "\x1b" not in said
    assert all(f"{name}\\x1b[2J" in said for name in "abc")


@pytest.mark.parametrize("value", [5, [1, 2], {"a": 1}, "x"])
@pytest.mark.parametrize("key", ["architectures", "model_type"])
def test_an_architecture_that_is_no_name_is_shown_as_it_is(tmp_path: Path, done: Done, key: str, value: object) -> None:
    write_base(tmp_path / "base")
    config = tmp_path / "base/config.json"
    config.write_text(json.dumps({"model_type": "bert", key: value}))
    assert str(value[0] if isinstance(value, list) and key == "architectures" else value) in done(
        tmp_path, "check", "base"
    )


def test_every_reason_is_listed_not_only_the_first(saved: Path, refused: Refused) -> None:
    config = json.loads((saved / "task0/config.json").read_text())
    (saved / "task0/config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    save_models(saved / "other", "bert", tasks=1)
    said = refused(saved, "check", "task0", "task1", "other/task0", "--base", "base").splitlines()
    assert [line.partition(":")[0] for line in said] == ["task0", "other/task0", "other/task0"]
    assert "hidden_act 'gelu' (the base 'silu')" in said[0]
    assert "is given twice" in refused(saved, "check", "base", "base")
    assert "nowhere: no such checkpoint" in refused(saved, "check", "nowhere", "base")


def test_a_dry_run_writes_nothing_and_refuses_what_the_merge_refuses(saved: Path, done: Done, refused: Refused) -> None:
    before = sorted(saved.rglob("*"))
    merge = ("merge", "ties", "--base", "base", *MODELS)
    assert "by a method of cost elementwise" in done(saved, *merge, "--dry-run")
    assert sorted(saved.rglob("*")) == before
    for more, said in (
        (("--set", "density=2"), "density"),
        (("--set", "merged=ties", "--except", "*"), "no parameter of the base matches"),
        (("--model", "c=other"), "no such checkpoint"),
    ):
        for end in (("--dry-run",), ("--out", "out")):
            assert said in refused(saved, *merge, *more, *end)
    assert not (saved / "out").exists()


def test_files_left_out_are_said_of_the_folder_that_has_them_by_a_dry_run_and_by_the_merge(
    saved: Path, done: Done
) -> None:
    for folder in ("base", "task0", "task1"):
        (saved / folder / f"own-{folder}.py").write_text("")
    for base, left in ((["--base", "base"], "the base's folder: own-base.py"), ([], "a's folder: own-task0.py")):
        for end in (["--dry-run"], ["--out", f"out{len(base)}"]):
            found = done(saved, "merge", "average", *base, *MODELS, *end).splitlines()
            assert [line for line in found if "left out" in line] == [f"left out of {left}"]


def test_a_pattern_that_matches_nothing_is_said_by_a_dry_run_and_by_the_merge(saved: Path, done: Done) -> None:
    patterns = ("--except", "model.norm.*", "--except", "lm_haed.*")
    said = "patterns that match no parameter: lm_haed.*\n"
    for end in (("--dry-run",), ("--out", "out")):
        assert said in done(saved, "merge", "ties", "--base", "base", *MODELS, *patterns, *end)
    assert said in done(saved, "check", "base", "task0", *patterns)
    assert "match no parameter" not in done(saved, "check", "base", "task0", *patterns[:2])


def test_a_dry_run_needs_what_the_merge_needs(tmp_path: Path, refused: Refused) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "one", tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "two")
    for end in (("--dry-run",), ("--out", "out")):
        said = refused(tmp_path, "merge", "average", "--model", "a=two", "--model", "b=one", *end)
        assert "adapter" in said
