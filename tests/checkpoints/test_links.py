"""A link out of a model's folder is refused by every command, whatever file it is; caches are allowed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from merganser.checkpoints.adapters.files import ADAPTER_CONFIG
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.config.recipes import Recipe, Source
from merganser.config.sections import Data, Task
from merganser.errors import InputError
from merganser.sources.fetching import fetch_checkpoint
from merganser.standalone.check import check_merge, check_models
from merganser.standalone.evaluate import Declared, evaluate_model
from merganser.standalone.extract_lora import Cut, extract_adapter
from merganser.standalone.mergekit.importing import imported
from merganser.standalone.reconstruct import write_adapter_of, write_merged_adapter, write_model_of
from tests.merges import merge_checkpoints

ALL = ParameterRules()
# Every file that is read of a model's folder, by us or by the libraries that are given the folder.
FILES = (
    *("model.safetensors", "config.json", "generation_config.json", "open_clip_config.json", "model_index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tokenizer.tiktoken", "bpe.codes"),
    *("chat_template.jinja", "additional_chat_templates/tool.jinja", "preprocessor_config.json"),
    *("processor_config.json", "sentence_bert_config.json", "modules.json", "README.md", "LICENSE", "LICENSE.txt"),
    *("NOTICE", "USE_POLICY.md", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    *("pytorch_model.bin", "model.safetensors.index.json", "model-00001-of-00001.safetensors", "source.json"),
    *("overlays.safetensors", "merge.yaml", "m.gguf"),
)
SHARDED = ("model.safetensors.index.json", "model-00001-of-00001.safetensors")


def model(folder: Path) -> Path:
    """Make a model of one matrix."""
    folder.mkdir(parents=True)
    save_file({"a.weight": torch.ones(4, 4)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text("{}")
    return folder


def linked(folder: Path, name: str) -> Path:
    """Put a link to a file elsewhere in a file's place."""
    elsewhere = folder.with_name("elsewhere") / name
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    if (folder / name).exists():
        shutil.move(folder / name, elsewhere)
    else:
        elsewhere.write_text("{}")
    (folder / name).symlink_to(elsewhere)
    return folder


def merged_by(models: dict[str, Path], base: Path, out: Path) -> object:
    return merge_checkpoints("average", {}, base, models, out, device="cpu")


def checked(bad: Path, good: Path, out: Path) -> object:
    sources = {"base": Source(path=str(good)), "models": {"bad": Source(path=str(bad))}}
    return check_merge(Recipe.model_validate({"method": "average", **sources}), out / "merge.yaml")


def described(bad: Path, good: Path, out: Path) -> object:
    if refused := check_models({"good": good, "bad": bad}, ALL).refused:
        raise InputError(refused[0])
    return None


def extracted(bad: Path, good: Path, out: Path) -> object:
    return extract_adapter(Source(path=str(bad)), Source(path=str(good)), out, Cut(rank=1), rules=ALL)


def scored(bad: Path, good: Path, out: Path) -> object:
    task = Task(source=str(good), data=Data(source="nowhere"))
    return evaluate_model(bad, Declared("task", task, "clip", (), "test", 1))


def from_mergekit(bad: Path, good: Path, out: Path) -> object:
    file = out.with_suffix(".yaml")
    models = [{"model": str(path), "parameters": {"weight": 1}} for path in (good, bad)]
    file.write_text(json.dumps({"merge_method": "linear", "models": models}))
    return imported(file)


def fetched(bad: Path, good: Path, out: Path) -> object:
    out.mkdir()
    return fetch_checkpoint(bad, out)


