"""Models of equal shapes whose files say that they are other models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    RobertaConfig,
    RobertaModel,
)

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.transformers_models import save_models

BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    return save_models(tmp_path, "llama, untied", tasks=2)


def edit(folder: Path, name: str = "config.json", **values: Any) -> None:
    """Set keys of a JSON file, which may not be there."""
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def checked(paths: Mapping[str, Path], rules: ParameterRules | None = None) -> list[str]:
    """Compare the tasks' models in their order; return all that is said."""
    base, agreement = paths["base"], Agreement(paths["base"], rules or ParameterRules())
    tasks = {name: path for name, path in paths.items() if name != "base"}
    pairs = {name: (open_checkpoint(base), open_model(path)) for name, path in tasks.items()}
    return [note for name, path in tasks.items() for note in agreement.check(name, path, pairs[name])]


def test_models_of_one_architecture_need_no_word(paths: dict[str, Path]) -> None:
    edit(paths["task0"], attention_dropout=0.3, transformers_version="4.1", use_cache=False, _name_or_path="other")
    assert checked(paths) == []


@pytest.mark.parametrize(
    ("of_base", "told"),
    [
        (
            torch.bfloat16,
            ["task0: its weights are float32, the base's bfloat16: merges and its own model are measured"],
        ),
        (torch.float32, []),
    ],
)
def test_digits_that_the_bases_dtype_has_no_room_for_are_named(
    of_base: torch.dtype, told: list[str], tmp_path: Path
) -> None:
    own = torch.float32 if told else torch.bfloat16
    save_models(tmp_path, "llama, untied", tasks=1, dtype=of_base)
    task0 = save_models(tmp_path / "own", "llama, untied", tasks=1, dtype=own)["task0"]
    notes = checked({"base": tmp_path / "base", "task0": task0})
    assert [note[: len(start)] for note, start in zip(notes, told, strict=True)] == told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"num_attention_heads": 1, "num_key_value_heads": 1}, "num_attention_heads 1 (the base 2)"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters.rope_theta 1000000.0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear' (the base 'default')"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' (the base 'silu')"),
    ],
)
def test_another_architecture_of_equal_shapes_is_refused(
    paths: dict[str, Path], values: dict[str, Any], told: str
) -> None:
    edit(paths["task1"], **values)
    with pytest.raises(InputError) as refusal:
        checked(paths)
    assert str(refusal.value).startswith("task1: its config.json has ")
    assert told in str(refusal.value)


def test_what_else_a_forward_pass_reads_is_named(paths: dict[str, Path]) -> None:
    edit(paths["task0"], rms_norm_eps=1e-3)
    said = "task0: its config.json has rms_norm_eps 0.001 (the base 1e-06); the merge has the base's"
    assert checked(paths) == [said]


