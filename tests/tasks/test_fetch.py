import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import open_clip
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value, load_from_disk
from huggingface_hub import constants
from PIL import Image as Picture
from safetensors.torch import save_file

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.weight_files import weight_names
from merganser.checkpoints.writing import save_tensors
from merganser.config.sections import Task
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.models import open_network
from merganser.tasks import fetch
from tests import PYTHONPATH
from tests.hub import COMMIT, TOKEN, Hub, serve
from tests.tasks.comparison import inside, write_params, write_sources
from tests.tiny_clip import CLASSES, CONFIG, clip_parameters, pictures, write_clip, write_data_set
from tests.tiny_transformers import write_model

ROOT = Path(__file__).resolve().parents[2]


def content(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def description(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "source.json").read_text())
    return found


def assert_holds(folder: Path, parameters: dict[str, torch.Tensor]) -> None:
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.names) == set(parameters)
    for name, value in parameters.items():
        assert torch.equal(checkpoint.read(name), value)


def write_shards(folder: Path) -> dict[str, torch.Tensor]:
    parameters = {f"layer{i}.weight": torch.full((3, 2), float(i)) for i in range(4)}
    folder.mkdir(parents=True)
    shards = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(parameters)}
    for file in set(shards.values()):
        save_tensors(folder / file, {name: parameters[name] for name in parameters if shards[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return parameters


# local checkpoints


def test_an_open_clip_folder_becomes_model_safetensors_with_its_configuration(tmp_path: Path) -> None:
    parameters = write_clip(tmp_path / "hub", "open_clip_model.safetensors")
    (tmp_path / "hub/README.md").write_text("not needed")
    (tmp_path / "hub/code.py").write_text("raise SystemExit('never run')")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert set(content(tmp_path / "out")) == {"model.safetensors", "open_clip_config.json", "source.json"}
    assert_holds(tmp_path / "out", parameters)
    assert (tmp_path / "out/model.safetensors").read_bytes() == (
        tmp_path / "hub/open_clip_model.safetensors"
    ).read_bytes()


def test_the_description_names_the_source_and_every_files_hash_and_no_time_or_host(tmp_path: Path) -> None:
    write_clip(tmp_path / "hub")
    with inside(tmp_path):
        fetch.fetch_model(Path("hub"), Path("out"))
    out = tmp_path / "out"
    files = {
        name: {"sha256": sha256_of(out / name), "size": (out / name).stat().st_size}
        for name in ("model.safetensors", "open_clip_config.json")
    }
    assert description(out) == {"source": "hub", "kind": "local", "files": files}


def test_fetching_twice_gives_the_same_bytes_in_new_files(tmp_path: Path) -> None:
    write_clip(tmp_path / "hub")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    first = content(tmp_path / "out")
    linked = tmp_path / "linked"
    linked.hardlink_to(tmp_path / "out/model.safetensors")
    write_clip(tmp_path / "hub", seed=1)
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert linked.read_bytes() == first["model.safetensors"]
    assert content(tmp_path / "out") != first
    write_clip(tmp_path / "hub")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert content(tmp_path / "out") == first


def test_a_padding_token_is_written_into_the_bases_configuration(tmp_path: Path) -> None:
    write_model(tmp_path / "base", "llama, untied")
    tokenizer = tmp_path / "base/tokenizer_config.json"
    fetch.fetch_model(tmp_path / "base", tmp_path / "as-it-was")
    with pytest.raises(InputError, match=r"the tokenizer has a padding token; leave base\.pad_token_id out"):
        fetch.fetch_model(tmp_path / "base", tmp_path / "padded", 5)
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "pad_token": None}))
    fetch.fetch_model(tmp_path / "base", tmp_path / "padded", 5)
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("as-it-was", "padded"))
    assert after == before | {"pad_token_id": 5}
    written = description(tmp_path / "padded")["files"]["config.json"]
    assert written["sha256"] == sha256_of(tmp_path / "padded/config.json")
    network = open_network("causal", tmp_path / "padded", outputs=2)
    assert network.tokenizer.pad_token_id == network.module.config.pad_token_id == 5


def test_one_safetensors_file_is_a_source(tmp_path: Path) -> None:
    save_tensors(tmp_path / "mine.safetensors", {"a.weight": torch.ones(2, 2)})
    fetch.fetch_model(tmp_path / "mine.safetensors", tmp_path / "out")
    assert_holds(tmp_path / "out", {"a.weight": torch.ones(2, 2)})


