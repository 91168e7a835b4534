"""What a task's own model is built and read by: the base's files, as the task's say where they say otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from merganser.checkpoints.own_settings import write_own
from merganser.errors import InputError
from tests.checkpoints.test_agreement import edit
from tests.tiny_clip import CONFIG as OPEN_CLIP
from tests.tiny_transformers import tokenizer
from tests.transformers_models import MODELS, PICTURES, TEXTS

# A setting that a forward pass reads and no shape depends on, of each kind of model.
OTHERWISE = {
    **dict.fromkeys(("bert", "roberta", "deberta-v3"), ("layer_norm_eps", 0.3)),
    **dict.fromkeys(("llama, untied", "mistral", "qwen2", "gemma"), ("rms_norm_eps", 0.3)),
    **{"gpt2": ("layer_norm_epsilon", 0.3), "t5": ("layer_norm_epsilon", 0.3), "bart": ("scale_embedding", True)},
    **dict.fromkeys(("clip", "siglip"), ("vision_config.layer_norm_eps", 0.3)),
}


def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    for name in ("base", "task"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "base", tmp_path / "task", tmp_path / "own"


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


@pytest.mark.parametrize("kind", OTHERWISE)
def test_a_configuration_is_the_bases_with_the_tasks_settings(kind: str, tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    config = MODELS[kind]().config
    config.save_pretrained(base)
    config.save_pretrained(task)
    *places, name = OTHERWISE[kind][0].split(".")
    edit(task, **{"vocab_size": 99, "_name_or_path": "elsewhere", "dtype": "float16", "num_labels": 7})
    assert not write_own(base, task, own)
    assert not own.exists()
    content = read(task)
    inner = content
    for place in places:
        inner = inner[place]
    assert inner[name] != OTHERWISE[kind][1]
    inner[name] = OTHERWISE[kind][1]
    (task / "config.json").write_text(json.dumps(content))
    assert write_own(base, task, own)
    made, expected = tf.AutoConfig.from_pretrained(own).to_dict(), config.to_dict()
    del made["_name_or_path"], expected["_name_or_path"]
    part = expected
    for place in places:
        part = part[place]
    part[name] = OTHERWISE[kind][1]
    assert made == expected


def test_of_an_image_tower_alone_the_bases_tower_gets_the_settings(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    tf.CLIPConfig(text_config=TEXTS, vision_config=PICTURES).save_pretrained(base)
    tf.CLIPVisionConfig(**PICTURES, layer_norm_eps=0.3).save_pretrained(task)
    assert write_own(base, task, own)
    made = tf.AutoConfig.from_pretrained(own)
    assert (made.model_type, made.vision_config.layer_norm_eps, made.text_config.layer_norm_eps) == ("clip", 0.3, 1e-5)


def test_open_clips_settings_are_the_tasks_as_far_as_it_says_them(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    edit(base, "open_clip_config.json", **OPEN_CLIP)
    edit(task, "open_clip_config.json", model_cfg=OPEN_CLIP["model_cfg"])
    assert not write_own(base, task, own)
    vision = {**OPEN_CLIP["model_cfg"]["vision_cfg"], "norm_kwargs": {"eps": 0.3}}
    edit(task, "open_clip_config.json", model_cfg=OPEN_CLIP["model_cfg"] | {"vision_cfg": vision})
    edit(task, "open_clip_config.json", preprocess_cfg={"mean": [0.1, 0.2, 0.3]})
    assert write_own(base, task, own)
    made = read(own, "open_clip_config.json")
    assert made["model_cfg"]["vision_cfg"] == vision
    assert made["model_cfg"]["text_cfg"] == OPEN_CLIP["model_cfg"]["text_cfg"]
    assert made["preprocess_cfg"] == {**OPEN_CLIP["preprocess_cfg"], "mean": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize("malformed", ["ViT-B-32", None, [1]])
def test_open_clips_settings_that_are_no_mapping_are_none(malformed: Any, tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    edit(base, "open_clip_config.json", **OPEN_CLIP)
    edit(task, "open_clip_config.json", model_cfg=malformed, preprocess_cfg=malformed)
    assert not write_own(base, task, own)
    edit(task, "open_clip_config.json", preprocess_cfg={"mean": [0.1, 0.2, 0.3]})
    assert write_own(base, task, own)
    assert read(own, "open_clip_config.json")["model_cfg"] == OPEN_CLIP["model_cfg"]
    edit(base, "open_clip_config.json", model_cfg=malformed)
    edit(task, "open_clip_config.json", preprocess_cfg=malformed)
    assert not write_own(base, task, tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("preprocessor_config.json", {"processor_class": "A"}, {"image_mean": [0.1, 0.2, 0.3]}),
        ("generation_config.json", {"temperature": 0.3}, {"eos_token_id": [2, 3]}),
        ("tokenizer_config.json", {"name_or_path": "a", "model_max_length": 7}, {"add_prefix_space": True}),
    ],
)
def test_what_prepares_and_ends_texts_and_pictures_is_the_tasks(
    name: str, same: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    base, task, own = folders(tmp_path)
    for folder in (base, task):
        MODELS["gpt2"]().config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        edit(folder, "preprocessor_config.json", image_mean=[0.5, 0.5, 0.5])
        edit(folder, "generation_config.json", eos_token_id=2)
    edit(task, name, **same)
    assert not write_own(base, task, own)
    edit(task, name, **other)
    assert write_own(base, task, own)
    assert (own / name).read_bytes() == (task / name).read_bytes()
    unchanged = {"config.json", "tokenizer.json", "preprocessor_config.json"} - {name}
    assert all((own / each).read_bytes() == (base / each).read_bytes() for each in unchanged)


def test_an_adapters_model_is_built_by_the_base_with_a_tokenizer_of_its_own_if_there_is_one(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    MODELS["gpt2"]().config.save_pretrained(base)
    tokenizer().save_pretrained(base)
    edit(base, "generation_config.json", eos_token_id=2)
    edit(task, "adapter_config.json", r=2)
    assert not write_own(base, task, own)
    tokenizer(ends=False).save_pretrained(task)
    assert write_own(base, task, own)
    assert (own / "tokenizer.json").read_bytes() == (task / "tokenizer.json").read_bytes()
    assert all(
        (own / name).read_bytes() == (base / name).read_bytes() for name in ("config.json", "generation_config.json")
    )


def test_a_link_out_of_the_tasks_folder_is_refused(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    edit(tmp_path, "elsewhere.json", eos_token_id=3)
    (task / "generation_config.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(InputError, match=r"generation_config\.json: a link to .*elsewhere\.json, outside its folder"):
        write_own(base, task, own)


def test_tokens_that_the_embeddings_have_in_other_rows_stay_the_bases(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    for folder in (base, task):
        MODELS["gpt2"]().config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    content = read(task, "tokenizer.json")
    words = content["model"]["vocab"]
    content["model"]["vocab"] = words | {"cat": words["dog"], "dog": words["cat"]}
    edit(task, "tokenizer.json", **content)
    edit(task, eos_token_id=5)
    edit(task, "generation_config.json", eos_token_id=5)
    assert not write_own(base, task, own)
    edit(task, "tokenizer.json", **read(base, "tokenizer.json"))
    assert write_own(base, task, own)
    assert (read(own)["eos_token_id"], read(own, "generation_config.json")["eos_token_id"]) == (5, 5)


def test_a_token_that_the_task_does_not_name_stays_the_bases(tmp_path: Path) -> None:
    base, task, own = folders(tmp_path)
    for folder in (base, task):
        MODELS["gpt2"]().config.save_pretrained(folder)
    edit(base, pad_token_id=0)
    edit(task, pad_token_id=None)
    assert not write_own(base, task, own)
