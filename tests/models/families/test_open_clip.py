import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.models import embed_classes, open_network
from merganser.models.families.open_clip import OpenClipNetwork, check
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


def loaded(folder: Path, parameters: dict[str, Tensor]) -> OpenClipNetwork:
    network = open_network("open_clip", folder)
    assert isinstance(network, OpenClipNetwork)
    network.load(parameters.items())
    network.head(PROMPTS)
    return network


def inputs(network: OpenClipNetwork, images: Sequence[Any]) -> dict[str, Tensor]:
    return {"pixels": network.pixels(images)}


def test_logits_equal_open_clips_own_zero_shot_classification(folder: Path, parameters: dict[str, Tensor]) -> None:
    images = [Image.fromarray(image) for image in pictures(5)[0]]
    ours = loaded(folder, parameters)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.inference_mode():
        features = model.encode_image(torch.stack([transform(image) for image in images]), normalize=True)
        means = [model.encode_text(tokenizer(prompts), normalize=True).mean(0) for prompts in PROMPTS]
        heads = torch.stack([mean / mean.norm() for mean in means])
        expected = model.logit_scale.exp() * features @ heads.T
    torch.testing.assert_close(ours.logits(inputs(ours, images)), expected, rtol=1e-5, atol=1e-5)


def test_a_tasks_embedding_is_the_mean_of_its_class_names_unit_embeddings(folder: Path) -> None:
    found = embed_classes("open_clip", folder, {"two": ["dark", "light"], "one": ["red"]})
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(["dark", "light", "red"])
    with torch.inference_mode():
        each = torch.nn.functional.normalize(model.encode_text(tokens), dim=-1)
    torch.testing.assert_close(found["two"], (each[0] + each[1]) / 2)
    torch.testing.assert_close(found["one"], each[2])


def test_many_texts_are_embedded_in_batches(folder: Path, parameters: dict[str, Tensor]) -> None:
    network = loaded(folder, parameters)
    texts = [f"class {i}" for i in range(300)]
    found = network.embed(texts)
    assert found.shape == (300, CONFIG["model_cfg"]["embed_dim"])
    torch.testing.assert_close(found[290:], network.embed(texts[290:]))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK"])
