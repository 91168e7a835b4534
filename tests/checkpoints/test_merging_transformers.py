"""Merges of what people saved with transformers, old and new: ties, prefixes, shards, which way round a map is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.architecture import Architecture
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.writing import OutputFormat, parse_size
from merganser.errors import InputError
from merganser.inputs.deltas import extract, open_deltas
from merganser.inputs.factors import FactorSettings, decompose, open_factors
from merganser.merging import driver
from merganser.overlays import task_model
from tests.checkpoints.merge_table import stored, weights_in
from tests.merges import merge_checkpoints
from tests.transformers_models import DECODER, load, save_bin, save_models, tiny, tuned

TIED = ["llama, tied", "gpt2", "t5"]
RANDOM = ["tsv_m", "iso_c", "dare", "knots"]  # which pulled tied weights apart


def in_bin(folder: Path, name: str, tasks: int = 2) -> dict[str, Path]:
    """Save a base and fine-tuned models with all their names, as torch weights."""
    for t in range(-1, tasks):
        save_bin(tiny(name) if t < 0 else tuned(tiny(name), t + 1), folder / ("base" if t < 0 else f"task{t}"))
    return {key: folder / key for key in ("base", *(f"task{t}" for t in range(tasks)))}


def merge(method: str, paths: dict[str, Path], out: Path, **options: Any) -> list[str]:
    """Merge models onto their base on the CPU."""
    models = {name: path for name, path in paths.items() if name != "base"}
    return merge_checkpoints(method, {}, paths["base"], models, out, device="cpu", **options)


@pytest.mark.parametrize("method", RANDOM)
@pytest.mark.parametrize("name", TIED)
def test_tied_weights_of_torch_files_stay_tied(name: str, method: str, tmp_path: Path) -> None:
    notes = merge(method, in_bin(tmp_path, name), tmp_path / "merged")
    loaded = load(tiny(name), tmp_path / "merged")
    assert torch.equal(loaded.get_output_embeddings().weight, loaded.get_input_embeddings().weight)
    assert any("second names of tied weights" in note and "lm_head.weight" in note for note in notes)
    merge(method, save_models(tmp_path / "new", name, tasks=2), tmp_path / "expected")
    assert all(torch.equal(stored(tmp_path / "merged")[key], t) for key, t in stored(tmp_path / "expected").items())


@pytest.mark.parametrize("older", ["base", "task0"])
def test_a_second_name_on_one_side_alone_changes_nothing(older: str, tmp_path: Path) -> None:
    new, old = save_models(tmp_path / "new", "gpt2", tasks=2), in_bin(tmp_path / "old", "gpt2")
    merge("tsv_m", new, tmp_path / "expected")
    merge("tsv_m", new | {older: old[older]}, tmp_path / "merged")
    assert all(torch.equal(stored(tmp_path / "merged")[key], t) for key, t in stored(tmp_path / "expected").items())


def test_a_second_name_in_a_file_without_a_configuration_is_known_by_the_base(tmp_path: Path) -> None:
    paths, old = save_models(tmp_path / "new", "gpt2", tasks=1), in_bin(tmp_path / "old", "gpt2")
    shutil.copyfile(old["task0"] / "pytorch_model.bin", tmp_path / "alone.bin")
    merge("average", paths, tmp_path / "expected")
    merge("average", paths | {"task0": tmp_path / "alone.bin"}, tmp_path / "merged")
    assert all(torch.equal(stored(tmp_path / "merged")[key], t) for key, t in stored(tmp_path / "expected").items())


def test_an_untied_model_on_a_tied_base_is_refused_by_the_weights_name(tmp_path: Path) -> None:
    paths = in_bin(tmp_path, "gpt2")
    state = {key: value.clone() for key, value in tiny("gpt2").state_dict().items()}
    state["lm_head.weight"] += 0.1
    save_bin(tiny("gpt2"), paths["task1"], state)
    expected = r"task1: the parameter lm_head\.weight is not in the base: it ties it to transformer\.wte\.weight"
    with pytest.raises(InputError, match=expected):
        merge("average", paths, tmp_path / "merged")


def test_a_tied_model_on_an_untied_base_is_merged_as_the_weights_it_has(tmp_path: Path) -> None:
    paths = in_bin(tmp_path, "llama, tied", tasks=1)
    state = {key: value.clone() for key, value in tiny("llama, tied").state_dict().items()}
    state["lm_head.weight"] += 0.1
    save_bin(tiny("llama, untied"), paths["base"], state)
    merge("average", paths, tmp_path / "merged")
    theirs, ours = open_checkpoint(paths["task0"]), stored(tmp_path / "merged")
    torch.testing.assert_close(ours["lm_head.weight"], theirs.read("model.embed_tokens.weight"))
    torch.testing.assert_close(ours["model.embed_tokens.weight"], theirs.read("model.embed_tokens.weight"))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("llama, tied", "lm_head.weight"),
        ("gpt2", "lm_head.weight"),
        ("t5", "decoder.embed_tokens.weight"),
        ("bart", "model.encoder.embed_tokens.weight"),
    ],
)
@pytest.mark.parametrize("side", ["base", "task0"])
def test_a_tied_embedding_may_be_stored_under_any_of_its_names(name: str, kept: str, side: str, tmp_path: Path) -> None:
    """transformers ties the names that are missing to the one that is there."""
    paths = save_models(tmp_path, name, tasks=1)
    merge("average", paths, tmp_path / "expected")
    state = stored(paths[side])
    (first,) = (key for key in state if key.endswith(("embed_tokens.weight", "wte.weight", "shared.weight")))
    state[kept] = state.pop(first)
    save_file(state, paths[side] / "model.safetensors", {"format": "pt"})
    merge("average", paths, tmp_path / "merged")
    loaded, expected = (load(tiny(name), tmp_path / folder).state_dict() for folder in ("merged", "expected"))
    assert all(torch.equal(loaded[key], value) for key, value in expected.items())


def test_a_tied_model_without_the_second_name_gives_it_to_an_untied_base(tmp_path: Path) -> None:
    """As long as its configuration ties; where it is silent, its class says it."""
    base, task = (
        save_models(tmp_path / "a", "gemma", tasks=0)["base"],
        save_models(tmp_path / "b", "gemma", tasks=1)["task0"],
    )
    state = stored(base)
    state["lm_head.weight"] = state["model.embed_tokens.weight"] + 0.1
    save_file(state, base / "model.safetensors", {"format": "pt"})
    changed(base / "config.json", tie_word_embeddings=False)
    for said in (True, None):
        changed(task / "config.json", tie_word_embeddings=said)
        merge("average", {"base": base, "task0": task}, tmp_path / f"{said}")
        ours, theirs = stored(tmp_path / f"{said}"), stored(task)["model.embed_tokens.weight"]
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            assert torch.equal(ours[name], theirs)  # of one model, the mean is that model to the last bit
    changed(task / "config.json", tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"the parameter lm_head\.weight is missing"):
        merge("average", {"base": base, "task0": task}, tmp_path / "merged")


def test_an_equal_copy_is_a_weight_of_its_own_where_the_class_unties(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    for path in paths.values():
        state = stored(path)
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        save_file(state, path / "model.safetensors", {"format": "pt"})
        changed(path / "config.json", tie_word_embeddings=None)
    merge("dare", paths, tmp_path / "merged")
    load(tiny("llama, untied"), tmp_path / "merged")


def test_positions_that_a_class_stores_today_are_kept(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "MraForMaskedLM", tasks=1)
    assert "mra.embeddings.position_ids" in stored(paths["base"])
    merge("average", paths, tmp_path / "merged")
    load(tiny("MraForMaskedLM"), tmp_path / "merged")


def changed(path: Path, **settings: Any) -> None:
    """Give a configuration other settings; none where the value is None."""
    content = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# the names of transformers' versions

VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VISION |= {"image_size": 28, "patch_size": 14}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}


def vision_language(kind: str) -> Any:
    """Build a tiny model that reads pictures."""
    if kind == "gemma3":
        text = {**DECODER, "head_dim": 8, "sliding_window": 8}
        config = tf.Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
    elif kind == "llava":
        towers = {"vision_config": {**VISION, "model_type": "clip_vision_model"}, "image_token_index": 39}
        config = tf.LlavaConfig(text_config={**DECODER, "model_type": "llama"}, **towers)
    else:
        tower = {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 16, "patch_size": 4, "mlp_ratio": 2}
        config = tf.Qwen2VLConfig(text_config={**DECODER, "rope_parameters": ROPE}, vision_config=tower)
    return tf.AutoModelForImageTextToText.from_config(config)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["gemma3", "llava", "qwen2_vl"])
def test_the_names_of_versions_of_transformers_are_one(kind: str, tmp_path: Path) -> None:
    """What it writes has the names of before 4.52, and what it loads those of today; so has an adapter of PEFT's."""
    model = vision_language(kind)
    paths = {name: tmp_path / name for name in ("base", "older", "today")}
    for number, path in enumerate(paths.values()):
        tuned(model, min(number, 1), 0.1 - 0.1 * (number > 1)).save_pretrained(path)
    names = {key for key in model.state_dict() if key != "lm_head.weight" or not model.config.tie_word_embeddings}
    assert names != set(stored(paths["older"]))
    save_file(
        {key: model.state_dict()[key].clone() for key in names}, paths["today"] / "model.safetensors", {"format": "pt"}
    )
    for task in ("older", "today"):
        merge("tsv_m", {"base": paths["base"], "a": paths[task]}, tmp_path / f"of {task}")
    ours, theirs = stored(tmp_path / "of today"), stored(tmp_path / "of older")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    load(model, tmp_path / "of today")
    adapted = get_peft_model(
        load(model, paths["base"]), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "whole")
    merge("average", {"base": paths["base"], "a": tmp_path / "adapter"}, tmp_path / "of adapter")
    for key, value in stored(tmp_path / "whole").items():
        torch.testing.assert_close(stored(tmp_path / "of adapter")[key], value)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("saved_whole", [[], ["embed_tokens"]], ids=["a copy", "trained"])