FEATURES = {"feature_extractor_type": "Whisper", "sampling_rate": 16000}
MODULES = [{"idx": 0, "type": "sentence_transformers.models.Transformer"}]
NORMALIZED = [*MODULES, {"idx": 1, "type": "sentence_transformers.base.Normalize"}]
TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}, "normalizer": {"type": "NFC"}}
SAME = TOKENIZER | {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}
OTHER = TOKENIZER | {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b a"]}}
PROMPTED = "config_sentence_transformers.json"


@pytest.mark.parametrize(
    ("file", "ours", "theirs", "told"),
    [
        ("tokenizer.json", TOKENIZER, SAME, None),
        ("tokenizer.json", TOKENIZER, OTHER, "tokenizer.json: merges "),
        ("tokenizer.json", TOKENIZER, TOKENIZER | {"normalizer": {"type": "Lowercase"}}, "normalizer 'Lowercase "),
        ("tokenizer_config.json", {}, {"do_lower_case": None}, None),
        ("tokenizer_config.json", {"do_lower_case": True}, {"do_lower_case": False}, "do_lower_case False (the base T"),
        ("modules.json", MODULES, NORMALIZED, "'Transformer, Normalize' (the base 'Transformer')"),
        (PROMPTED, {}, {"prompts": {"query": ""}, "similarity_fn_name": "cosine"}, None),
        (PROMPTED, {}, {"prompts": {"query": "q: "}}, "prompts {'query': 'q: '} (the base {})"),
        (
            "processor_config.json",
            {"feature_extractor": FEATURES},
            {"feature_extractor": FEATURES | {"sampling_rate": 8000}},
            "feature_extractor.sampling_rate 8000 (the base 16000)",
        ),
    ],
)
def test_what_else_makes_inputs_and_outputs_is_named(
    paths: dict[str, Path], file: str, ours: Any, theirs: Any, told: str | None
) -> None:
    (paths["base"] / file).write_text(json.dumps(ours))
    (paths["task0"] / file).write_text(json.dumps(theirs))
    said = checked(paths)
    assert [told in note for note in said] == [True] if told else not said


def test_settings_of_generation_in_older_configurations_are_named(paths: dict[str, Path]) -> None:
    for path in paths.values():
        (path / "generation_config.json").unlink()
    edit(paths["task0"], num_beams=4)
    assert checked(paths) == ["task0: config.json: num_beams 4 (the base None); the merge has the base's"]


@pytest.mark.parametrize("files", [{"base"}, {"task1"}, {"base", "task1"}])
def test_the_folder_of_a_file_is_compared(paths: dict[str, Path], files: set[str]) -> None:
    edit(paths["task1"], hidden_act="gelu")
    given = {name: path / "model.safetensors" if name in files else path for name, path in paths.items()}
    with pytest.raises(InputError, match="task1: its config\\.json has hidden_act 'gelu'"):
        checked(given)


def test_a_merge_onto_a_file_is_said_to_have_none_of_the_other_files(paths: dict[str, Path]) -> None:
    edit(paths["task0"], "generation_config.json", top_k=3)
    assert checked(paths | {"base": paths["base"] / "model.safetensors"}) == []


def test_another_preparation_of_pictures_is_named(paths: dict[str, Path]) -> None:
    edit(paths["base"], "preprocessor_config.json", size=8, image_mean=[0.5])
    edit(paths["task0"], "processor_config.json", image_processor={"size": 8, "image_mean": [0.4]})
    said = "task0: preparation of pictures and sounds: image_mean [0.4] (the base [0.5]); the merge has the base's"
    assert checked(paths) == [said]


def test_the_words_of_two_versions_of_transformers_are_equal(paths: dict[str, Path]) -> None:
    config = json.loads((paths["task0"] / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config = {key: value for key, value in config.items() if key not in ("head_dim", "mlp_bias", "attention_bias")}
    (paths["task0"] / "config.json").write_text(json.dumps(config | {"rope_theta": theta, "rope_scaling": None}))
    assert checked(paths) == []


def test_another_model_type_is_refused(tmp_path: Path) -> None:
    BertModel(BertConfig(**BERT)).save_pretrained(tmp_path / "base")
    RobertaModel(RobertaConfig(**BERT, type_vocab_size=2)).save_pretrained(tmp_path / "task0")
    with pytest.raises(InputError, match=r"model_type 'roberta' \(the base 'bert'\)"):
        checked({"base": tmp_path / "base", "task0": tmp_path / "task0"})


def test_a_tower_is_compared_with_that_of_the_whole_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    text, vision = sizes | {"vocab_size": 40}, sizes | {"image_size": 8, "patch_size": 4}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    CLIPModel(config).save_pretrained(tmp_path / "base")
    for name, more in (("task0", {}), ("task1", {"hidden_act": "gelu"})):
        CLIPVisionModel(CLIPVisionConfig(**vision, **more)).save_pretrained(tmp_path / name)
    assert checked({name: tmp_path / name for name in ("base", "task0")}) == []
    with pytest.raises(InputError, match=r"hidden_act 'gelu' \(the base 'quick_gelu'\)"):
        checked({name: tmp_path / name for name in ("base", "task1")})


def test_open_clip_is_compared_by_its_own_configuration(paths: dict[str, Path]) -> None:
    for name, heads in (("base", 4), ("task0", 4), ("task1", 8)):
        (paths[name] / "config.json").unlink()
        edit(paths[name], "open_clip_config.json", model_cfg={"text_cfg": {"heads": heads}}, preprocess_cfg={"mean": 1})
    with pytest.raises(InputError, match=r"task1: .* text_cfg\.heads 8 \(the base 4\)"):
        checked(paths)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"quick_gelu": True}, r"quick_gelu True \(the base False\)"),
        ({"vision_cfg": {"head_width": 80}}, r"vision_cfg\.head_width 80 \(the base 64\)"),
        ({"quick_gelu": False, "text_cfg": {"heads": 8}}, None),
    ],
)
def test_what_open_clips_configuration_leaves_out_has_its_default(
    paths: dict[str, Path], settings: dict[str, Any], told: str | None
) -> None:
    paths = {name: paths[name] for name in ("base", "task0")}
    for name, path in paths.items():
        (path / "config.json").unlink()
        edit(path, "open_clip_config.json", model_cfg={"embed_dim": 8} | (settings if name == "task0" else {}))
    if told is None:
        assert checked(paths) == []
    else:
        with pytest.raises(InputError, match=told):
            checked(paths)