@pytest.mark.parametrize("size", [(16, 16), (37, 23), (9, 50), (16, 40), (500, 375)])
def test_what_is_prepared_gives_bit_for_bit_what_open_clips_own_transform_does(
    folder: Path, parameters: dict[str, Tensor], size: tuple[int, int], mode: str
) -> None:
    """Of pictures as they come out of a JPEG, or of another mode."""
    drawn = np.random.default_rng(0).integers(0, 255, (3, 12, 10, 3)).astype(np.uint8)
    images = [jpeg(Image.fromarray(each).resize(size)).convert(mode) for each in drawn]
    network, (_, _, transform) = (
        loaded(folder, parameters),
        open_clip.create_model_and_transforms(f"local-dir:{folder}"),
    )
    expected = torch.stack([transform(image) for image in images])
    found = inputs(network, images)
    assert found["pixels"].dtype == torch.uint8
    assert torch.equal(network._normalised(found), expected)
    if mode == "RGB":
        assert torch.equal(network.pixels([np.asarray(image) for image in images]), found["pixels"])


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_each_way_of_resizing_is_open_clips_own(tmp_path: Path, resize_mode: str) -> None:
    clip_parameters(tmp_path)
    config = CONFIG | {"preprocess_cfg": {"size": [16, 16], "resize_mode": resize_mode, "interpolation": "bilinear"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    network = OpenClipNetwork(tmp_path, "cpu", "float32")
    _, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}", load_weights=False)
    images = [Image.fromarray(image).resize((31, 22)) for image in pictures(2)[0]]
    expected = torch.stack([transform(image) for image in images])
    assert torch.equal(network._normalised(inputs(network, images)), expected)


def jpeg(image: Image.Image) -> Image.Image:
    file = BytesIO()
    image.save(file, "JPEG")
    return Image.open(file)


def test_pictures_and_arrays_give_the_same_pixels(folder: Path, parameters: dict[str, Tensor]) -> None:
    arrays = pictures(3)[0]
    ours = loaded(folder, parameters)
    assert torch.equal(ours.pixels(arrays), ours.pixels([Image.fromarray(array) for array in arrays]))


def test_an_image_that_is_no_uint8_picture_is_refused(folder: Path, parameters: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match=r"float64 \[16, 16, 3\]; expected uint8"):
        loaded(folder, parameters).pixels([np.zeros((16, 16, 3))])


def test_a_forward_with_other_parameters_is_that_models_and_has_gradients(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    network, other = loaded(folder, parameters), loaded(folder, parameters)
    moved = {name: value + 0.1 for name, value in parameters.items() if name.startswith("visual.")}
    other.load((parameters | moved).items())
    other.head(PROMPTS)
    images = inputs(network, pictures(3)[0])
    given = {name: value.clone().requires_grad_() for name, value in moved.items()}
    found = network.forward(given, images)
    # Two ways of computing the same in float32, whose kernels differ from processor to processor.
    torch.testing.assert_close(found, other.logits(images), rtol=1e-4, atol=1e-4)
    found.logsumexp(dim=1).sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in given.values())
    torch.testing.assert_close(network.forward({}, images), network.logits(images), rtol=1e-4, atol=1e-4)


def test_every_linear_map_is_watched_with_the_rows_it_is_applied_to(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    network = loaded(folder, parameters)
    images = inputs(network, pictures(3)[0])
    seen: dict[str, Tensor] = {}
    plain = network.logits(images)
    with network.watch(lambda name, rows: seen.update({name: rows})):
        torch.testing.assert_close(network.logits(images), plain)
    visual = {name for name in network.linear_maps() if name.startswith("visual.")}
    assert set(seen) == visual
    assert [name for name, side in network.linear_maps().items() if side == "rows"] == [
        "text_projection",
        "visual.proj",
    ]
    assert "visual.transformer.resblocks.0.attn.in_proj_weight" in visual
    assert "visual.transformer.resblocks.1.attn.out_proj.weight" in visual
    block = "visual.transformer.resblocks.0.mlp"
    torch.testing.assert_close(
        seen[f"{block}.c_proj.weight"],
        torch.nn.functional.gelu(
            seen[f"{block}.c_fc.weight"] @ parameters[f"{block}.c_fc.weight"].T + parameters[f"{block}.c_fc.bias"]
        ),
    )
    patches = seen["visual.conv1.weight"]
    assert patches.shape == (3 * 4, 3 * 8 * 8)
    normalised = network._normalised(images)
    torch.testing.assert_close(patches[1], normalised[0, :, :8, 8:].reshape(-1))
    torch.testing.assert_close(seen["visual.proj"] @ parameters["visual.proj"], unscaled(network, images))


def test_attentions_fused_maps_are_given_what_goes_into_it_and_into_its_output(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    network = loaded(folder, parameters)
    images, name = inputs(network, pictures(3)[0]), "visual.transformer.resblocks.0.attn"
    seen: dict[str, Tensor] = {}
    given: list[Tensor] = []
    hook = network.module.get_submodule(name).register_forward_hook(
        lambda _, args, kwargs, out: given.extend([(args or [kwargs["query"]])[0].flatten(0, 1), out[0].flatten(0, 1)]),
        with_kwargs=True,
    )
    moved = {key: value + 0.1 for key, value in parameters.items()}
    with network.watch(lambda name, rows: seen.update({name: rows})):
        network.forward(moved, images)
    hook.remove()
    torch.testing.assert_close(*(sorted_rows(rows) for rows in (seen[f"{name}.in_proj_weight"], given[0])))
    made = seen[f"{name}.out_proj.weight"] @ moved[f"{name}.out_proj.weight"].T + moved[f"{name}.out_proj.bias"]
    torch.testing.assert_close(sorted_rows(made), sorted_rows(given[1]), rtol=1e-4, atol=1e-4)


def sorted_rows(rows: Tensor) -> Tensor:
    """Order rows by their first value: attention has them by place or by picture."""
    return rows.detach()[rows.detach()[:, 0].argsort()]


def unscaled(network: OpenClipNetwork, images: dict[str, Tensor]) -> Tensor:
    with torch.inference_mode():
        return network.module.encode_image(network._normalised(images))


def test_a_missing_parameter_is_named(folder: Path, parameters: dict[str, Tensor]) -> None:
    rest = {name: value for name, value in parameters.items() if name != "visual.proj"}
    with pytest.raises(InputError, match=r"visual\.proj of the architecture is missing"):
        loaded(folder, rest)


def test_a_parameter_of_another_shape_or_name_is_named(folder: Path, parameters: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match=r"visual\.proj has shape \[2, 2\].* says \[32, 16\]"):
        loaded(folder, parameters | {"visual.proj": torch.zeros(2, 2)})
    with pytest.raises(InputError, match="extra is not in the architecture"):
        loaded(folder, parameters | {"extra": torch.zeros(2)})


def test_a_configuration_that_is_missing_or_cannot_be_built_is_refused(
    tmp_path: Path, parameters: dict[str, Tensor]
) -> None:
    with pytest.raises(InputError, match=r"no open_clip_config\.json"):
        loaded(tmp_path, parameters)
    with pytest.raises(InputError, match=r"no open_clip_config\.json, which models of the family open_clip need"):
        check(tmp_path, open_checkpoint(save(tmp_path, parameters)))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG["model_cfg"] | {"odd": 1}}))
    with pytest.raises(InputError, match="odd"):
        loaded(tmp_path, parameters)


def save(folder: Path, parameters: dict[str, Tensor]) -> Path:
    save_tensors(folder / "model.safetensors", parameters)
    return folder


def test_heads_are_computed_once_for_one_text_tower_and_one_set_of_prompts(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    first = loaded(folder, parameters).head(PROMPTS)
    image = {name: value + 0.1 for name, value in parameters.items() if name.startswith("visual.")}
    assert loaded(folder, parameters | image).head(PROMPTS) is first
    text = {"text_projection": parameters["text_projection"].flip(0)}
    network = loaded(folder, parameters | text)
    assert not torch.equal(network.head(PROMPTS), first)
    assert len(network.head([["dark"], ["light"]])) == 2


def test_a_network_that_takes_another_models_parameters_is_that_model(
    folder: Path, parameters: dict[str, Tensor]
) -> None:
    moved = {name: value + 0.1 for name, value in parameters.items()}
    network = loaded(folder, parameters)
    images = inputs(network, pictures(3)[0])
    for state in (parameters, moved, parameters):
        network.load(state.items())
        network.head(PROMPTS)
        expected = loaded(folder, state).logits(images)
        assert torch.equal(network.logits(images), expected)
    assert not torch.equal(expected, loaded(folder, moved).logits(images))


def test_a_lower_precision_gives_nearly_the_same_scores(folder: Path, parameters: dict[str, Tensor]) -> None:
    network = open_network("open_clip", folder, precision="bfloat16")
    assert isinstance(network, OpenClipNetwork)
    network.load(parameters.items())
    network.head(PROMPTS)
    images, full = inputs(network, pictures(5)[0]), loaded(folder, parameters)
    found = network.logits(images)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), full.logits(images), rtol=0.05, atol=0.3)


def test_an_unknown_family_is_refused_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(InputError, match=r"'open_clp' is not a model family; known: .*open_clip"):
        open_network("open_clp", folder)