COMMANDS: dict[str, Callable[[Path, Path, Path], object]] = {
    "merge": lambda bad, good, out: merged_by({"bad": bad}, good, out),
    "merge onto it": lambda bad, good, out: merged_by({"good": good}, bad, out),
    "check a merge": checked,
    "check": described,
    "extract-lora": extracted,
    "extract-lora from it": lambda bad, good, out: extracted(good, bad, out),
    "reconstruct": lambda bad, good, out: write_model_of(bad, "task", out),
    "reconstruct as an adapter": lambda bad, good, out: write_adapter_of(bad, "task", out),
    "reconstruct one adapter": lambda bad, good, out: write_merged_adapter(bad, out),
    "evaluate": scored,
    "import-mergekit": from_mergekit,
    "fetch": fetched,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_out_of_a_models_folder_is_refused_whatever_it_stands_for(command: str, tmp_path: Path) -> None:
    good = model(tmp_path / "good")
    for number, name in enumerate(FILES):
        bad = model(tmp_path / str(number) / "bad")
        if name in SHARDED:
            (bad / "model.safetensors").rename(bad / SHARDED[1])
            (bad / SHARDED[0]).write_text(json.dumps({"weight_map": {"a.weight": SHARDED[1]}}))
        linked(bad, name)
        with pytest.raises(InputError, match=rf"bad/{name}: a link to .*, outside its folder; replace it by the file"):
            COMMANDS[command](bad, good, tmp_path / f"out{number}")
        assert not any((tmp_path / f"out{number}").glob("*"))


@pytest.mark.parametrize("command", ["merge", "check", "extract-lora", "fetch"])
def test_an_adapters_files_are_behind_the_same_door(command: str, tmp_path: Path) -> None:
    good = model(tmp_path / "good")
    for number, name in enumerate((ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin")):
        bad = tmp_path / str(number) / "bad"
        bad.mkdir(parents=True)
        (bad / ADAPTER_CONFIG).write_text("{}")
        linked(bad, name)
        with pytest.raises(InputError, match=rf"bad/{name}: a link to .*, outside its folder"):
            COMMANDS[command](bad, good, tmp_path / f"out{number}")


@pytest.mark.parametrize("name", ["1_Pooling", "2_Dense", "projection", "weights"])
def test_a_folder_within_that_is_a_link_out_is_refused(name: str, tmp_path: Path) -> None:
    bad, inner = model(tmp_path / "it/bad"), model(tmp_path / "inner")
    (bad / name).symlink_to(inner)
    if name == "weights":
        (bad / "config.json").write_text('{"transformers_weights": "weights/model.safetensors"}')
    with pytest.raises(InputError, match=rf"bad/{name}.*: a link to .*, outside its folder"):
        check_model(bad)


def test_a_link_to_a_link_is_followed_to_its_end(tmp_path: Path) -> None:
    bad = linked(model(tmp_path / "it/bad"), "model.safetensors")
    (bad / "model.safetensors").rename(bad / "one")
    (bad / "model.safetensors").symlink_to("one")
    with pytest.raises(InputError, match=r"a link to .*elsewhere/model\.safetensors, outside its folder"):
        check_model(bad)


def test_links_that_stay_inside_and_a_folder_that_is_itself_a_link_are_read(tmp_path: Path) -> None:
    good = model(tmp_path / "place/good")
    (good / "model.safetensors").rename(good / "weights.safetensors")
    (good / "model.safetensors").symlink_to("weights.safetensors")
    (good / "README.md").symlink_to(good / "config.json")
    (good / "logs").symlink_to(tmp_path)  # a folder that is not read
    (tmp_path / "link").symlink_to(good)
    merged_by({"a": tmp_path / "link"}, tmp_path / "link", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").is_file()


@pytest.mark.parametrize(
    "place",
    [
        *("models--org--it/blobs/{:064x}", "models--org--it/blobs/{:040x}", "models--org--it/blobs/tag-{}"),
        *("elsewhere/blobs/{:040x}", ".dvc/cache/files/md5/ab/{:030x}"),
    ],
)
def test_links_into_the_caches_of_the_hub_and_of_dvc_are_read(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "models--org--it/snapshots/1"
    model(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text("{}")
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file()), 1):
        target = tmp_path / place.format(number)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        path.symlink_to(os.path.relpath(target, path.parent))
    merged_by({"a": folder}, folder, tmp_path / "out")
    assert (tmp_path / "out/1_Pooling/config.json").is_file()
