"""What `merganser merge` says of models that do not fit: the flag that mends it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertForSequenceClassification, LlamaForCausalLM

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.errors import InputError
from merganser.inputs.deltas import check_pair
from merganser.standalone.check import check_models
from merganser.standalone.merge import EQUAL
from tests.checkpoints.merge_table import stored
from tests.checkpoints.test_vocabularies import WORDS, write
from tests.merges import merge_checkpoints
from tests.transformers_models import save_models, tiny

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a RoBERTa with a classifier, and one that is fine-tuned from it."""
    folder = tmp_path_factory.mktemp("roberta")
    save_models(folder, "roberta", tasks=1)
    return folder


def rewritten(folder: Path, out: Path, change: Change) -> Path:
    """Copy a model with other parameters."""
    shutil.copytree(folder, out)
    save_file(change(load_file(folder / "model.safetensors")), out / "model.safetensors")
    return out


def merge(base: Path, task: Path, out: Path, **rules: Any) -> list[str]:
    found = ParameterRules(**rules, flags=True)
    return merge_checkpoints("average", {}, base, {"a": task}, out, rules=found, device="cpu")


def more_classes(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return state | {
        f"classifier.out_proj.{name}": torch.ones(5, *shape) for name, shape in (("weight", (16,)), ("bias", ()))
    }


def headless(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if name.startswith("roberta.")}


def other_head(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return headless(state) | {"lm_head.bias": torch.zeros(40), "lm_head.dense.weight": torch.zeros(16, 16)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (more_classes, r"a: classifier\.out_proj\.bias has shape \[5\], in the base it has \[2\]"),
        (headless, r"a: the parameter classifier\.dense\.bias \(and 3 more\) is missing"),
        (other_head, r"a: the parameter classifier\.dense\.bias \(and 3 more\) is missing"),
    ],
)
def test_heads_that_differ_are_left_out_by_the_flag_that_is_named(
    change: Change, said: str, roberta: Path, tmp_path: Path
) -> None:
    task = rewritten(roberta / "task0", tmp_path / "task", change)
    with pytest.raises(InputError, match=said) as refusal:
        merge(roberta / "base", task, tmp_path / "out")
    assert str(refusal.value).endswith("merge without it: --only 'roberta.*'")
    merge(roberta / "base", task, tmp_path / "out", merged=["roberta.*"])
    keys = r'base\.heads: \["(classifier|lm_head)\.\*".*, else merge without it: parameters\.merged: \["roberta\.\*"\]'
    with pytest.raises(InputError, match=keys):
        check_pair(open_for_merging(roberta / "base"), open_for_merging(task), ParameterRules(), "a")


def test_a_head_of_a_name_that_no_family_here_has_may_be_each_tasks_own(roberta: Path, tmp_path: Path) -> None:
    """Without it, every task would be scored by the base's head, or by none."""
    base = rewritten(roberta / "base", tmp_path / "base", headless)
    task = rewritten(base, tmp_path / "task", lambda state: state | {"top.bias": torch.zeros(3)})
    said = r'if each task has its own head, base\.heads: \["top\.\*"\], else merge without it'
    with pytest.raises(InputError, match=said):
        check_pair(open_for_merging(base), open_for_merging(task), ParameterRules(), "a")


def test_a_part_of_a_model_without_its_prefix_is_recognised(roberta: Path, tmp_path: Path) -> None:
    bare = rewritten(
        roberta / "task0",
        tmp_path / "bare",
        lambda state: {name.removeprefix("roberta."): value for name, value in headless(state).items()},
    )
    with pytest.raises(InputError, match=r"classifier\.dense\.bias \(and 3 more\) is missing.*--only 'roberta\.\*'"):
        merge(roberta / "base", bare, tmp_path / "out")
    merge(roberta / "base", bare, tmp_path / "out", merged=["roberta.*"])
    base = rewritten(bare, tmp_path / "base", lambda state: state | {"pooler.dense.bias": torch.zeros(16)})
    with pytest.raises(InputError, match=r"pooler\.dense\.bias is missing") as refusal:
        merge(base, roberta / "task0", tmp_path / "no")
    assert str(refusal.value).endswith("--except 'pooler.*' --except 'classifier.*'")
    merge(base, roberta / "task0", tmp_path / "more", heads=["pooler.*", "classifier.*"])
    assert torch.equal(stored(tmp_path / "more")["pooler.dense.bias"], torch.zeros(16))


def test_a_model_of_another_size_has_no_remedy(roberta: Path, tmp_path: Path) -> None:
    def doubled(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: torch.cat([value, value]) for name, value in state.items()}

    larger = rewritten(roberta / "task0", tmp_path / "larger", doubled)
    with pytest.raises(InputError, match="a model of another size"):
        merge(roberta / "base", larger, tmp_path / "out")


def test_more_tokens_are_mended_by_keeping_the_bases_embeddings(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    write(paths["base"], WORDS)
    write(paths["task0"], WORDS, ("<|start|>",))
    model = tiny("llama, untied")
    model.resize_token_embeddings(48)
    model.save_pretrained(paths["task0"])
    with pytest.raises(InputError, match=r"it has '<\|start\|>'; match rows by token: --tokenizer union") as refusal:
        merge(paths["base"], paths["task0"], tmp_path / "out")
    flags = "--except 'lm_head.*' --except 'model.embed_tokens.weight'"
    assert str(refusal.value).endswith(f"or merge without it: {flags}")
    notes = merge(paths["base"], paths["task0"], tmp_path / "out", heads=["lm_head.*", "model.embed_tokens.weight"])
    assert any("the merge has the base's tokenizer" in note for note in notes)


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForSequenceClassification, LlamaForCausalLM])
@pytest.mark.parametrize("added", [(), ("<|start|>",)])
def test_rows_for_more_tokens_are_matched_by_token_in_one_refusal(kind: Any, added: tuple[str], tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = kind(kind.config_class(vocab_size=len(WORDS), **sizes))
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(len(WORDS) + 1)
    model.save_pretrained(tmp_path / "more")
    write(tmp_path / "base", WORDS)
    write(tmp_path / "more", WORDS, added)
    found = check_models({"base": tmp_path / "base", "more": tmp_path / "more"}, ParameterRules(flags=True))
    assert len(found.refused) == 1
    assert "match rows by token: --tokenizer union, or merge without it: --except" in found.refused[0]
    assert ("it has '<|start|>'" if added else "its vocabulary is that of the base") in found.refused[0]
    models = {"more": tmp_path / "more"}
    merge_checkpoints("average", {}, tmp_path / "base", models, tmp_path / "out", choice=TokenizerChoice("union"))


def test_a_model_that_equals_the_base_is_warned_of(roberta: Path, tmp_path: Path) -> None:
    shutil.copytree(roberta / "base", tmp_path / "copy")
    assert merge(roberta / "base", tmp_path / "copy", tmp_path / "same") == [f"a: {EQUAL}"]
    assert merge(roberta / "base", roberta / "task0", tmp_path / "other") == []
    task = rewritten(roberta / "base", tmp_path / "task", more_classes)
    assert merge(roberta / "base", task, tmp_path / "kept", heads=["classifier.*"])[0] == f"a: {EQUAL}"


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model", "module"])
def test_parameters_are_found_in_what_training_saved_around_them(wrapper: str, tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2)}
    torch.save({wrapper: state, "epoch": 3, "optimizer": {"step": torch.tensor(1)}}, tmp_path / "saved.pt")
    assert open_checkpoint(tmp_path / "saved.pt").names == ("a.weight",)