@pytest.mark.parametrize("kind", ["gemma3", "qwen2_vl"])
def test_a_tied_head_in_an_adapter_of_another_versions_names_is_the_embedding(
    kind: str, saved_whole: list[str], tmp_path: Path
) -> None:
    """The adapter has today's names, of the head too, which the base's files of before 4.52 do not hold."""
    model = vision_language(kind)
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "base")
    settings = {"modules_to_save": saved_whole or None, "ensure_weight_tying": bool(saved_whole)}
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **settings))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=not saved_whole)
    keys = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any("lm_head" in key for key in keys)
    adapted.merge_and_unload().save_pretrained(tmp_path / "whole")
    merge("average", {"base": tmp_path / "base", "a": tmp_path / "adapter"}, tmp_path / "merged")
    assert stored(tmp_path / "merged").keys() == stored(tmp_path / "base").keys()
    for key, value in stored(tmp_path / "whole").items():
        torch.testing.assert_close(stored(tmp_path / "merged")[key], value)


# prefixes

Rename = Callable[[str], str]


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        ("gpt2", lambda name: name.removeprefix("transformer.")),
        ("llama, untied", lambda name: f"module.{name}"),
        ("llama, tied", lambda name: name.removeprefix("model.")),
        ("vit", lambda name: f"model.{name}"),
        ("llama, tied", lambda name: name.replace("model.", "a.b.c.", 1)),
    ],
)
@pytest.mark.parametrize("side", ["base", "task"])
def test_one_prefix_more_or_less_or_other_is_found(name: str, rename: Rename, side: str, tmp_path: Path) -> None:
    paths = save_models(tmp_path, name, tasks=2)
    merge("tsv_m", paths, tmp_path / "expected")
    for path in (path for key, path in paths.items() if key.startswith(side)):
        state = load_file(path / "model.safetensors")
        save_file({rename(key): value for key, value in state.items()}, path / "model.safetensors")
    merge("tsv_m", paths, tmp_path / "merged")
    ours = stored(tmp_path / "merged")
    for key, value in stored(tmp_path / "expected").items():
        assert torch.equal(ours[rename(key) if side == "base" else key], value)


