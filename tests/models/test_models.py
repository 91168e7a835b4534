import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor

from merganser.errors import InputError
from merganser.models import embed_classes, open_network
from merganser.models.open_clip import OpenClipClassifier, OpenClipNetwork
from tests.tiny_clip import CONFIG, clip_parameters, pictures, write_clip

PROMPTS = [["a dark image.", "dark"], ["a light image.", "light"], ["a red image.", "red"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip")
    write_clip(path, "open_clip_model.safetensors")
    return path


@pytest.fixture(scope="module")
def parameters(folder: Path) -> dict[str, Tensor]:
    return clip_parameters(folder)


def classifier(folder: Path, parameters: dict[str, Tensor]) -> OpenClipClassifier:
    network = OpenClipNetwork(folder)
    network.load(parameters.items())
    return network.classifier(PROMPTS)


def test_logits_equal_open_clips_own_zero_shot_classification(folder: Path, parameters: dict[str, Tensor]) -> None:
    images = [Image.fromarray(image) for image in pictures(5)[0]]
    ours = classifier(folder, parameters)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.inference_mode():
        features = model.encode_image(torch.stack([transform(image) for image in images]), normalize=True)
        means = [model.encode_text(tokenizer(prompts), normalize=True).mean(0) for prompts in PROMPTS]
        heads = torch.stack([mean / mean.norm() for mean in means])
        expected = model.logit_scale.exp() * features @ heads.T
    torch.testing.assert_close(ours.logits(ours.pixels(images)), expected, rtol=1e-5, atol=1e-5)


def test_a_tasks_embedding_is_the_mean_of_its_class_names_unit_embeddings(folder: Path) -> None:
    found = embed_classes("open_clip", folder, {"two": ["dark", "light"], "one": ["red"]})
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(["dark", "light", "red"])
    with torch.inference_mode():
        each = torch.nn.functional.normalize(model.encode_text(tokens), dim=-1)
    torch.testing.assert_close(found["two"], (each[0] + each[1]) / 2)
    torch.testing.assert_close(found["one"], each[2])


def test_many_texts_are_embedded_in_batches(folder: Path, parameters: dict[str, Tensor]) -> None:
    network = OpenClipNetwork(folder)
    network.load(parameters.items())
    texts = [f"class {i}" for i in range(300)]
    found = network.embed(texts)
    assert found.shape == (300, CONFIG["model_cfg"]["embed_dim"])
    torch.testing.assert_close(found[290:], network.embed(texts[290:]))


@pytest.mark.parametrize("size", [16, 20, 9])
def test_pixels_equal_open_clips_own_preprocessing(folder: Path, parameters: dict[str, Tensor], size: int) -> None:
    images = [Image.fromarray(image) for image in pictures(3, size)[0]]
    _, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    expected = torch.stack([transform(image) for image in images])
    torch.testing.assert_close(classifier(folder, parameters).pixels(images), expected)


def test_pictures_and_arrays_give_the_same_pixels(folder: Path, parameters: dict[str, Tensor]) -> None:
    arrays = pictures(3)[0]
    ours = classifier(folder, parameters)
    assert torch.equal(ours.pixels(arrays), ours.pixels([Image.fromarray(array) for array in arrays]))


def test_an_image_that_is_no_uint8_picture_is_refused(folder: Path, parameters: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match=r"float64 \[16, 16, 3\]; expected uint8"):
        classifier(folder, parameters).pixels([np.zeros((16, 16, 3))])


def test_a_missing_parameter_is_named(folder: Path, parameters: dict[str, Tensor]) -> None:
    rest = {name: value for name, value in parameters.items() if name != "visual.proj"}
    with pytest.raises(InputError, match=r"visual\.proj of the architecture is missing"):
        classifier(folder, rest)


def test_a_parameter_of_another_shape_or_name_is_named(folder: Path, parameters: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match=r"visual\.proj has shape \[2, 2\].* says \[32, 16\]"):
        classifier(folder, parameters | {"visual.proj": torch.zeros(2, 2)})
    with pytest.raises(InputError, match="extra is not in the architecture"):
        classifier(folder, parameters | {"extra": torch.zeros(2)})


def test_a_configuration_that_is_missing_or_cannot_be_built_is_refused(
    tmp_path: Path, parameters: dict[str, Tensor]
) -> None:
    with pytest.raises(InputError, match=r"no open_clip_config\.json"):
        classifier(tmp_path, parameters)
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG["model_cfg"] | {"odd": 1}}))
    with pytest.raises(InputError, match="odd"):
        classifier(tmp_path, parameters)


def test_heads_are_computed_once_for_one_text_tower_and_one_set_of_prompts(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    first = classifier(folder, parameters)
    image = {name: value + 0.1 for name, value in parameters.items() if name.startswith("visual.")}
    assert classifier(folder, parameters | image).head is first.head
    text = {"text_projection": parameters["text_projection"].flip(0)}
    assert not torch.equal(classifier(folder, parameters | text).head, first.head)
    network = OpenClipNetwork(folder)
    network.load(parameters.items())
    assert len(network.classifier([["dark"], ["light"]]).head) == 2


def test_a_network_that_takes_another_models_parameters_is_that_model(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    moved = {name: value + 0.1 for name, value in parameters.items()}
    network = open_network("open_clip", folder)
    pixels = classifier(folder, parameters).pixels(pictures(3)[0])
    for state in (parameters, moved, parameters):
        network.load(state.items())
        expected = classifier(folder, state).logits(pixels)
        assert torch.equal(network.classifier(PROMPTS).logits(pixels), expected)
    assert not torch.equal(expected, classifier(folder, moved).logits(pixels))


def test_an_unknown_family_is_refused_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(InputError, match="'resnet' is not a model family; known: open_clip"):
        open_network("resnet", folder)
