"""Bottlenecks: what they do to features, against plain float64, and how they are trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.at_run_time import running
from merganser.at_run_time.additions.bottlenecks import (
    Bottleneck,
    can_change,
    read_bottleneck,
    train,
    write_bottlenecks,
)
from merganser.errors import InputError
from merganser.models import open_network
from merganser.standalone.reconstruct import opened_parts
from tests.tiny_clip import write_clip
from tests.tiny_transformers import FAMILIES, write_model

HOW: dict[str, Any] = {"rank": 3, "steps": 40, "batch_size": 4, "lr": 1e-2}
TEXTS = ["the cat sat on the mat .", "a dog"]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bottleneck(size: int) -> Bottleneck:
    return Bottleneck(drawn(3, size, seed=1), drawn(size, 3, seed=2))


def test_a_bottleneck_takes_away_its_own_output() -> None:
    features, made = drawn(5, 8), bottleneck(8)
    h, down, up = (tensor.double().numpy() for tensor in (features, made.down, made.up))
    np.testing.assert_allclose(made(features), h - np.maximum(h @ down.T, 0) @ up.T, rtol=1e-5, atol=1e-5)


def test_before_the_first_step_nothing_is_changed() -> None:
    found = train(drawn(9, 6), drawn(9, 6, seed=1), seed=0, task="a", rank=3, steps=0, batch_size=4, lr=1e-3)
    assert torch.equal(found.bottleneck(drawn(9, 6)), drawn(9, 6))
    assert list(found.losses) == [0]


def test_features_that_are_the_tasks_own_stay_so() -> None:
    own = drawn(9, 6)
    found = train(own, own.clone(), seed=0, task="a", **HOW)
    assert torch.equal(found.bottleneck(own), own)
    assert set(found.losses.values()) == {0.0}


@pytest.mark.parametrize("lr", [1e-2, 5.0])
def test_the_best_found_is_no_worse_than_the_start(lr: float) -> None:
    merged = drawn(64, 6)
    own = bottleneck(6)(merged)
    found = train(merged, own, seed=0, task="a", rank=3, steps=60, batch_size=8, lr=lr)
    loss = float((found.bottleneck(merged) - own).abs().mean())
    assert loss == pytest.approx(found.losses[found.best_step], rel=1e-5)
    assert loss <= found.losses[0]
    if lr < 1:
        assert loss < 0.9 * found.losses[0]


def test_a_step_is_adams_on_the_mean_absolute_difference() -> None:
    """The first step of Adam moves each entry by lr against the sign of its gradient."""
    merged, own = drawn(8, 6), drawn(8, 6, seed=1)
    found = train(merged, own, seed=0, task="a", rank=3, steps=1, batch_size=8, lr=1e-3)
    down = train(merged, own, seed=0, task="a", rank=3, steps=0, batch_size=8, lr=1e-3).bottleneck.down
    hidden = np.maximum(merged.double().numpy() @ down.double().numpy().T, 0)
    gradient = -np.sign((merged - own).double().numpy()).T @ hidden
    assert found.best_step == 1
    np.testing.assert_allclose(found.bottleneck.up, -1e-3 * np.sign(gradient), rtol=1e-4)
    assert torch.equal(found.bottleneck.down, down)


def test_training_is_a_function_of_its_inputs_the_seed_and_the_task() -> None:
    merged, own = drawn(30, 6), drawn(30, 6, seed=1)
    one, again, other = (train(merged, own, seed=0, task=task, **HOW) for task in ("a", "a", "b"))
    assert torch.equal(one.bottleneck.up, again.bottleneck.up)
    assert not torch.equal(one.bottleneck.up, other.bottleneck.up)


@pytest.mark.parametrize(("value", "steps"), [(torch.nan, 40), (torch.nan, 0), (torch.inf, 40)])
def test_features_that_are_no_numbers_are_refused_before_the_first_step(value: float, steps: int) -> None:
    said = rf"^a: the loss is {value} before the first step: the models' features are not finite"
    with pytest.raises(InputError, match=said):
        train(drawn(8, 6), torch.full((8, 6), value), seed=0, task="a", **HOW | {"steps": steps})


def test_a_step_size_that_leads_to_no_number_is_named() -> None:
    with pytest.raises(InputError, match=r"^a: the loss is NaN after step 10; lower lr"):
        train(drawn(8, 6), drawn(8, 6, seed=4), seed=0, task="a", **HOW | {"lr": 1e30})


def test_bottlenecks_are_kept_in_a_file_and_missing_ones_named(tmp_path: Path) -> None:
    write_bottlenecks(tmp_path, {"a": bottleneck(4)})
    found = read_bottleneck(tmp_path, "a")
    assert torch.equal(found.up, bottleneck(4).up)
    with pytest.raises(InputError, match="no bottleneck for the task 'b'"):
        read_bottleneck(tmp_path, "b")


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
def test_a_classifiers_head_is_given_changed_features(kind: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, kind, 3)
    network = open_network(FAMILIES[kind], tmp_path, outputs=3)
    network.load(model.state_dict().items())
    inputs = network.encode(TEXTS, 16)  # type: ignore[attr-defined]
    features, plain = network.features(inputs), network.logits(inputs)
    made = bottleneck(features.shape[1])
    write_bottlenecks(tmp_path, {"a": made})
    with running(network, tmp_path, "a"):
        changed, differentiable = network.logits(inputs), network.forward({}, inputs)
    assert torch.equal(network.logits(inputs), plain)
    if kind != "roberta":  # whose head has a layer before the last one
        head = model.score if kind == "gpt2" else model.classifier
        torch.testing.assert_close(changed, head(made(features)))
    assert not torch.allclose(changed, plain)
    torch.testing.assert_close(differentiable, changed)


@pytest.mark.parametrize("family", ["open_clip", "clip"])
def test_class_heads_of_prompts_are_given_changed_features(family: str, tmp_path: Path) -> None:
    parameters = write_clip(tmp_path) if family == "open_clip" else write_model(tmp_path, "clip").state_dict()
    network = open_network(family, tmp_path)
    network.load(parameters.items())
    inputs = {"pixels": torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)}
    features = network.features(inputs)
    made = bottleneck(features.shape[1])
    write_bottlenecks(tmp_path, {"a": made})
    with running(network, tmp_path, "a"):
        head = network.head([["a red image ."], ["a dark image ."]])  # type: ignore[attr-defined]
        torch.testing.assert_close(network.logits(inputs), made(features) @ head.T)
        torch.testing.assert_close(network.forward({}, inputs), made(features) @ head.T)
    torch.testing.assert_close(network.logits(inputs), features @ head.T)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_a_network_that_writes_text_is_refused(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path, kind)
    with pytest.raises(InputError, match=r"surgery\.x, a: a bottleneck changes what a head sees"):
        can_change(open_network(FAMILIES[kind], tmp_path), "surgery.x, a")


def test_reconstruct_says_why_it_cannot_give_one_model(tmp_path: Path) -> None:
    write_bottlenecks(tmp_path, {"a": bottleneck(4)})
    with pytest.raises(InputError, match=r"bottlenecks\.safetensors has for a what .* take its model\.safetensors"):
        opened_parts(tmp_path, "a")