@pytest.mark.parametrize("side", ["base", "task"])
def test_layer_norms_may_have_tensorflows_names(side: str, tmp_path: Path) -> None:
    paths = save_models(tmp_path, "bert", tasks=2)
    merge("ties", paths, tmp_path / "expected")
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(name: str) -> str:
        return next((name.replace(new, old) for new, old in older.items() if name.endswith(new)), name)

    for path in (path for key, path in paths.items() if key.startswith(side)):
        state = load_file(path / "model.safetensors")
        save_file({rename(key): value for key, value in state.items()}, path / "model.safetensors")
    merge("ties", paths, tmp_path / "merged")
    ours = stored(tmp_path / "merged")
    expected = stored(tmp_path / "expected")
    assert all(torch.equal(ours[rename(key) if side == "base" else key], t) for key, t in expected.items())
    load(tiny("bert"), tmp_path / "merged")


def test_two_prefixes_that_fit_are_refused(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "vit", tasks=1)
    state = load_file(paths["task0"] / "model.safetensors")
    twice = {f"{who}.{key}": value.clone() for key, value in state.items() for who in ("student", "teacher")}
    save_file(twice, paths["task0"] / "model.safetensors")
    expected = r"task0: its names fit the base under 'student\.' and 'teacher\.'; give a file with one of them"
    with pytest.raises(InputError, match=expected):
        merge("average", paths, tmp_path / "merged")