def test_an_unknown_model_type_is_compared_as_it_stands(paths: dict[str, Path]) -> None:
    for path in paths.values():
        edit(path, model_type="of their own", num_heads=2)
    edit(paths["task0"], a_scale=2)
    assert checked(paths) == ["task0: its config.json has a_scale 2 (the base None); the merge has the base's"]
    edit(paths["task1"], num_heads=4)
    with pytest.raises(InputError, match="num_heads 4"):
        checked(paths)


@pytest.mark.parametrize("who", ["base", "task0"])
def test_a_head_whose_rows_are_other_classes_is_not_merged(tmp_path: Path, who: str) -> None:
    """Whether the base names its classes, or a task before this one."""
    paths = save_models(tmp_path, "roberta", tasks=2)
    rows = json.loads((paths["base"] / "config.json").read_text()).get("num_labels") or 2
    names = [f"class {number}" for number in range(rows)]
    edit(paths[who], id2label={str(number): name for number, name in enumerate(names)})
    edit(paths["task1"], id2label={str(number): name for number, name in enumerate(reversed(names))})
    first = "the base" if who == "base" else who
    said = f"task1: row 0 of .* is the class 'class {rows - 1}', that of {first} 'class 0'"
    with pytest.raises(InputError, match=said):
        checked(paths)
    assert checked(paths, ParameterRules(heads=("classifier.*",))) == []


def test_the_numbers_of_classes_name_them_where_their_names_are_left_out(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "roberta", tasks=1)
    edit(paths["base"], id2label={"0": "no", "1": "yes"})
    config = json.loads((paths["task0"] / "config.json").read_text())
    config.pop("id2label", None)
    (paths["task0"] / "config.json").write_text(json.dumps(config | {"label2id": {"yes": 0, "no": 1}}))
    with pytest.raises(InputError, match=r"row 0 of .* is the class 'yes', that of the base 'no'"):
        checked(paths)


def test_another_file_of_sentencepiece_is_named_though_it_is_not_read(paths: dict[str, Path]) -> None:
    for name, content in (("base", b"a"), ("task0", b"b"), ("task1", b"a")):
        (paths[name] / "tokenizer.model").write_bytes(content)
    (said,) = checked(paths)
    assert said.startswith("task0: tokenizer.model: sha256 ")


def test_a_class_more_than_the_base_names_is_one_of_another_name(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "roberta", tasks=1)
    edit(paths["base"], id2label={"0": "a"})
    edit(paths["task0"], id2label={"0": "a", "1": "b"})
    with pytest.raises(InputError, match=r"task0: row 1 of .* is the class 'b', that of the base None"):
        checked(paths)


def test_a_setting_that_only_one_of_two_has_is_named_and_not_refused(paths: dict[str, Path]) -> None:
    """Programs that train write what follows from the rest, such as the width of a head."""
    for path in paths.values():
        edit(path, model_type="of their own")
    edit(paths["task0"], attn_head_dim=8)
    assert checked(paths) == ["task0: its config.json has attn_head_dim 8 (the base None); the merge has the base's"]


def test_tokenizers_of_tasks_are_compared_where_the_base_has_none(paths: dict[str, Path]) -> None:
    for name, words in (("task0", ("a", "b")), ("task1", ("b", "a"))):
        numbers = {word: number for number, word in enumerate(words)}
        edit(paths[name], "tokenizer.json", model={"vocab": numbers}, added_tokens=[])
    with pytest.raises(InputError, match="task1: its tokenizer gives 'b' the number 0, that of task0 1"):
        checked(paths)


def test_what_the_base_lacks_the_merge_lacks(paths: dict[str, Path]) -> None:
    (paths["base"] / "generation_config.json").unlink(missing_ok=True)
    for name, number in (("task0", 1), ("task1", 2)):
        (paths[name] / "generation_config.json").write_text(json.dumps({"eos_token_id": number}))
    said = "task1: generation_config.json: eos_token_id 2 (task0 1); the base, and so the merge, has none"
    assert checked(paths) == [said]


