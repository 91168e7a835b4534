"""Gram matrices of a network's inputs, against plain hooks, and what is kept of them."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import unfold

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.errors import InputError
from merganser.inputs.factors import parameter_file_name
from merganser.inputs.statistics import unpack_triangle
from merganser.learning.block_merging import applied_maps, block_name
from merganser.statistics.kinds.gram import GRAM, distinct_inputs, grams, unreached_maps, write_grams
from tests.statistics.samples import clip_sample, expert_sample, text_sample

BLOCK = "visual.transformer.resblocks.0"


def read(folder: Path, file: str, size: int) -> Tensor:
    return unpack_triangle(SafetensorsFile(folder / GRAM / file).read(GRAM), torch.empty(size, size))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / GRAM).iterdir()}


def test_every_image_map_has_the_mean_over_its_rows(tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path)
    names = [name for name in network.linear_maps() if name.startswith("visual.")]
    files, done = write_grams(network, sample, names, tmp_path / "out", "origin")
    assert (sorted(files), done) == (sorted(names), len(names))
    given: dict[str, Tensor] = {}
    visual = network.module.visual
    hooks = [
        visual.conv1.register_forward_pre_hook(lambda _, args: given.update(conv=args[0])),
        visual.transformer.resblocks[0].ln_1.register_forward_hook(lambda *args: given.update(attn=args[2])),
        visual.transformer.resblocks[0].mlp.c_fc.register_forward_pre_hook(lambda _, args: given.update(fc=args[0])),
    ]
    (batch,) = sample.batches(network, 100)
    features = network.features(batch).clone()
    for hook in hooks:
        hook.remove()
    patches = unfold(given["conv"], 8, stride=8).transpose(1, 2)
    for name, rows in {"attn.in_proj_weight": given["attn"], "mlp.c_fc.weight": given["fc"]}.items():
        flat = rows.reshape(-1, 32).double()
        found = read(tmp_path / "out", files[f"{BLOCK}.{name}"], 32)
        torch.testing.assert_close(found, (flat.T @ flat / len(flat)).float(), rtol=1e-4, atol=1e-5)
    flat = patches.reshape(-1, 192).double()
    found = read(tmp_path / "out", files["visual.conv1.weight"], 192)
    torch.testing.assert_close(found, (flat.T @ flat / len(flat)).float(), rtol=1e-4, atol=1e-5)
    # what the projection makes of its inputs has the features' directions: P^T G P is their Gram, unscaled
    projection = parameters["visual.proj"]
    made = projection.T @ read(tmp_path / "out", files["visual.proj"], 32) @ projection
    assert made.shape == (features.shape[1], features.shape[1])
    assert made.trace() > 0


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_texts_count_by_their_tokens_and_padding_not_at_all(kind: str, tmp_path: Path) -> None:
    network, sample = text_sample(tmp_path, kind)
    names = list(network.linear_maps())
    found = grams(network, sample, names)
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    with network.watch(lambda name, seen: rows[name].append(seen.double())):
        for inputs in sample.batches(network, 1):
            network.logits(inputs)
    for name in names:
        stacked = torch.cat(rows[name])
        torch.testing.assert_close(
            found[name].double(), stacked.T @ stacked / len(stacked), rtol=1e-4, atol=1e-5, msg=name
        )


def test_queries_keys_and_values_share_one_file_and_fused_ones_have_their_own(tmp_path: Path) -> None:
    network, sample = text_sample(tmp_path, "bert")
    groups = [members for members, _ in distinct_inputs(network, [sample], network.linear_maps())]
    of_attention = [group for group in groups if "bert.encoder.layer.0.attention.self.query.weight" in group]
    assert [[name.split(".")[-2] for name in group] for group in of_attention] == [["key", "query", "value"]]
    files, done = write_grams(network, sample, network.linear_maps(), tmp_path / "out", "origin")
    assert done == len(groups) == len(set(files.values())) < len(files)


def test_experts_that_the_first_example_does_not_reach_are_measured(tmp_path: Path) -> None:
    network, sample = expert_sample(tmp_path)
    rows: dict[str, list[Tensor]] = {}
    reached = []
    for inputs in (replace(sample, numbers=(number,)) for number in sample.numbers):
        (batch,) = inputs.batches(network, 1)
        with network.watch(lambda name, seen: rows.setdefault(name, []).append(seen.double())):
            network.features(batch)
        reached.append(set(rows))
    assert reached[0] < reached[-1] < set(network.linear_maps())  # some later, some never
    files, _ = write_grams(network, sample, set(network.linear_maps()), tmp_path / "out", "origin")
    assert set(files) == reached[-1]
    maps = set(network.linear_maps())
    assert unreached_maps(network, {*maps, "shared.weight"}, files) == sorted(maps - reached[-1])
    for name in reached[-1] - reached[0]:
        flat = torch.cat(rows[name])
        found = read(tmp_path / "out", files[name], flat.shape[1])
        torch.testing.assert_close(found, (flat.T @ flat / len(flat)).float(), rtol=1e-4, atol=1e-5)
    applied = applied_maps(network, [sample], set(network.linear_maps()))
    assert set(applied) == reached[-1]
    assert [block for block, _ in groupby(map(block_name, applied))] == [
        "encoder.block.0",
        "encoder.block.1",
        "decoder.block.0",
    ]


def test_the_number_of_passes_changes_no_byte(tmp_path: Path) -> None:
    network, _, sample = clip_sample(tmp_path)
    for name, budget in (("one", 2**30), ("many", 1)):
        write_grams(network, sample, network.linear_maps(), tmp_path / name, "origin", budget)
    assert content(tmp_path / "one") == content(tmp_path / "many")


def test_what_was_measured_from_the_same_is_kept_and_all_else_goes(tmp_path: Path) -> None:
    network, _, sample = clip_sample(tmp_path)
    names, out = network.linear_maps(), tmp_path / "out"
    files, _ = write_grams(network, sample, names, out, "origin")
    before = content(out)
    path = out / GRAM / files["visual.proj"]
    path.write_bytes(path.read_bytes()[:-3])
    (out / GRAM / parameter_file_name("gone.weight")).write_bytes(b"old")
    assert write_grams(network, sample, names, out, "origin") == (files, 1)
    assert content(out) == before
    assert write_grams(network, sample, names, out, "origin") == (files, 0)
    assert write_grams(network, sample, names, out, "another") == (files, len(files))


def test_inputs_that_are_not_finite_are_named(tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path)
    name = f"{BLOCK}.mlp.c_fc.weight"
    network.load((parameters | {name: torch.full_like(parameters[name], torch.inf)}).items())
    with pytest.raises(InputError, match=r"the input of visual\..* is NaN or infinite on these examples"):
        write_grams(network, sample, network.linear_maps(), tmp_path / "out", "origin")