def test_shards_keep_their_files_and_their_index(tmp_path: Path) -> None:
    parameters = write_shards(tmp_path / "hub")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert len(content(tmp_path / "out")) == 4
    assert_holds(tmp_path / "out", parameters)


def test_torch_weights_become_safetensors(tmp_path: Path) -> None:
    parameters = {"a.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
    (tmp_path / "hub").mkdir()
    torch.save({"state_dict": parameters}, tmp_path / "hub/pytorch_model.bin")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert set(content(tmp_path / "out")) == {"model.safetensors", "source.json"}
    assert_holds(tmp_path / "out", parameters)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    torch.save({"a.weight": torch.ones(2), "trap": Trap(tmp_path / "sprung")}, tmp_path / "hub/pytorch_model.bin")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for source in ("hub", "plain.bin"):
        with pytest.raises(InputError, match="cannot be loaded as plain weights"):
            fetch.fetch_model(tmp_path / source, tmp_path / "out")
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "out").exists()


def test_a_truncated_file_is_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    write_clip(tmp_path / "hub")
    fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    before = content(tmp_path / "out")
    file = tmp_path / "hub/model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors: truncated or corrupt"):
        fetch.fetch_model(tmp_path / "hub", tmp_path / "out")
    assert content(tmp_path / "out") == before
    assert {path.name for path in tmp_path.iterdir()} == {"hub", "out"}


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "hub")
    (tmp_path / "hub/model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002\.safetensors is missing"):
        fetch.fetch_model(tmp_path / "hub", tmp_path / "out")


def test_a_source_that_is_not_there_or_holds_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such source"):
        fetch.fetch_model(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no checkpoint in this folder"):
        fetch.fetch_model(tmp_path / "empty", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["pytorch_model.bin", "model.safetensors", "tf_model.h5"], ["model.safetensors"]),
        (["open_clip_pytorch_model.bin", "open_clip_model.safetensors"], ["open_clip_model.safetensors"]),
        (["weights.pt", "config.json"], ["weights.pt"]),
        (["one.safetensors", "two.safetensors"], []),
        (["diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.safetensors"], ["diffusion_pytorch_model.bin"]),
        (["model.fp16.safetensors", "other.json"], ["model.fp16.safetensors"]),
        (
            ["consolidated.safetensors", "model-1-of-1.safetensors", "model.safetensors.index.json"],
            ["model.safetensors.index.json", "model-1-of-1.safetensors"],
        ),
        (
            ["model.fp16-1-of-1.safetensors", "model-1-of-1.safetensors", "model.safetensors.index.json"],
            ["model.safetensors.index.json", "model-1-of-1.safetensors"],
        ),
        (
            ["model.safetensors.index.fp16.json", "model.fp16-1-of-1.safetensors"],
            ["model.safetensors.index.fp16.json", "model.fp16-1-of-1.safetensors"],
        ),
    ],
)
def test_one_format_of_the_weights_is_chosen(names: list[str], chosen: list[str]) -> None:
    assert weight_names(names) == chosen


# pointer files


