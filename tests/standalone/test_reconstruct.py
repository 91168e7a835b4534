"""A task's own model out of a merge: a folder that loads, with the task's head and configuration."""

import os
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.writing import OutputFormat
from merganser.errors import InputError
from merganser.outputs import one_writer
from merganser.overlays import task_model
from merganser.standalone.reconstruct import write_adapter_of, write_merged_adapter, write_model_of
from tests.checkpoints.merge_table import stored
from tests.merges import merge_checkpoints
from tests.transformers_models import SIZES, load, save_models, tiny, tuned


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Merge two RoBERTas of two and of three classes without their heads, each kept whole as its part."""
    folder = tmp_path_factory.mktemp("merged")
    models = save_models(folder, "roberta", tasks=2)
    tuned(three_classes(), 5).save_pretrained(folder / "task1")
    tasks = {name: path for name, path in models.items() if name != "base"}
    rules = ParameterRules(merged=["roberta.*"], flags=True)
    merge_checkpoints("individual", {}, models["base"], tasks, folder / "out", rules=rules, device="cpu")
    merge_checkpoints("average", {}, models["base"], tasks, folder / "one", rules=rules, device="cpu")
    return folder


def three_classes() -> tf.RobertaForSequenceClassification:
    torch.manual_seed(0)
    return tf.RobertaForSequenceClassification(tf.RobertaConfig(**SIZES, num_labels=3))


def test_a_task_has_its_own_head_and_configuration(merged: Path, tmp_path: Path) -> None:
    assert write_model_of(merged / "out", "task1", tmp_path / "own") == []
    loaded, theirs = load(three_classes(), tmp_path / "own"), stored(merged / "task1")
    assert loaded.config.num_labels == 3
    ours = stored(tmp_path / "own")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)
    assert torch.equal(ours["classifier.out_proj.weight"], theirs["classifier.out_proj.weight"])
    load(tiny("roberta"), merged / "one")


def test_an_output_that_another_process_writes_is_refused(merged: Path, tmp_path: Path) -> None:
    out, file, base = tmp_path / "own", tmp_path / "own.safetensors", merged / "base"
    with one_writer(out), one_writer(file):
        for write in (
            lambda: write_model_of(merged / "out", "task1", out),
            lambda: write_model_of(merged / "out", "task1", file),
            lambda: merge_checkpoints("average", {}, base, {"a": merged / "task0"}, out, device="cpu"),
        ):
            with pytest.raises(InputError, match=f"process {os.getpid()} is writing it"):
                write()
    assert not list(tmp_path.iterdir())


def test_a_task_has_its_own_names_shards_and_dtype(merged: Path, tmp_path: Path) -> None:
    for name in ("base", "task0"):
        shutil.copytree(merged / name, tmp_path / name)
    bare = tmp_path / "base/model.safetensors"
    state = load_file(bare)
    bare.unlink()
    without = {name.removeprefix("roberta."): value for name, value in state.items()}
    torch.save(without, tmp_path / "base/pytorch_model.bin")
    rules = ParameterRules(heads=["classifier.*"], flags=True)
    how = {"rules": rules, "device": "cpu", "output": OutputFormat("bfloat16", 8000)}
    merge_checkpoints("individual", {}, tmp_path / "base", {"a": tmp_path / "task0"}, tmp_path / "out", **how)
    write_model_of(tmp_path / "out", "a", tmp_path / "own")
    assert len(list((tmp_path / "own").glob("model-*"))) == len(list((tmp_path / "out").glob("model-*"))) > 1
    loaded = load(tiny("roberta"), tmp_path / "own")
    assert loaded.dtype == torch.bfloat16
    for name, value in stored(merged / "task0").items():
        torch.testing.assert_close(loaded.state_dict()[name].float(), value, rtol=2**-7, atol=1e-3)


def test_what_the_task_ties_and_the_base_does_not_comes_back_once(tmp_path: Path) -> None:
    base = save_models(tmp_path / "a", "llama, untied", tasks=0)["base"]
    task = save_models(tmp_path / "b", "llama, tied", tasks=1)["task0"]
    merge_checkpoints("individual", {}, base, {"a": task}, tmp_path / "out", device="cpu")
    write_model_of(tmp_path / "out", "a", tmp_path / "own")
    load(tiny("llama, tied"), tmp_path / "own")
    for name, value in stored(task).items():
        torch.testing.assert_close(stored(tmp_path / "own")[name], value, atol=1e-7, rtol=0)


def test_a_file_has_what_the_merge_has(merged: Path, tmp_path: Path) -> None:
    write_model_of(merged / "out", "task1", tmp_path / "own.safetensors")
    assert load_file(tmp_path / "own.safetensors").keys() == stored(merged / "base").keys()


def test_a_merge_without_a_recipe_gives_the_bases_head_and_says_so(merged: Path, tmp_path: Path) -> None:
    shutil.copytree(merged / "out", tmp_path / "out")
    (tmp_path / "out/merge.yaml").unlink()
    (note,) = write_model_of(tmp_path / "out", "task1", tmp_path / "own")
    assert "unmerged weights, such as a head, and the configuration come from the base" in note
    base, own = stored(merged / "base"), stored(tmp_path / "own")
    assert torch.equal(own["classifier.dense.weight"], base["classifier.dense.weight"])
    load(tiny("roberta"), tmp_path / "own")


def test_what_is_no_merge_with_parts_is_refused(merged: Path, tmp_path: Path) -> None:
    for folder, task, said in (
        ("one", "task0", "one: has no overlays.safetensors: it is one model for all tasks, task0 included"),
        ("out", "tsak1", "no parts for the task 'tsak1'; it has task0, task1; did you mean \"task1\"?"),
        ("nowhere", "task0", "nowhere: no such checkpoint"),
    ):
        with pytest.raises(InputError) as refusal:
            write_model_of(merged / folder, task, tmp_path / "own")
        assert said in str(refusal.value)
    assert not (tmp_path / "own").exists()


def test_a_model_that_is_gone_or_has_changed_is_named(merged: Path, tmp_path: Path) -> None:
    for name in ("out", "task1"):
        shutil.copytree(merged / name, tmp_path / name)
    (tmp_path / "task1/config.json").write_text("{}")
    with pytest.raises(InputError, match=r"models\.task1: config\.json of .*task1 has changed"):
        write_model_of(tmp_path / "out", "task1", tmp_path / "own")
    shutil.rmtree(tmp_path / "task1")
    with pytest.raises(InputError, match=r"models\.task1: .*task1 is not there any more; .* --out NAME\.safetensors"):
        write_model_of(tmp_path / "out", "task1", tmp_path / "own")
    assert not (tmp_path / "own").exists()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["svd", "byom_lora", "tsv_c"])
@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_low_rank_parts_are_an_adapter_that_peft_and_our_reader_load(name: str, method: str, tmp_path: Path) -> None:
    models = save_models(tmp_path, name, tasks=2)
    base = models.pop("base")
    rules = ParameterRules(merged=["*c_attn.weight", "*query.weight", "roberta.*.dense.weight"], flags=True)
    merge_checkpoints(method, {}, base, models, tmp_path / "out", rules=rules, device="cpu")
    write_adapter_of(tmp_path / "out", "task1", tmp_path / "adapter")
    own = dict(task_model(tmp_path / "out", "task1"))
    assert any(not torch.equal(value, stored(tmp_path / "out")[key]) for key, value in own.items())
    loaded = peft.PeftModel.from_pretrained(load(tiny(name), tmp_path / "out"), tmp_path / "adapter").merge_and_unload()
    found = loaded.state_dict()
    merge_checkpoints("individual", {}, tmp_path / "out", {"a": tmp_path / "adapter"}, tmp_path / "again", device="cpu")
    again = dict(task_model(tmp_path / "again", "a"))
    for key, value in own.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-5)
        torch.testing.assert_close(again[key], value, rtol=0, atol=1e-5)


def test_parts_that_are_not_low_rank_are_no_adapter(merged: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is dense, and an adapter holds low-rank updates.*--except"):
        write_adapter_of(merged / "out", "task0", tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_adapters_own_head_comes_back_onto_its_base(tmp_path: Path) -> None:
    tiny("roberta").save_pretrained(tmp_path / "base")
    models = {f"task{seed}": tmp_path / f"task{seed}" for seed in (1, 2)}
    for seed, path in enumerate(models.values(), 1):
        config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
        tuned(peft.get_peft_model(tiny("roberta"), config), seed).save_pretrained(path)
    rules, values = ParameterRules(merged=["roberta.*"], flags=True), {"rank_fraction": 1.0}
    merge_checkpoints("svd", values, tmp_path / "base", models, tmp_path / "out", rules=rules, device="cpu")
    assert write_model_of(tmp_path / "out", "task2", tmp_path / "own") == []
    theirs = peft.PeftModel.from_pretrained(load(tiny("roberta"), tmp_path / "base"), tmp_path / "task2")
    expected = theirs.merge_and_unload().state_dict()
    loaded = load(tiny("roberta"), tmp_path / "own").state_dict()
    base = stored(tmp_path / "base")
    for name, value in expected.items():
        torch.testing.assert_close(loaded[name], value, rtol=0, atol=1e-6)
    assert not torch.equal(loaded["classifier.dense.weight"], base["classifier.dense.weight"])
    assert not (tmp_path / "own/adapter_config.json").exists()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a GPT-2 and two adapters of it, of ranks 2 and 1."""
    folder = tmp_path_factory.mktemp("adapters")
    tiny("gpt2").save_pretrained(folder / "base")
    for rank in (1, 2):
        config = peft.LoraConfig(r=rank, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
        tuned(peft.get_peft_model(tiny("gpt2"), config), rank, 0.1).save_pretrained(folder / f"task{rank}")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["average", "task_arithmetic", "tsv_m"])
