"""Image classifiers of timm against the models that timm itself loads and the transforms that it makes."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of
from merganser.errors import InputError
from merganser.models import ChangesFeatures, ClassifiesImages, TakesImages, get_family, open_network
from tests.timm_models import MODELS, SIDE, edit_config, random_timm
from tests.tiny_transformers import noise, state_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ONE_HEAD = [kind for kind in MODELS if "distilled" not in kind]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a tiny model with three classes, written once."""
    folders: dict[tuple[str, str], Path] = {}

    def written(kind: str, precision: str = "float32") -> Path:
        if (kind, precision) not in folders:
            folders[kind, precision] = tmp_path_factory.mktemp("timm") / "model"
            random_timm(kind, 3, DTYPES[precision]).save_pretrained(folders[kind, precision])
        return folders[kind, precision]

    return written


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    """Write a tiny ResNet whose files a test may change."""
    random_timm("timm/resnet").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder: Path, precision: Any = "float32") -> Any:
    network = open_network("timm", folder, outputs=3, precision=precision)
    network.load(state_of(folder).items())
    return network


def theirs(folder: Path, images: list[Any], precision: str = "float32") -> tuple[Tensor, Tensor]:
    """Prepare and score pictures as timm's documentation does: the tensor of pictures, and the scores."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).to(DTYPES[precision]).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    pixels = torch.stack([transform(image) for image in images])
    with torch.inference_mode():
        return pixels, model(pixels.to(DTYPES[precision]))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_known_and_scores_as_in_timm(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder, images = folder_of(kind, precision), noise(4, (50, 40))
    assert family_of(folder) == "timm"
    get_family("timm").check(folder, open_checkpoint(folder))
    network = loaded(folder, precision)
    assert isinstance(network, TakesImages)
    assert isinstance(network, ClassifiesImages)
    assert isinstance(network, ChangesFeatures)
    pixels, logits = theirs(folder, images, precision)
    inputs = {"pixels": network.pixels(images)}
    assert inputs["pixels"].dtype == torch.uint8
    assert torch.equal(network._normalised(inputs), pixels.to(DTYPES[precision]))
    assert torch.equal(network.logits(inputs), logits)
    assert logits.float().std(dim=0).min() > 0  # each picture has its own


@pytest.mark.parametrize("kind", ONE_HEAD)
def test_the_head_scores_the_features_and_every_parameter_has_a_gradient(
    folder_of: Callable[..., Path], kind: str
) -> None:
    network, inputs = loaded(folder_of(kind)), {"pixels": noise_pixels(folder_of(kind))}
    logits = network.logits(inputs)
    with torch.inference_mode():
        torch.testing.assert_close(network._heads[0](network.features(inputs)), logits)
    state, own = state_of(folder_of(kind)), dict(network.module.named_parameters())
    given = {name: value.clone().requires_grad_() for name, value in state.items() if name in own}
    scores = network.forward(given, inputs)
    scores.log_softmax(dim=1)[:, 0].sum().backward()
    assert {name for name, value in given.items() if value.grad is None} == set()
    torch.testing.assert_close(scores.detach(), logits)
    assert network.head_parameters() == {
        name
        for name in state
        if (state[name].shape[:1] == (3,) and "head" in name) or name.startswith(("fc.", "classifier."))
    }


def noise_pixels(folder: Path) -> Tensor:
    return open_network("timm", folder).pixels(noise(2, (SIDE, SIDE)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ONE_HEAD)
def test_watched_rows_are_those_of_the_linear_maps(folder_of: Callable[..., Path], kind: str) -> None:
    network, state, widths = loaded(folder_of(kind)), state_of(folder_of(kind)), dict[str, int]()
    with network.watch(lambda name, found: widths.update({name: found.shape[1]})):
        network.features({"pixels": noise_pixels(folder_of(kind))})
    assert widths == {name: state[name].shape[1:].numel() for name in network.linear_maps()}
    assert not network.head_parameters() & widths.keys()


@pytest.mark.parametrize("kind", MODELS)
def test_a_trunk_without_a_head_is_a_base(folder_of: Callable[..., Path], kind: str, tmp_path: Path) -> None:
    random_timm(kind, 0).save_pretrained(tmp_path / "trunk")
    trunk = open_checkpoint(tmp_path / "trunk")
    get_family("timm").check(tmp_path / "trunk", trunk)
    network = open_network("timm", tmp_path / "trunk", outputs=3)
    network.load(state_of(folder_of(kind)).items())
    assert set(trunk.names) == set(state_of(folder_of(kind))) - network.head_parameters()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="has no linear head called"):
        open_network("timm", tmp_path / "trunk")


@pytest.mark.parametrize("changes", [{"crop_mode": mode} for mode in ("squash", "border", "center")]
                         + [{"interpolation": "bilinear", "crop_pct": 0.5}, {"mean": [0.1, 0.2, 0.3], "std": [2, 3, 4]},
                            {"input_size": [3, 40, 24]}])  # fmt: skip
def test_pictures_are_prepared_by_what_pretrained_cfg_says(resnet: Path, changes: dict[str, Any]) -> None:
    said = json.loads((resnet / "config.json").read_text())["pretrained_cfg"]
    edit_config(resnet, pretrained_cfg=said | changes)
    images = [*noise(2, (57, 40)), *[image.convert("L").convert("RGB") for image in noise(1, (20, 70))]]
    network: Any = open_network("timm", resnet)
    expected, _ = theirs(resnet, images)
    assert torch.equal(network._normalised({"pixels": network.pixels(images)}), expected)
    assert torch.equal(network.pixels(images), network.pixels([np.asarray(image) for image in images]))
    assert torch.equal(network.pixels([images[2].convert("L")]), network.pixels(images[2:]))


def test_torch_weights_and_tables_of_older_versions_are_read(tmp_path: Path) -> None:
    model = random_timm("timm/swin")
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(16, 16, 16)
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    get_family("timm").check(tmp_path, open_checkpoint(tmp_path))
    images = noise(2, (SIDE, SIDE))
    with torch.inference_mode():
        network = loaded(tmp_path)
        inputs = {"pixels": network.pixels(images)}
        assert torch.equal(network.logits(inputs), model(network._normalised(inputs)))


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "hf_hub:timm/resnet18", "local-dir:/tmp", "timm/resnet18",
                                  "resnet18.a1_in1k", "../resnet18", "rsnet18", 7, None])  # fmt: skip
def test_an_architecture_that_timm_does_not_have_is_refused(resnet: Path, name: Any) -> None:
    edit_config(resnet, architecture=name)
    said = r"config\.json: .*architecture"
    for ask in (
        lambda: get_family("timm").check(resnet, open_checkpoint(resnet)),
        lambda: open_network("timm", resnet),
    ):
        with pytest.raises(InputError, match=said):
            ask()


def test_the_message_names_the_version_the_fix_and_a_near_name(resnet: Path) -> None:
    edit_config(resnet, architecture="rsnet18")
    said = (
        rf"timm {timm.__version__} has no model \'rsnet18\'; write a name of timm\.list_models\(\), or upgrade timm; "
    )
    with pytest.raises(InputError, match=said + 'did you mean "resnet18"'):
        open_network("timm", resnet)


RESERVED = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


@pytest.mark.parametrize("argument", RESERVED)
def test_an_argument_that_leads_out_of_the_checkpoint_is_refused(resnet: Path, argument: str) -> None:
    edit_config(resnet, model_args={argument: "/tmp/evil.bin"})
    with pytest.raises(InputError, match=rf"config\.json: model_args\.{argument}: reserved .*; remove it"):
        open_network("timm", resnet)


def test_nothing_is_fetched_or_run_whatever_the_configuration_names(
    resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("asks for a network, or for weights")

    said = json.loads((resnet / "config.json").read_text())["pretrained_cfg"]
    places = {"url": "https://example.org/x.pth", "file": "/tmp/x.pth", "hf_hub_id": "timm/x", "custom_load": True}
    edit_config(resnet, pretrained_cfg=said | places)
    (resnet / "resnet.py").write_text("raise SystemExit('ran')")
    for place, name in ((socket.socket, "connect"), (timm.models._builder, "load_pretrained"), (torch, "load")):
        monkeypatch.setattr(place, name, refuse)
    get_family("timm").check(resnet, open_checkpoint(resnet))
    loaded(resnet)
    edit_config(resnet, auto_map={"AutoModel": "resnet.Model"})
    with pytest.raises(InputError, match="such code is never run"):
        open_network("timm", resnet)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"odd": torch.ones(2)}, r"parameter odd is not in the architecture of config\.json \(ResNet"),
        ({"bn1.running_var": None}, r"parameter bn1\.running_var of the architecture is missing"),
        ({"bn1.weight": torch.ones(9)}, r"bn1\.weight has shape \[9\], config\.json says \[64\]"),
    ],
)
def test_a_strange_missing_or_misshapen_parameter_is_refused_by_its_header(
    resnet: Path, changes: dict[str, Tensor | None], said: str
) -> None:
    state = load_file(resnet / "model.safetensors") | changes
    save_file({name: value for name, value in state.items() if value is not None}, resnet / "model.safetensors")
    with pytest.raises(InputError, match=said):
        get_family("timm").check(resnet, open_checkpoint(resnet))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_size": [3, 9000, 9000]}, "at most 8192 pixels"),
        ({"crop_pct": 1e-6}, "at most 8192 pixels"),
        ({"interpolation": "magic"}, "timm cannot make the transform of pictures: .*magic"),
    ],
)
def test_pictures_that_cannot_be_prepared_are_refused(resnet: Path, changes: dict[str, Any], said: str) -> None:
    cfg = json.loads((resnet / "config.json").read_text())["pretrained_cfg"]
    edit_config(resnet, pretrained_cfg=cfg | changes)
    network: Any = open_network("timm", resnet)
    with pytest.raises(InputError, match=rf"config\.json: .*{said}"):
        network.pixels(noise(1, (20, 20)))


def test_a_model_of_grey_pictures_is_refused(resnet: Path) -> None:
    edit_config(resnet, model_args={"in_chans": 1})
    network: Any = open_network("timm", resnet)
    with pytest.raises(InputError, match="not 3 channels"):
        network.pixels(noise(1, (20, 20)))


def test_another_family_names_this_one_and_this_one_another(resnet: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"timm_wrapper is not of the family vision; set base\.family to timm"):
        open_network("vision", resnet)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(InputError, match=r"vit is not of the family timm; set base\.family to vision"):
        open_network("timm", tmp_path)