def test_a_parameter_that_is_missing_is_not_taken_from_elsewhere(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "vit", tasks=1)
    state = load_file(paths["task0"] / "model.safetensors")
    state["teacher.classifier.weight"] = state.pop("classifier.weight")
    save_file(state, paths["task0"] / "model.safetensors")
    with pytest.raises(InputError, match=r"task0: the parameter classifier\.weight is missing"):
        merge("average", paths, tmp_path / "merged")


def test_a_flattened_vision_tower_is_merged_onto_a_full_clip(tmp_path: Path) -> None:
    """transformers saves a CLIPVisionModel without the prefix that the tower has in a CLIPModel."""
    paths = save_models(tmp_path, "clip", tasks=1)
    state = load_file(paths["task0"] / "model.safetensors")
    tower = {k.removeprefix("vision_model."): v for k, v in state.items() if k.startswith("vision_model.")}
    save_file(tower, paths["task0"] / "model.safetensors")
    merge("average", paths, tmp_path / "merged", rules=ParameterRules(merged=["vision_model.*"]))
    name = "vision_model.encoder.layers.1.mlp.fc1.weight"
    torch.testing.assert_close(stored(tmp_path / "merged")[name], state[name])


# what is written


def test_a_merge_can_be_sharded_and_is_whole_with_overlays(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "gpt2", tasks=2)
    merge("emr", paths, tmp_path / "whole")
    merge("emr", paths, tmp_path / "shards", output=OutputFormat(max_shard_size=parse_size("8KB")))
    files = sorted(path.name for path in (tmp_path / "shards").glob("model-*"))
    assert files == [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) > 3
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    size = sum(tensor.nbytes for tensor in stored(tmp_path / "whole").values() if tensor.dtype == torch.float32)
    assert index["metadata"]["total_size"] <= size
    load(tiny("gpt2"), tmp_path / "shards")
    for (name, whole), (same, sharded) in zip(
        task_model(tmp_path / "whole", "task1"), task_model(tmp_path / "shards", "task1"), strict=True
    ):
        assert name == same
        assert torch.equal(whole, sharded)