def test_tasks_are_compared_with_each_other_in_what_the_base_says_nothing_of(paths: dict[str, Path]) -> None:
    base, tasks = open_checkpoint(paths["base"]), {name: paths[name] for name in ("task0", "task1")}
    edit(paths["task0"], "vocab.json", a=0, b=1)
    edit(paths["task1"], "vocab.json", a=0, b=1, c=2)
    edit(paths["task0"], "special_tokens_map.json", eos_token="b")
    edit(paths["task1"], "special_tokens_map.json", eos_token="c")
    said = [
        "task1: its vocabulary differs from that of task0: it has 'c'; the base, and so the merge, has none",
        "task1: special tokens: eos_token 'c' (task0 'b'); the base, and so the merge, has none",
    ]
    assert Agreement(paths["base"]).compare_among(tasks, base) == said
    edit(paths["task1"], "vocab.json", a=1, b=0)
    with pytest.raises(InputError, match=r"task1: its tokenizer gives 'b' the number 0, that of task0 1"):
        Agreement(paths["base"]).compare_among(tasks, base)
    edit(paths["base"], "vocab.json", a=0, b=1)  # each task was compared with it
    edit(paths["base"], "special_tokens_map.json", eos_token="b")
    assert Agreement(paths["base"]).compare_among(tasks, base) == []


def test_a_chat_template_that_the_merge_will_not_have_is_named(paths: dict[str, Path]) -> None:
    (paths["task0"] / "chat_template.jinja").write_text("{{ messages }}")
    assert checked(paths) == ["task0: it has a chat template; the base, and so the merge, has none"]


def test_other_pictures_and_another_pooling_are_named(paths: dict[str, Path]) -> None:
    for name, mean in (("base", [0.5]), ("task0", [0.48])):
        (paths[name] / "1_Pooling").mkdir()
        edit(paths[name], "preprocessor_config.json", image_mean=mean, image_processor_type=name)
        edit(paths[name], "1_Pooling/config.json", pooling_mode_cls_token=name == "base")
    assert checked({name: paths[name] for name in ("base", "task0")}) == [
        "task0: preparation of pictures and sounds: image_mean [0.48] (the base [0.5]); the merge has the base's",
        "task0: 1_Pooling/config.json: pooling_mode 'mean' (the base 'cls'); the merge has the base's",
    ]


def test_what_sentence_transformers_6_writes_otherwise_than_5_is_no_difference(paths: dict[str, Path]) -> None:
    for name in ("base", "task0"):
        (paths[name] / "1_Pooling").mkdir()
    old = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    edit(paths["base"], "1_Pooling/config.json", **old, include_prompt=True)
    edit(paths["base"], "sentence_bert_config.json", max_seq_length=256, do_lower_case=False)
    edit(paths["task0"], "1_Pooling/config.json", embedding_dimension=8, pooling_mode="mean", include_prompt=True)
    forward = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    new = {"transformer_task": "feature-extraction", "modality_config": forward}
    edit(paths["task0"], "sentence_bert_config.json", **new, module_output_name="token_embeddings")
    edit(paths["task0"], "tokenizer_config.json", model_max_length=256)
    two = {name: paths[name] for name in ("base", "task0")}
    assert checked(two) == []
    edit(paths["task0"], "tokenizer_config.json", model_max_length=128)
    edit(paths["task0"], "1_Pooling/config.json", embedding_dimension=8, pooling_mode="cls")
    assert checked(two) == [
        "task0: sentence_bert_config.json: max_seq_length 128 (the base 256); the merge has the base's",
        "task0: 1_Pooling/config.json: pooling_mode 'cls' (the base 'mean'); the merge has the base's",
    ]


def test_other_special_tokens_and_settings_of_generation_are_named(paths: dict[str, Path]) -> None:
    for name, token, number in (("base", "a", 0), ("task0", {"content": "b"}, [1, 2]), ("task1", {"content": "a"}, 0)):
        edit(paths[name], "tokenizer_config.json", eos_token=token)
        edit(paths[name], "generation_config.json", eos_token_id=number, bos_token_id=1, transformers_version=name)
    assert checked(paths) == [
        "task0: special tokens: eos_token 'b' (the base 'a'); the merge has the base's",
        "task0: generation_config.json: eos_token_id [1, 2] (the base 0); the merge has the base's",
    ]


@pytest.mark.parametrize(("named", "is_told"), [("org/base", False), ("org/base/", False), ("org/other/", True)])
def test_another_base_of_an_adapter_is_named(named: str, is_told: bool, tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "task", tmp_path / "base", target_modules=["fc"])
    edit(tmp_path / "task", "adapter_config.json", base_model_name_or_path=named)
    notes = checked({"base": tmp_path / "base", "task": tmp_path / "task"})
    assert any(f"names {named} as its base model" in note for note in notes) == is_told
