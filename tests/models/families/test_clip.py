"""CLIP of transformers against transformers' own model, processor and, for pictures, open_clip."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPModel, CLIPVisionModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.models import EmbedsTexts, TakesImages, get_family, open_network
from tests.tiny_clip import pictures
from tests.tiny_transformers import noise, state_of, tokenizer, write_model

PROMPTS = [["a dark image .", "dark"], ["a light image .", "light"], ["a red image ."]]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip")
    write_model(path, "clip")
    return path


def loaded(folder: Path, precision: Any = "float32") -> Any:
    network = open_network("clip", folder, precision=precision)
    network.load(state_of(folder).items())
    return network


@pytest.mark.parametrize("precision", DTYPES)
def test_features_and_logits_are_those_of_transformers(folder: Path, precision: str) -> None:
    ours = loaded(folder, precision)
    assert isinstance(ours, TakesImages)
    assert isinstance(ours, EmbedsTexts)
    images = [Image.fromarray(image) for image in pictures(5, 20)[0]]
    theirs = CLIPModel.from_pretrained(folder, dtype=DTYPES[precision]).eval()
    pixels = CLIPImageProcessorPil.from_pretrained(folder)(images, return_tensors="pt").pixel_values
    tokens = tokenizer()(PROMPTS[0] + PROMPTS[1] + PROMPTS[2], padding=True, return_tensors="pt")
    ours.head(PROMPTS)
    inputs = {"pixels": ours.pixels(images)}
    with torch.inference_mode():
        whole = theirs(**tokens, pixel_values=pixels.to(DTYPES[precision]))
        means = torch.stack([group.mean(0) for group in whole.text_embeds.split([2, 2, 1])])
        heads = means / means.norm(dim=-1, keepdim=True)
        expected = theirs.logit_scale.exp() * whole.image_embeds @ heads.T
    if precision == "float32":
        torch.testing.assert_close(ours.features(inputs), whole.image_embeds, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(ours.embed(PROMPTS[0] + PROMPTS[1] + PROMPTS[2]), whole.text_embeds)
    torch.testing.assert_close(ours.logits(inputs), expected, rtol=2e-2 if precision == "bfloat16" else 1e-5, atol=2e-2)


@pytest.mark.parametrize("size", [(16, 16), (37, 20), (9, 30)])
def test_prepared_pixels_are_bit_for_bit_the_processors_and_open_clips(folder: Path, size: tuple[int, int]) -> None:
    images, ours = noise(3, size), loaded(folder)
    expected = CLIPImageProcessorPil.from_pretrained(folder)(images, return_tensors="pt").pixel_values
    prepared = ours.pixels(images)
    assert prepared.dtype == torch.uint8
    assert torch.equal(ours._normalised({"pixels": prepared}), expected)
    assert torch.equal(expected, torch.stack([image_transform(16, is_train=False)(image) for image in images]))
    assert torch.equal(prepared, ours.pixels([np.asarray(image) for image in images]))
    assert torch.equal(ours.pixels([images[0].convert("L")]), ours.pixels([images[0].convert("L").convert("RGB")]))


def test_an_image_that_is_no_uint8_picture_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"float64 \[16, 16, 3\]; expected uint8"):
        loaded(folder).pixels([np.zeros((16, 16, 3))])


def test_the_vision_side_of_a_task_is_taken_on_the_bases_text_side(folder: Path, tmp_path: Path) -> None:
    tuned = CLIPVisionModel.from_pretrained(folder)
    with torch.no_grad():
        for value in tuned.parameters():
            value.add_(0.05)
    tuned.save_pretrained(tmp_path)
    saved = state_of(tmp_path)
    plain = {name.removeprefix("vision_model."): value for name, value in saved.items()}
    assert plain.keys() != saved.keys()
    network = loaded(folder)
    network.head(PROMPTS)
    inputs = {"pixels": network.pixels(pictures(4, 16)[0])}
    base = network.logits(inputs)
    both = [network.forward(state, inputs) for state in (saved, plain)]
    assert torch.equal(*both)
    network.load((state_of(folder) | saved).items())
    with pytest.raises(AssertionError, match="logits need a class head"):
        network.logits(inputs)
    network.head(PROMPTS)
    torch.testing.assert_close(network.logits(inputs), both[0])
    assert not torch.allclose(both[0], base, atol=1e-2)
    for state in (saved, plain):
        save_file(state, tmp_path / "model.safetensors")
        for configured in (folder, tmp_path):
            get_family("clip").check(configured, open_checkpoint(tmp_path))
    with pytest.raises(InputError, match="the vision side alone; as a base take the whole model"):
        open_network("clip", tmp_path)


def test_watching_gives_the_rows_of_the_image_sides_maps_and_patches(folder: Path) -> None:
    network, rows = loaded(folder), dict[str, list[Tensor]]()
    inputs, state = {"pixels": network.pixels(noise(3, (20, 20)))}, state_of(folder)
    with network.watch(lambda name, seen: rows.setdefault(name, []).append(seen)):
        network.features(inputs)
    assert set(rows) == set(network.linear_maps())
    assert not any(name.startswith("text") for name in rows)
    kernel = state["vision_model.embeddings.patch_embedding.weight"]
    patches = torch.cat(rows["vision_model.embeddings.patch_embedding.weight"])
    expected = network.module.vision_model.embeddings.patch_embedding(network._normalised(inputs))
    torch.testing.assert_close(patches @ kernel.flatten(1).T, expected.flatten(2).transpose(1, 2).reshape(-1, 16))
    features = torch.cat(rows["visual_projection.weight"]) @ state["visual_projection.weight"].T
    torch.testing.assert_close(features / features.norm(dim=-1, keepdim=True), network.features(inputs).clone())


def test_a_folder_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "clip")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match="transformers cannot make the image processor"):
        loaded(tmp_path).pixels(noise(1, (16, 16)))