def test_a_merge_of_adapters_is_an_adapter_of_their_ranks_together(method: str, adapters: Path, tmp_path: Path) -> None:
    models = {name: adapters / name for name in ("task1", "task2")}
    merge_checkpoints(method, {}, adapters / "base", models, tmp_path / "out", device="cpu")
    write_merged_adapter(tmp_path / "out", tmp_path / "adapter")
    onto = load(tiny("gpt2"), adapters / "base")
    found = peft.PeftModel.from_pretrained(onto, tmp_path / "adapter").merge_and_unload().state_dict()
    for name, value in stored(tmp_path / "out").items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
    left = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert {len(value) for name, value in left.items() if "lora_A" in name} == {3}


def test_a_merge_that_is_no_adapter_is_refused(merged: Path, adapters: Path, tmp_path: Path) -> None:
    models = {name: adapters / name for name in ("task1", "task2")}
    merge_checkpoints("ties", {}, adapters / "base", models, tmp_path / "ties", device="cpu")
    (tmp_path / "none").mkdir()
    for folder, said in (
        (tmp_path / "ties", "has a higher rank than all adapters together, 3; load the merged model itself"),
        (merged / "one", "task0 is not an adapter, so the merge is not one"),
        (tmp_path / "none", "has no merge.yaml, which lists the merged models; name a task by --task"),
    ):
        with pytest.raises(InputError) as refusal:
            write_merged_adapter(folder, tmp_path / "adapter")
        assert said in str(refusal.value)
    assert not (tmp_path / "adapter").exists()