@pytest.mark.parametrize(
    ("pointer", "complaint"),
    [
        ("{hub: org/name, revision: main}", "must be a full 40-digit commit, got 'main'"),
        ("{hub: org/name}", "needs a revision, a full 40-digit commit, or a branch to follow"),
        (f"{{hub: ../../etc, revision: {COMMIT}}}", "hub: String should match"),
        (f"{{hub: org/name, revision: {COMMIT}, branch: main}}", "branch: Extra inputs"),
        ("{open_clip: ViT-B-32}", "pretrained: Field required"),
        ("{open_clip: ViT-B-32, pretrained: openia}", "nearest: ViT-B-32 openai"),
        ("[1, 2]", "expected a pointer with"),
        ("{hub: [", "pointer.yaml"),
    ],
)
def test_a_bad_pointer_is_refused_by_name(tmp_path: Path, pointer: str, complaint: str) -> None:
    (tmp_path / "pointer.yaml").write_text(pointer)
    with pytest.raises(InputError, match=r"pointer\.yaml") as refusal:
        fetch.fetch_model(tmp_path / "pointer.yaml", tmp_path / "out")
    assert complaint in str(refusal.value)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve one model and one data set, and keep the client's cache in the test's folder."""
    write_clip(tmp_path / "repo", "open_clip_model.safetensors")
    (tmp_path / "repo/README.md").write_text("---\n---\n")
    torch.save(clip_parameters(tmp_path / "repo"), tmp_path / "repo/open_clip_pytorch_model.bin")
    write_parquet(tmp_path / "rows")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"models/org/clip": tmp_path / "repo", "datasets/org/rows": tmp_path / "rows"}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def write_parquet(folder: Path) -> None:
    images, labels = pictures(9)
    features = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    rows = {"image": [Picture.fromarray(image) for image in images], "label": labels}
    (folder / "data").mkdir(parents=True)
    Dataset.from_dict(rows, features=features).to_parquet(folder / "data/test-00000-of-00001.parquet")


def write_pointer(folder: Path, repository: str, revision: str = COMMIT) -> Path:
    path = folder / "pointer.yaml"
    path.write_text(f"{{hub: {repository}, revision: {revision}}}\n")
    return path


def test_a_hub_model_is_fetched_at_its_commit_one_format_only(tmp_path: Path, hub: Hub) -> None:
    fetch.fetch_model(write_pointer(tmp_path, "org/clip"), tmp_path / "out")
    assert set(content(tmp_path / "out")) == {"model.safetensors", "open_clip_config.json", "source.json"}
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))
    found = description(tmp_path / "out")
    assert (found["kind"], found["hub"], found["revision"]) == ("hub", "org/clip", COMMIT)
    assert not any("pytorch_model.bin" in path for path in hub.asked)
    assert "README.md" not in found["files"]


def test_weights_that_a_hub_models_configuration_names_are_fetched(tmp_path: Path, hub: Hub) -> None:
    repository = tmp_path / "repo"
    files = {"a.weight": "weights/one.safetensors", "b.weight": "weights/two.safetensors"}
    (repository / "weights").mkdir()
    for number, (name, file) in enumerate(files.items()):
        save_file({name: torch.full((2,), float(number))}, repository / file)
    (repository / "weights/mine.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    named = {"transformers_weights": "weights/mine.safetensors.index.json"}
    (repository / "config.json").write_text(json.dumps(named))
    fetch.fetch_model(write_pointer(tmp_path, "org/clip"), tmp_path / "out")
    opened = open_checkpoint(tmp_path / "out")
    assert {name: opened.read(name).tolist() for name in opened.names} == {"a.weight": [0, 0], "b.weight": [1, 1]}
    assert json.loads((tmp_path / "out/config.json").read_text()) == {}


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "open_clip_config.json"])
def test_a_download_that_differs_from_the_hubs_checksum_is_thrown_away(name: str, tmp_path: Path, hub: Hub) -> None:
    pointer = write_pointer(tmp_path, "org/clip")
    hub.spoilt.add(name)
    with pytest.raises(OSError, match="does not match the hub's checksum"):
        fetch.fetch_model(pointer, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    hub.spoilt.clear()
    fetch.fetch_model(pointer, tmp_path / "out")
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))


@pytest.mark.parametrize(("repository", "revision"), [("org/clap", COMMIT), ("org/clip", "f" * 40)])
def test_a_repository_or_commit_the_hub_does_not_have_is_the_users_mistake(
    tmp_path: Path, hub: Hub, repository: str, revision: str
) -> None:
    with pytest.raises(InputError, match=f"the hub has no {repository} at revision {revision}"):
        fetch.fetch_model(write_pointer(tmp_path, repository, revision), tmp_path / "out")


def test_a_large_file_is_fetched_from_where_the_hub_stores_it(tmp_path: Path, hub: Hub) -> None:
    fetch.fetch_model(write_pointer(tmp_path, "org/clip"), tmp_path / "out")
    assert f"store/org/clip/resolve/{COMMIT}/open_clip_model.safetensors" in hub.asked
    assert not any(path.startswith("store/") and path.endswith(".json") for path in hub.asked)


def test_a_name_without_an_owner_is_fetched(tmp_path: Path, hub: Hub) -> None:
    hub.folders["models/gpt2"] = tmp_path / "repo"
    fetch.fetch_model(write_pointer(tmp_path, "gpt2"), tmp_path / "out")
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))


def test_a_listing_in_pages_is_read_to_its_end(tmp_path: Path, hub: Hub) -> None:
    hub.page = 1
    fetch.fetch_model(write_pointer(tmp_path, "org/clip"), tmp_path / "out")
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))
    assert sum("/tree/" in path for path in hub.asked) >= sum(1 for _ in (tmp_path / "repo").iterdir())


def test_a_gated_repository_is_named_and_opens_with_a_token(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add("models/org/clip")
    pointer = write_pointer(tmp_path, "org/clip")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(InputError, match=r"org/clip is gated: accept its terms .* then set HF_TOKEN"):
        fetch.fetch_model(pointer, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(InputError, match="with the account of the token in HF_TOKEN"):
        fetch.fetch_model(pointer, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch.fetch_model(pointer, tmp_path / "out")
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))


def test_a_hub_that_refuses_is_the_users_to_settle(tmp_path: Path, hub: Hub) -> None:
    hub.refused.add("models/org/clip")
    with pytest.raises(InputError, match=r"the hub refuses org/clip \(403\): set HF_TOKEN"):
        fetch.fetch_model(write_pointer(tmp_path, "org/clip"), tmp_path / "out")


@pytest.mark.parametrize("path", ["runs/best", "runs/best/weights.bin"])
def test_a_path_names_a_folder_or_a_file_of_a_repository(tmp_path: Path, hub: Hub, path: str) -> None:
    inner = tmp_path / "repo/runs/best"
    inner.mkdir(parents=True)
    torch.save({"a.weight": torch.ones(2, 2)}, inner / "weights.bin")
    (inner / "config.json").write_text("{}")
    (tmp_path / "pointer.yaml").write_text(f"{{hub: org/clip, revision: {COMMIT}, path: {path}}}")
    fetch.fetch_model(tmp_path / "pointer.yaml", tmp_path / "out")
    assert_holds(tmp_path / "out", {"a.weight": torch.ones(2, 2)})
    assert (tmp_path / "out/config.json").read_text() == "{}"
    assert description(tmp_path / "out")["path"] == path
    assert not any("open_clip" in asked for asked in hub.asked)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "pointer.yaml").write_text(f"{{hub: org/clip, revision: {COMMIT}, path: runs}}")
    with pytest.raises(InputError, match="path: org/clip has no file or folder runs"):
        fetch.fetch_model(tmp_path / "pointer.yaml", tmp_path / "out")


def test_a_prefix_is_taken_off_the_names(tmp_path: Path, hub: Hub) -> None:
    parameters = {"a.weight": torch.ones(2, 2), "b.weight": torch.zeros(3)}
    (tmp_path / "wrapped").mkdir()
    save_tensors(tmp_path / "wrapped/model.safetensors", {f"model.{name}": t for name, t in parameters.items()})
    hub.folders["models/org/wrapped"] = tmp_path / "wrapped"
    pointer = tmp_path / "pointer.yaml"
    pointer.write_text(f"{{hub: org/wrapped, revision: {COMMIT}, strip: model.}}")
    fetch.fetch_model(pointer, tmp_path / "out")
    assert_holds(tmp_path / "out", parameters)
    pointer.write_text(f"{{hub: org/wrapped, revision: {COMMIT}, strip: module.}}")
    with pytest.raises(InputError, match=r"strip: no parameter begins with 'module\.', the first is model\.a"):
        fetch.fetch_model(pointer, tmp_path / "out")
    pointer.write_text(f"{{hub: org/clip, revision: {COMMIT}, strip: visual.}}")
    with pytest.raises(InputError, match=r"strip: without 'visual\.' in front two parameters have one name"):
        fetch.fetch_model(pointer, tmp_path / "out")


def write_configurations(folder: Path, configurations: dict[str, dict[str, list[dict[str, Any]]]]) -> Path:
    """Write a data set's repository of several configurations of some splits; return its folder."""
    listed = []
    for name, splits in configurations.items():
        for split, rows in splits.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_parquet(folder / name / f"{split}.parquet")
        files = [{"split": split, "path": f"{name}/{split}.parquet"} for split in splits]
        listed.append({"config_name": name, "data_files": files})
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': listed})}\n---\n")
    return folder