def test_each_models_own_parts_give_it_back_with_its_maps_the_right_way_round(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "gpt2", tasks=2)
    merge("individual", paths, tmp_path / "merged")
    theirs = stored(paths["task1"])
    for name, value in task_model(tmp_path / "merged", "task1"):
        torch.testing.assert_close(value, theirs[name], atol=1e-7, rtol=0)


def test_a_merge_names_its_format_as_transformers_expects_it(tmp_path: Path) -> None:
    merge("average", save_models(tmp_path, "bert", tasks=1), tmp_path / "merged")
    with safe_open(tmp_path / "merged/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_dtypes_that_are_mixed_stay_as_they_are(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "llama, untied", tasks=1, dtype=torch.float16)
    state = load_file(paths["base"] / "model.safetensors")
    kept = {name: value.float() if "norm" in name else value for name, value in state.items()}
    save_file(kept, paths["base"] / "model.safetensors")
    merge("average", paths, tmp_path / "merged")
    assert {name: value.dtype for name, value in stored(tmp_path / "merged").items()} == {
        name: value.dtype for name, value in kept.items()
    }


def test_what_stands_beside_the_base_comes_along_and_the_rest_is_named(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "bert", tasks=1)
    (paths["base"] / "chat_template.jinja").write_text("{{ messages }}")
    for name in (
        "flax_model.msgpack",
        "optimizer.pt",
        "onnx/model.onnx",
        "checkpoint-500/model.safetensors",
        ".cache/x",
    ):
        (paths["base"] / name).parent.mkdir(exist_ok=True)
        (paths["base"] / name).write_text("no part of the model")
    notes = merge("average", paths, tmp_path / "merged")
    assert (tmp_path / "merged/chat_template.jinja").read_text() == "{{ messages }}"
    left = "flax_model.msgpack, optimizer.pt, checkpoint-500/, onnx/"
    assert notes == [f"left out of the base's folder: {left}"]
    assert {path.name for path in (tmp_path / "merged").iterdir() if path.is_dir()} == set()


def test_code_that_came_with_a_model_is_refused_before_work(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "bert", tasks=1)
    (paths["task0"] / "config.json").write_text('{"auto_map": {"AutoModel": "own.Own"}}')
    with pytest.raises(InputError, match=r"task0/config\.json: 'auto_map' asks for code"):
        merge("average", paths, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5 kB", 1500), ("7", 7)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5 apples", "-1GB", "0.1", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--max-shard-size: expected a size such as 5GB"):
        parse_size(text)


# the pipeline's way


@pytest.mark.parametrize("method", ["tsv_m", "drm_h", "dare"])
def test_the_stages_merge_as_the_command_does(method: str, tmp_path: Path) -> None:
    """Extracted, decomposed and merged from files of their own, linear maps turned round once."""
    paths = save_models(tmp_path, "gpt2", tasks=2, shard="8KB")
    merge(method, paths, tmp_path / "expected")
    base, found = open_for_merging(paths["base"]), registry.get(method)
    for task in ("task0", "task1"):
        file = tmp_path / f"deltas/{task}.safetensors"
        file.parent.mkdir(exist_ok=True)
        extract(base, open_model(paths[task]), ParameterRules(), task, file)
        decompose(open_deltas(file.parent, [task]).files[task], FactorSettings(1.0), tmp_path / "svd" / task)
    opened = open_factors if found.factored else open_deltas
    source = opened(tmp_path / ("svd" if found.factored else "deltas"), ["task0", "task1"], 0)
    (tmp_path / "merged").mkdir()
    driver.merge_layers(found, found.validate("", {}), source, base, tmp_path / "merged", torch.device("cpu"))
    ours, theirs = stored(tmp_path / "merged"), stored(tmp_path / "expected")
    assert weights_in(tmp_path / "merged") == weights_in(paths["base"])
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", ["emr", "svd"])
def test_parts_are_put_back_the_right_way_round_without_a_configuration(method: str, tmp_path: Path) -> None:
    """Of a single file, and of a merge that only its base's checkpoint describes, as a study's."""
    paths = save_models(tmp_path, "gpt2", tasks=2)
    merge(method, paths, tmp_path / "expected")
    expected = dict(task_model(tmp_path / "expected", "task1"))
    merge(method, {name: path / "model.safetensors" for name, path in paths.items()}, tmp_path / "files")
    (tmp_path / "expected/config.json").unlink()
    for found in (
        task_model(tmp_path / "files", "task1"),
        task_model(tmp_path / "expected", "task1", open_for_merging(paths["base"])),
    ):
        assert all(torch.equal(value, expected[name]) for name, value in found)


# adapters

LORA: list[dict[str, Any]] = [
    {"target_modules": ["c_attn", "c_fc"]},
    {"target_modules": ["c_attn", "mlp.c_proj"], "modules_to_save": ["attn.c_proj"]},
]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["average", "drm_h", "knots", "tsv_m", "individual"])
def test_adapters_of_gpt2_merge_as_the_models_they_stand_for(method: str, tmp_path: Path) -> None:
    """Its linear maps are stored as in x out: an update of rank 2, and one matrix as many rows as columns, whole."""
    tiny("gpt2").save_pretrained(tmp_path / "base")
    paths, whole = {"base": tmp_path / "base"}, {"base": tmp_path / "base"}
    for t, settings in enumerate(LORA):
        config = LoraConfig(r=2, lora_alpha=3, fan_in_fan_out=True, **settings)
        model = tuned(get_peft_model(tiny("gpt2"), config), 0, size=0.0)
        generator = torch.Generator().manual_seed(t)
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        paths[f"task{t}"], whole[f"task{t}"] = tmp_path / f"adapter{t}", tmp_path / f"whole{t}"
        model.save_pretrained(paths[f"task{t}"])
        model.merge_and_unload().save_pretrained(whole[f"task{t}"])
    rules = ParameterRules(merged=["*.c_*.weight"])
    for given, out in ((paths, "merged"), (whole, "expected")):
        merge(method, given, tmp_path / out, rules=rules)
    expected = dict(task_model(tmp_path / "expected", "task1"))
    for name, value in task_model(tmp_path / "merged", "task1"):
        torch.testing.assert_close(value, expected[name], atol=2e-6, rtol=0)


def other_way_round(folder: Path) -> None:
    """Say the opposite of what an adapter's configuration says of how weights are stored."""
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"fan_in_fan_out": not config["fan_in_fan_out"]}))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["gpt2", "llama, untied"])
def test_peft_turns_an_update_by_the_layers_class_whatever_fan_in_fan_out_says(name: str, tmp_path: Path) -> None:
    """Square maps: shapes do not tell which way round they are."""
    tiny(name).save_pretrained(tmp_path / "base")
    config = LoraConfig(r=2, target_modules=["attn.c_proj" if name == "gpt2" else "o_proj"])
    tuned(get_peft_model(tiny(name), config), 0, size=0.2).save_pretrained(tmp_path / "adapter")
    other_way_round(tmp_path / "adapter")
    model = load(tiny(name), tmp_path / "base")
    PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload().save_pretrained(tmp_path / "expected")
    merge("average", {key: tmp_path / key for key in ("base", "adapter")}, tmp_path / "merged")
    expected = stored(tmp_path / "expected")
    for key, value in stored(tmp_path / "merged").items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=0)


def test_the_maps_of_a_part_are_stored_as_in_x_out_too() -> None:
    config = {"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}, "encoder": {}}
    assert Architecture(config).is_in_by_out("decoder.transformer.h.0.attn.c_proj.weight", (4, 4))