@pytest.mark.parametrize(
    ("one", "other", "prefix"), [("state_dict", "state_dict_ema", ""), ("model", "ema", "module.")]
)
def test_a_file_of_two_models_is_refused_by_both_names(one: str, other: str, prefix: str, tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2), "b": torch.ones(2)}
    average = {f"{prefix}{name}": tensor * 0.9 for name, tensor in state.items()}
    torch.save({one: state, other: average}, tmp_path / "saved.pt")
    with pytest.raises(InputError, match=rf"saved\.pt: holds the parameters under '{one}' and under '{other}'.*; save"):
        open_checkpoint(tmp_path / "saved.pt")
    for harmless in ({"b": average[f"{prefix}b"]}, {f"{prefix}{name}": tensor for name, tensor in state.items()}):
        torch.save({one: state, other: harmless}, tmp_path / "saved.pt")
        assert set(open_checkpoint(tmp_path / "saved.pt").names) == set(state)


def test_a_running_average_with_its_settings_is_found(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2)}
    average = {"module": {"a.weight": torch.zeros(2, 2)}, "updates": 3}
    torch.save({"model": state, "ema": average}, tmp_path / "saved.pt")
    with pytest.raises(InputError, match="under 'model' and under 'ema', as of a running average"):
        open_checkpoint(tmp_path / "saved.pt")
    torch.save({"model": state, "ema": average | {"module": state}}, tmp_path / "saved.pt")
    assert open_checkpoint(tmp_path / "saved.pt").names == ("a.weight",)


def test_a_conjugate_view_is_no_plain_tensor(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "z": torch.ones(2, dtype=torch.complex64).conj()}, tmp_path / "saved.pt")
    with pytest.raises(InputError, match="'z' is not a plain tensor"):
        open_checkpoint(tmp_path / "saved.pt")


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_fp8_is_named_as_not_supported(kind: str, tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2).to(torch.float8_e4m3fn)}
    path = tmp_path / f"saved.{kind}"
    if kind == "pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    with pytest.raises(InputError, match=r"a\.weight is quantised, stored as .*; take the model it was made from"):
        open_checkpoint(path)


def test_a_pattern_that_matches_nothing_is_told_the_names_there_are(roberta: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"--only: no parameter .* \['bert\.\*'\]; they begin with classifier, roberta"
    ):
        merge(roberta / "base", roberta / "task0", tmp_path / "out", merged=["bert.*"])