TEXTS = {
    "fr": {"test": [{"text": "fr0"}, {"text": "fr1"}], "val": [{"text": "fr2"}]},
    "de": {"test": [{"text": "de0"}], "val": [{"text": "de1"}]},
}


def language_task(pointer: str, **about: Any) -> Task:
    """Declare a task of lm-eval whose data a pointer of this text names."""
    Path("pointer.yaml").write_text(pointer)
    data = {"source": "pointer.yaml", "metric": "exact_match", **about}
    return Task.model_validate({"source": "none", "kind": "language_model", "data": data})


WRITTEN = {"doc_to_text": "{{text}}", "doc_to_target": "{{configuration}}"}


def test_configurations_of_a_data_set_are_put_together(
    tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data_hub.folders["datasets/org/texts"] = write_configurations(tmp_path / "texts", TEXTS)
    named = f"hub: org/texts\nrevision: {COMMIT}\n"
    fetch.fetch_data(language_task(f"{named}name: [fr, de]", task=WRITTEN), tmp_path / "out")
    found = load_from_disk(tmp_path / "out")
    assert found["test"][:] == {"text": ["fr0", "fr1", "de0"], "configuration": ["fr", "fr", "de"]}
    assert list(found) == ["test", "val"]
    fetch.fetch_data(language_task(f"{named}name: [fr]\nsplits: {{validation: val}}", task=WRITTEN), tmp_path / "some")
    assert {split: rows["text"][:] for split, rows in load_from_disk(tmp_path / "some").items()} == {
        "validation": ["fr2"]
    }
    with pytest.raises(InputError, match="splits: org/texts has no split 'tst'; it has test, val; did you mean"):
        fetch.fetch_data(language_task(f"{named}name: fr\nsplits: {{test: tst}}", task=WRITTEN), tmp_path / "no")


def test_configurations_that_differ_are_refused(tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = TEXTS | {"ru": {"test": [{"words": "ru0"}]}}
    data_hub.folders["datasets/org/texts"] = write_configurations(tmp_path / "texts", other)
    task = language_task(f"{{hub: org/texts, revision: {COMMIT}, name: [fr, ru]}}", task=WRITTEN)
    with pytest.raises(InputError, match="the configurations fr and ru have other splits or columns"):
        fetch.fetch_data(task, tmp_path / "out")


GROUP = f"""group:
  texts: {{hub: org/texts, revision: {COMMIT}, name: [fr, de], splits: {{test: val, train: test}}}}
  questions: {{hub: org/questions, revision: {COMMIT}, follow: main}}
"""
ASKED = {"doc_to_text": "{{question}}", "doc_to_target": "{{answers[0]}}"}


def test_a_group_of_data_sets_becomes_documents_of_each(
    tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    questions = [{"question": "why", "answers": ["so", "no"], "count": 1}]
    data_hub.folders["datasets/org/texts"] = write_configurations(tmp_path / "texts", TEXTS)
    data_hub.folders["datasets/org/questions"] = write_configurations(tmp_path / "q", {"default": {"test": questions}})
    task = language_task(GROUP, group={"texts": WRITTEN, "questions": ASKED})
    fetch.fetch_data(task, tmp_path / "out")
    found = load_from_disk(tmp_path / "out")
    assert list(found) == ["test", "train"]
    assert found["test"]["member"][:] == ["texts", "texts", "questions"]
    assert [json.loads(document) for document in found["test"]["document"]] == [
        {"text": "fr2", "configuration": "fr"},
        {"text": "de1", "configuration": "de"},
        questions[0],
    ]
    about = description(tmp_path / "out")
    assert about["kind"] == "hub"
    assert about["group"]["questions"] == {"hub": "org/questions", "revision": COMMIT}
    fetch.fetch_data(task, tmp_path / "again")
    assert content(tmp_path / "again") == content(tmp_path / "out")


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"texts": WRITTEN}, r"data\.group: split test of pointer\.yaml has questions too; name a task for each"),
        ({"texts": WRITTEN, "questions": WRITTEN}, "lm-eval cannot make this task of the data: 'text' is undefined"),
    ],
)
def test_a_group_whose_tasks_do_not_fit_its_data_is_refused(
    tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch, group: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    questions = {"default": {"test": [{"question": "why", "answers": ["so"]}]}}
    data_hub.folders["datasets/org/texts"] = write_configurations(tmp_path / "texts", TEXTS)
    data_hub.folders["datasets/org/questions"] = write_configurations(tmp_path / "q", questions)
    with pytest.raises(InputError, match=message):
        fetch.fetch_data(language_task(GROUP, group=group), tmp_path / "out")


def test_a_group_of_what_is_no_text_and_a_model_of_a_group_are_refused(
    tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pictures_only = f"group: {{pictures: {{hub: org/rows, revision: {COMMIT}}}}}"
    with pytest.raises(InputError, match=r"pointer\.yaml: pictures, split test: the column 'image' is Image"):
        fetch.fetch_data(language_task(pictures_only, group={"pictures": WRITTEN}), tmp_path / "out")
    with pytest.raises(InputError, match="a group is of data sets; a model is one repository"):
        fetch.fetch_model(Path("pointer.yaml"), tmp_path / "model")
    write_data_set(Path("rows"), {"test": 2})
    here = {"source": "rows", "group": {"a": WRITTEN}}
    with pytest.raises(InputError, match=r"data\.group: rows is not a group of data sets"):
        fetch.fetch_data(
            Task.model_validate({"source": "none", "kind": "language_model", "data": here}), tmp_path / "out"
        )


@pytest.mark.drill
def test_a_hub_data_set_is_fetched_with_the_same_bytes_each_time(tmp_path: Path, hub: Hub) -> None:
    """In processes of their own, with caches of their own: `datasets` reads its settings when it is imported."""
    write_pointer(tmp_path, "org/rows")
    command = (
        "from pathlib import Path; from merganser.tasks.fetch import fetch_data;"
        "from tests.tasks.test_fetch import task_of;"
        "fetch_data(task_of(Path('pointer.yaml')), Path('{}'))"
    )
    for name in ("first", "second"):
        cache = {"HF_HOME": str(tmp_path / f"cache-{name}"), "HF_HUB_OFFLINE": "0", "PYTHONPATH": PYTHONPATH}
        variables = os.environ | cache
        subprocess.run([sys.executable, "-c", command.format(name)], cwd=tmp_path, env=variables, check=True)
    rows = load_from_disk(tmp_path / "first")["test"]
    assert rows.features["label"].names == CLASSES
    assert rows["label"] == pictures(9)[1]
    assert content(tmp_path / "first") == content(tmp_path / "second")


@pytest.fixture
def data_hub(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Have `datasets` ask the hub, which it was told the address of when it was imported."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return hub


def test_a_gated_data_set_is_named_and_opens_with_a_token(
    tmp_path: Path, data_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_hub.gated.add("datasets/org/rows")
    task = task_of(write_pointer(tmp_path, "org/rows"))
    with pytest.raises(InputError, match=r"org/rows is gated: accept its terms .* then set HF_TOKEN"):
        fetch.fetch_data(task, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(InputError, match=r"org/rows is gated: .* with the account of the token in HF_TOKEN"):
        fetch.fetch_data(task, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch.fetch_data(task, tmp_path / "out")
    assert load_from_disk(tmp_path / "out")["test"]["label"] == pictures(9)[1]


def test_a_hub_that_refuses_a_data_set_is_the_users_to_settle(tmp_path: Path, data_hub: Hub) -> None:
    data_hub.refused.add("datasets/org/rows")
    with pytest.raises(InputError, match=r"the hub refuses org/rows \(403\): set HF_TOKEN"):
        fetch.fetch_data(task_of(write_pointer(tmp_path, "org/rows")), tmp_path / "out")


def test_an_open_clip_tag_is_fetched_by_open_clips_own_downloader(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(tmp_path / "repo/open_clip_pytorch_model.bin", tmp_path / "repo/tiny.pt")
    (tmp_path / "tiny-clip.json").write_text(json.dumps(CONFIG["model_cfg"]))
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    tag = {"url": f"{hub.url}/org/clip/resolve/main/tiny.pt", "mean": [0.5] * 3, "std": [0.25] * 3, "quick_gelu": True}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip", {"here": tag})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "pointer.yaml").write_text("{open_clip: tiny-clip, pretrained: here}")
    fetch.fetch_model(tmp_path / "pointer.yaml", tmp_path / "out")
    assert_holds(tmp_path / "out", clip_parameters(tmp_path / "repo"))
    config = json.loads((tmp_path / "out/open_clip_config.json").read_text())
    assert config["model_cfg"]["quick_gelu"] is True
    assert config["preprocess_cfg"] == {"mean": [0.5] * 3, "std": [0.25] * 3}
    assert description(tmp_path / "out")["pretrained"] == "here"


# data sets


def task_of(data: Path, **about: Any) -> Task:
    """Declare a task of pictures with this data."""
    return Task.model_validate({"source": "none", "data": {"source": str(data), "templates": ["a {}."], **about}})


def test_a_saved_data_set_is_copied_whole_with_its_description(tmp_path: Path) -> None:
    write_data_set(tmp_path / "rows", {"validation": 3, "test": 5})
    fetch.fetch_data(task_of(tmp_path / "rows"), tmp_path / "out")
    copied = content(tmp_path / "out")
    copied.pop("source.json")
    assert copied == content(tmp_path / "rows")
    assert set(description(tmp_path / "out")["files"]) == set(copied)


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        ({"image": Value("string"), "label": Value("int64")}, "the label column has no class names"),
        ({"picture": Value("string"), "label": ClassLabel(names=["a"])}, "has no column 'image'"),
        ({"image": Value("string"), "label": ClassLabel(names=["a"])}, "expected Image or a uint8 Array3D"),
    ],
)
def test_a_data_set_without_labelled_images_is_refused(
    tmp_path: Path, features: dict[str, Any], complaint: str
) -> None:
    values = {"image": ["x"], "picture": ["x"], "label": [0]}
    rows = Dataset.from_dict({name: values[name] for name in features}, features=Features(features))
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "rows")
    with pytest.raises(InputError, match=complaint):
        fetch.fetch_data(task_of(tmp_path / "rows"), tmp_path / "out")


def test_columns_are_renamed_to_what_the_kind_reads(tmp_path: Path) -> None:
    write_data_set(tmp_path / "rows", {"test": 4})
    saved = load_from_disk(tmp_path / "rows")
    coarse = saved.rename_columns({"image": "img", "label": "fine"})
    other = coarse.map(lambda row: {"label": 7}, remove_columns=[])
    other.save_to_disk(tmp_path / "other")
    fetch.fetch_data(task_of(tmp_path / "other", columns={"image": "img", "label": "fine"}), tmp_path / "out")
    fetched = load_from_disk(tmp_path / "out")["test"]
    assert sorted(fetched.column_names) == ["image", "label"]
    assert fetched["label"] == saved["test"]["label"]
    assert fetched.features["label"].names == CLASSES
    with pytest.raises(InputError, match=r"data\.columns\.image: split test of .* has no column 'imgs'.*\"img\"\?"):
        fetch.fetch_data(task_of(tmp_path / "other", columns={"image": "imgs"}), tmp_path / "out")


def test_labels_without_names_need_as_many_declared_ones(tmp_path: Path) -> None:
    write_data_set(tmp_path / "rows", {"test": 4})
    saved = load_from_disk(tmp_path / "rows")
    saved.cast_column("label", Value("int64")).save_to_disk(tmp_path / "plain")
    fetch.fetch_data(task_of(tmp_path / "plain", classes=["a", "b", "c"]), tmp_path / "out")
    with pytest.raises(InputError, match=r"has the label 2, data\.classes names 2"):
        fetch.fetch_data(task_of(tmp_path / "plain", classes=["a", "b"]), tmp_path / "out")
    with pytest.raises(InputError, match=r"has 3 classes, data\.classes names 2"):
        fetch.fetch_data(task_of(tmp_path / "rows", classes=["a", "b"]), tmp_path / "out")


def test_a_folder_that_is_no_saved_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with pytest.raises(InputError, match="no saved data set"):
        fetch.fetch_data(task_of(tmp_path / "rows"), tmp_path / "out")


@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_data_set_that_is_not_whole_is_refused(tmp_path: Path, kept: float) -> None:
    write_data_set(tmp_path / "rows", {"test": 50})
    (file,) = (tmp_path / "rows/test").glob("*.arrow")
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    with pytest.raises(InputError, match="not a whole saved data set"):
        fetch.fetch_data(task_of(tmp_path / "rows"), tmp_path / "out")


# the command


def test_the_command_fetches_base_task_and_data_and_refuses_anything_else(tmp_path: Path) -> None:
    write_params(tmp_path)
    write_sources(tmp_path / "sources")
    with inside(tmp_path):
        for command in (["base"], ["task", "red"], ["data", "red"]):
            fetch.main(command)
        with pytest.raises(InputError, match='no "rde" under tasks'):
            fetch.main(["task", "rde"])
        with pytest.raises(InputError, match="expected base, task NAME or data NAME, got nothing"):
            fetch.main([])
    data = tmp_path / "data"
    assert description(data / "base")["source"] == "sources/base"
    assert (data / "checkpoints/red/model.safetensors").is_file()
    assert (data / "datasets/red/dataset_dict.json").is_file()
