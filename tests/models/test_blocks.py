"""The MLPs of the blocks of each family that names them, and what is added there, example by example."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.learning.block_routing import merged_blocks
from merganser.models import TakesImages, families_with, open_network
from merganser.models.linear_maps import WithBlocks
from merganser.operators.weight_ensembling import BlockRouter, blend
from tests.drills.networks import written
from tests.timm_models import SIDE, VIT, random_timm, tiny_timm
from tests.tiny_clip import write_clip
from tests.tiny_transformers import FAMILIES, state_of, write_model

GRID = "timm/convnext, linear"  # its MLPs take pictures (B, H, W, D)
KINDS = ["open_clip", "clip", "bert", "roberta", "deberta-v3", "vit", GRID]
TEXTS = ["the cat sat on the mat .", "a dog", "a red image of the dog on the mat"]


def test_the_families_that_name_their_blocks_mlps() -> None:
    assert families_with(WithBlocks) == ["clip", "encoder", "open_clip", "siglip", "timm", "vision"]


def opened(kind: str, folder: Path) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """Give a family's network, loaded, its parameters, and inputs."""
    family = "timm" if kind == GRID else FAMILIES.get(kind, "open_clip")
    if kind == "open_clip":
        parameters = write_clip(folder)
    elif kind == GRID:
        random_timm(kind).save_pretrained(folder)
        parameters = state_of(folder)
    else:
        write_model(folder, kind, None if kind == "clip" else 3)
        parameters = state_of(folder)
    network: Any = open_network(family, folder, outputs=None if "clip" in kind else 3)
    network.load(parameters.items())
    if isinstance(network, TakesImages):
        side = SIDE if kind == GRID else 16
        pixels = torch.randint(
            0, 256, (3, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        return network, parameters, {"pixels": pixels}
    return network, parameters, network.encode(TEXTS, 16)


def drawn_vectors(network: Any, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Draw two tasks' vectors of all blocks' MLPs."""
    generator, found = torch.Generator().manual_seed(0), {}
    for maps in network.blocks().values():
        for name in (each.removesuffix("weight") + end for each in maps for end in ("weight", "bias")):
            found[name] = 0.1 * torch.randn(2, *parameters[name].shape, generator=generator)
    return found


def router_of(width: int, out: float, bias: Tensor) -> BlockRouter:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(n, width, generator=generator) for n in (width, 2)]
    return BlockRouter(drawn[0], torch.zeros(width), out * drawn[1], bias)


@pytest.mark.parametrize("kind", KINDS)
def test_one_tasks_vectors_alone_make_the_model_that_has_them(kind: str, tmp_path: Path) -> None:
    network, parameters, inputs = opened(kind, tmp_path)
    vectors = drawn_vectors(network, parameters)
    assert len(network.blocks()) == (4 if kind == GRID else 2)
    assert len(vectors) == 4 * len(network.blocks())
    routers = {
        block: router_of(parameters[maps[0]].shape[1], 0.0, torch.tensor([0.0, 1.0]))
        for block, maps in network.blocks().items()
    }
    plain = network.features(inputs)
    with network.blending(blend(routers, vectors)):
        found = network.features(inputs)
    network.load((name, value + vectors[name][1] if name in vectors else value) for name, value in parameters.items())
    torch.testing.assert_close(found, network.features(inputs), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_example_depends_on_those_beside_it_nor_on_its_padding(kind: str, tmp_path: Path) -> None:
    network, parameters, inputs = opened(kind, tmp_path)
    vectors, seen = drawn_vectors(network, parameters), list[Tensor]()
    routers = {
        block: router_of(parameters[maps[0]].shape[1], 0.1, torch.full((2,), 0.3))
        for block, maps in network.blocks().items()
    }
    with network.blending(blend(routers, vectors, seen.append)):
        together = network.features(inputs)
        weights, seen = seen[0], seen[:0]
        rows = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(3)]
        alone = torch.cat([network.features(row) for row in rows])
    assert weights.std(dim=0).min() > 1e-3  # each example has its own
    torch.testing.assert_close(alone, together, rtol=0, atol=3e-6)  # rounding alone


def test_padding_that_a_network_adds_itself_is_not_counted(tmp_path: Path) -> None:
    written("encoder", "longformer", True, tmp_path)  # pads to whole windows
    network: Any = open_network("encoder", tmp_path)
    network.load(state_of(tmp_path).items())
    inputs, seen = network.encode(TEXTS, 16), list[Tensor]()

    def noted(block: str, rows: Tensor, counted: Tensor) -> Any:
        assert counted.shape == rows.shape[:2] > inputs["attention_mask"].shape
        seen.append(counted.sum(dim=1))
        return lambda name, inputs: None

    with network.blending(noted):
        network.logits(inputs)
    for counts in seen:
        assert counts.tolist() == inputs["attention_mask"].sum(dim=1).tolist()


@pytest.mark.parametrize(
    ("architecture", "settings", "tokens"),
    [("mobilevit_xxs", {}, "8 x 4"), ("vit_relpos_small_patch16_224", VIT, "7 x 7")],  # of patches; of positions
)
def test_mlps_whose_rows_are_not_of_one_example_each_are_refused(
    architecture: str, settings: dict[str, Any], tokens: str, tmp_path: Path
) -> None:
    tiny_timm(architecture, **settings).save_pretrained(tmp_path)
    network: Any = open_network("timm", tmp_path, outputs=3)
    network.load(state_of(tmp_path).items())
    pixels = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)
    with (
        pytest.raises(InputError, match=rf": its MLP is applied to {tokens} tokens of 2 examples, so no example is "),
        network.blending(blend({}, {})),
    ):
        network.logits({"pixels": pixels})


def test_gradients_reach_the_routers_through_the_network(tmp_path: Path) -> None:
    network, parameters, inputs = opened("bert", tmp_path)
    network.module.double()
    vectors = {name: value.double() for name, value in drawn_vectors(network, parameters).items()}
    start = {block: router_of(16, 0.1, torch.full((2,), 0.3)) for block in network.blocks()}
    leaves = {block: BlockRouter(*(x.double().requires_grad_() for x in router)) for block, router in start.items()}

    def score() -> Tensor:
        with network.blending(blend(leaves, vectors)):
            return network.forward({}, inputs).sin().sum()

    score().backward()
    for router in leaves.values():
        for value in router:
            entry, size = int(value.grad.abs().argmax()), 1e-6
            found = []
            for sign in (1, -1):
                value.data.view(-1)[entry] += sign * size
                found.append(float(score().detach()))
                value.data.view(-1)[entry] -= sign * size
            assert float(value.grad.view(-1)[entry]) == pytest.approx((found[0] - found[1]) / (2 * size), rel=1e-5)


def test_a_network_of_other_blocks_is_refused(tmp_path: Path) -> None:
    network, _, _ = opened("bert", tmp_path)
    network.mlps = (("mlp.Wi", "mlp.Wo"),)
    with pytest.raises(InputError, match=r"BertForSequenceClassification: no block has an MLP of mlp\.Wi and mlp\.Wo"):
        network.blocks()


def test_what_is_mixed_is_what_is_merged(tmp_path: Path) -> None:
    network, _, _ = opened("open_clip", tmp_path)
    block = "visual.transformer.resblocks.1"
    names = (f"{block}.mlp.c_proj.weight", f"{block}.ln_1.weight")
    assert merged_blocks(network, SimpleNamespace(names=names)) == {block: [names[0]]}  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no parameter of a block's MLP is merged, such as visual\.transformer\.resb"):
        merged_blocks(network, SimpleNamespace(names=names[1:]))  # type: ignore[arg-type]
