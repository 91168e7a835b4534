"""Image classifiers of transformers against the models and image processors that transformers itself loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    BitImageProcessor,
    DeiTForImageClassificationWithTeacher,
    DonutImageProcessor,
    EfficientNetImageProcessor,
    SwinConfig,
    SwinForImageClassification,
)

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of
from merganser.errors import InputError
from merganser.models import ChangesFeatures, ClassifiesImages, TakesImages, families_with, get_family, open_network
from tests.every_class import build
from tests.tiny_transformers import CLASSIFIERS, noise, random_model, state_of, write_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a tiny model with three classes, written once."""
    folders: dict[tuple[str, str], Path] = {}

    def written(kind: str, precision: str = "float32") -> Path:
        if (kind, precision) not in folders:
            folders[kind, precision] = tmp_path_factory.mktemp("vision")
            write_model(folders[kind, precision], kind, 3, DTYPES[precision])
        return folders[kind, precision]

    return written


def loaded(folder: Path, state: dict[str, Tensor] | None = None, precision: Any = "float32") -> Any:
    network = open_network("vision", folder, outputs=3, precision=precision)
    network.load((state or state_of(folder)).items())
    return network


def expected_of(folder: Path, images: list[Any], precision: str = "float32") -> Tensor:
    """Score pictures by a plain loop of transformers."""
    model = AutoModelForImageClassification.from_pretrained(folder, dtype=DTYPES[precision]).eval()
    for value in model.parameters():  # its own memory, not the file's, for the same order of additions in BLAS
        value.data = value.data.clone()
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")(images, return_tensors="pt").pixel_values
    with torch.inference_mode():
        logits: Tensor = model(pixels.to(DTYPES[precision])).logits
    return logits


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_logits_of_a_saved_model_are_those_of_transformers(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder, images = folder_of(kind, precision), noise(5, (40, 30))
    get_family("vision").check(folder, open_checkpoint(folder))
    ours = loaded(folder, precision=precision)
    assert isinstance(ours, TakesImages)
    assert isinstance(ours, ClassifiesImages)
    assert isinstance(ours, ChangesFeatures)
    inputs = {"pixels": ours.pixels(images)}
    logits = ours.logits(inputs)
    assert torch.equal(logits, expected_of(folder, images, precision))
    assert logits.std(dim=0).min() > 1e-3  # each picture has its own
    with torch.inference_mode():
        (head,) = ours._heads
        assert torch.equal(head(ours.features(inputs)), logits)


def test_families_of_pictures_have_heads_of_prompts_or_of_their_own() -> None:
    assert families_with(TakesImages) == ["clip", "open_clip", "siglip", "timm", "vision"]
    assert families_with(ClassifiesImages) == ["timm", "vision"]


def test_a_file_with_the_hubs_names_is_merged_by_these_and_loaded(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("vit")
    state, network = state_of(folder), loaded(folder_of("vit"))
    hubs = "vit.encoder.layer.0.attention.attention.key.weight"
    assert hubs in state
    assert hubs in network.linear_maps()
    assert hubs not in network.module.state_dict()  # transformers 5 calls it otherwise
    inputs = {"pixels": network.pixels(noise(3, (16, 16)))}
    plain = network.logits(inputs)
    moved = network.forward({hubs: state[hubs] + 1}, inputs)
    assert not torch.allclose(moved, plain, atol=1e-3)
    assert torch.equal(network.logits(inputs), plain)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_trunk_without_a_head_is_a_base_and_takes_the_head_of_a_task(
    folder_of: Callable[..., Path], kind: str, tmp_path: Path
) -> None:
    folder = folder_of(kind)
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    get_family("vision").check(tmp_path, open_checkpoint(tmp_path))
    assert family_of(tmp_path) == "vision"
    head = {name: value for name, value in state_of(folder).items() if name.startswith("classifier.")}
    assert head
    images = noise(4, (30, 30))
    both = loaded(folder, state_of(tmp_path) | head)
    assert torch.equal(both.logits({"pixels": both.pixels(images)}), expected_of(folder, images))


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("size", [(16, 16), (57, 40), (9, 33)])
def test_prepared_pixels_are_bit_for_bit_the_processors(
    folder_of: Callable[..., Path], kind: str, size: tuple[int, int]
) -> None:
    images, ours = noise(3, size), open_network("vision", folder_of(kind))
    expected = AutoImageProcessor.from_pretrained(folder_of(kind), backend="pil")(images, return_tensors="pt")
    prepared = ours.pixels(images)  # type: ignore[attr-defined]
    assert prepared.dtype == torch.uint8
    assert torch.equal(ours._normalised({"pixels": prepared}), expected.pixel_values)  # type: ignore[attr-defined]
    assert torch.equal(prepared, ours.pixels([np.asarray(image) for image in images]))  # type: ignore[attr-defined]


def test_pictures_of_one_channel_or_of_four_are_read_in_colour(folder_of: Callable[..., Path]) -> None:
    network: Any = open_network("vision", folder_of("vit"))
    grey = [image.convert("L") for image in noise(2, (20, 20))]
    expected = network.pixels([image.convert("RGB") for image in grey])
    assert torch.equal(network.pixels(grey), expected)
    assert torch.equal(network.pixels([image.convert("RGBA") for image in grey]), expected)
    assert torch.equal(expected[:, 0], expected[:, 2])


def test_a_processor_that_divides_twice_is_followed_and_one_that_pads_after_all_is_refused(
    folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    images = noise(2, (16, 16))
    (tmp_path / "config.json").write_bytes((folder_of("vit") / "config.json").read_bytes())
    EfficientNetImageProcessor(size={"height": 16, "width": 16}, include_top=True).save_pretrained(tmp_path)
    twice: Any = open_network("vision", tmp_path)
    expected = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(images, return_tensors="pt").pixel_values
    assert torch.equal(twice._normalised({"pixels": twice.pixels(images)}), expected)
    DonutImageProcessor().save_pretrained(tmp_path)
    padding: Any = open_network("vision", tmp_path)
    with pytest.raises(InputError, match="DonutImageProcessorPil does more to a picture than to resize, crop"):
        padding.pixels(images)


def test_a_folder_without_a_processor_is_refused_by_name(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder_of("vit") / "config.json").read_bytes())
    network: Any = open_network("vision", tmp_path)
    with pytest.raises(InputError, match=r"transformers cannot make the image processor: .*preprocessor_config\.json"):
        network.pixels(noise(1, (16, 16)))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_watched_rows_make_what_the_maps_give_and_no_head_nor_convolution_in_groups_is_one(
    folder_of: Callable[..., Path], kind: str
) -> None:
    network, state = loaded(folder_of(kind)), state_of(folder_of(kind))
    rows: dict[str, list[Tensor]] = {}
    inputs = {"pixels": network.pixels(noise(2, (40, 40)))}

    def seen(name: str, found: Tensor) -> None:
        rows.setdefault(name, []).append(found)

    with network.watch(seen):
        network.features(inputs)
    maps = network.linear_maps()
    assert set(rows) == set(maps)
    assert {name: state[name].shape[1:].numel() for name in rows} == {name: rows[name][0].shape[1] for name in rows}
    assert not any(name.startswith("classifier") for name in maps)
    matrices = {name for name, value in state.items() if value.dim() in (2, 4)}
    left = {name for name in matrices - set(maps) if not name.startswith("classifier.")}
    assert left == {name for name in state if ".dwconv.weight" in name or name.endswith("mask_token")}
    assert len(left) == {"convnext": 4, "Dinov2ForImageClassification": 1}.get(kind, 0)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_gradients_of_the_logits_reach_every_parameter_and_no_measured_value(
    folder_of: Callable[..., Path], kind: str
) -> None:
    network, state = loaded(folder_of(kind)), state_of(folder_of(kind))
    known = {network.stored_name(name) for name, _ in network.module.named_parameters()}
    given = {name: value.clone().requires_grad_() for name, value in state.items() if name in known}
    inputs = {"pixels": network.pixels(noise(8, (40, 40)))}
    scores = network.forward(given, inputs)
    scores.log_softmax(dim=1)[:, 0].sum().backward()
    still = {name for name, value in given.items() if value.grad is None or not value.grad.abs().sum() > 0}
    assert still == ({"dinov2.embeddings.mask_token"} if "Dinov2" in kind else set())
    assert torch.equal(scores.detach(), network.logits(inputs))
    measured = set(state) - known
    assert bool(measured) == ("ResNet" in kind)
    assert all(parameter.grad is None for parameter in network.module.parameters())


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_head_scores_features_as_they_are_changed(folder_of: Callable[..., Path], kind: str) -> None:
    network, state = loaded(folder_of(kind)), state_of(folder_of(kind))
    inputs = {"pixels": network.pixels(noise(2, (40, 40)))}
    features, plain = network.features(inputs), network.logits(inputs)
    with network.changing(lambda seen: 2 * seen):
        found = network.logits(inputs)
    (weight,) = (value for name, value in state.items() if name.startswith("classifier") and value.dim() == 2)
    torch.testing.assert_close(found, plain + features @ weight.T)
    assert torch.equal(network.logits(inputs), plain)
    assert {name for name in state if name.startswith("classifier.")} == network.head_parameters()


def test_running_means_and_variances_of_the_file_are_those_that_are_computed_with(
    folder_of: Callable[..., Path],
) -> None:
    folder = folder_of("ResNetForImageClassification")
    network, state, images = loaded(folder), state_of(folder), noise(2, (40, 40))
    inputs = {"pixels": network.pixels(images)}
    plain, names = network.logits(inputs), [name for name in state if name.endswith("running_var")]
    assert len(names) > 5
    network.load((state | {names[0]: 4 * state[names[0]]}).items())
    assert not torch.allclose(network.logits(inputs), plain, atol=1e-4)
    missing = {name: value for name, value in state.items() if name != names[0]}
    with pytest.raises(InputError, match=rf"parameter {names[0]} of the architecture is missing"):
        network.load(missing.items())


def test_two_heads_are_scored_by_and_have_no_features_of_one(tmp_path: Path) -> None:
    model = build("DeiTForImageClassificationWithTeacher")
    model.config.num_labels = 3
    model = DeiTForImageClassificationWithTeacher(model.config)
    model.save_pretrained(tmp_path)
    BitImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    network, images = loaded(tmp_path), noise(2, (20, 20))
    inputs = {"pixels": network.pixels(images)}
    assert torch.equal(network.logits(inputs), expected_of(tmp_path, images))
    for asked in (network.features, network.changing):
        with pytest.raises(InputError, match="WithTeacher scores by two heads"):
            asked(inputs)


def test_tables_that_older_files_hold_are_left_out(tmp_path: Path) -> None:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 4}
    SwinForImageClassification(SwinConfig(**sizes, num_labels=3)).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    old = next(name for name in state if name.endswith("relative_position_bias_table"))
    state[old.replace("bias_table", "index")] = torch.arange(256).view(16, 16)
    state |= {"swin.pooler.dense.weight": torch.ones(8, 8)}
    save_file(state, tmp_path / "model.safetensors")
    get_family("vision").check(tmp_path, open_checkpoint(tmp_path))
    open_network("vision", tmp_path, outputs=3).load(state.items())
    with pytest.raises(InputError, match=r"parameter swin\.odd is not in the architecture .*Swin"):
        open_network("vision", tmp_path, outputs=3).load((state | {"swin.odd": torch.ones(2)}).items())


def test_the_vision_side_of_clip_with_a_head_is_of_this_family_and_the_whole_clip_is_not(tmp_path: Path) -> None:
    random_model("clip").save_pretrained(tmp_path / "whole")
    assert family_of(tmp_path / "whole") == "clip"
    model = build("CLIPForImageClassification")
    model.save_pretrained(tmp_path / "side")
    assert family_of(tmp_path / "side") == "vision"
    with pytest.raises(InputError, match="is not in the architecture"):
        get_family("vision").check(tmp_path / "whole", open_checkpoint(tmp_path / "whole"))


def test_a_model_type_that_is_not_built_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "imagegpt"}')
    with pytest.raises(InputError, match="no family builds it: it reads the colours of a palette, not pixels"):
        open_network("vision", tmp_path)


def test_a_picture_of_a_palette_is_read_by_its_colours(folder_of: Callable[..., Path]) -> None:
    network: Any = open_network("vision", folder_of("vit"))
    two = Image.new("P", (16, 16))
    two.putpalette([255, 0, 0, 0, 0, 255])
    assert network.pixels([two])[0, :, 0, 0].tolist() == [255, 0, 0]
