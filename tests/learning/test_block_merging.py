"""A merge block by block, against a plain loop over the modules of transformers in float64."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from merganser.checkpoints.kinds import ParameterRules, is_head
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.inputs.deltas import extract, open_deltas
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerDeltas, SomeLayers, Statistics
from merganser.learning import block_merging
from merganser.learning.block_merging import (
    BlockMerging,
    Merged,
    applied_maps,
    block_name,
    blocks_in_order,
)
from merganser.learning.task_losses import open_setups
from merganser.methods.regmean_plus_plus import Settings, merged_map
from merganser.models import TakesImages, TakesTexts, open_network
from merganser.registry import get_learner
from merganser.statistics.kinds.gram import grams
from merganser.statistics.sampling import draw
from tests.statistics.samples import TEXTS, prepared_in
from tests.tiny_clip import CLASSES
from tests.tiny_transformers import FAMILIES, noise, write_model

RATIO = 0.8
TASKS = {"one": 2, "two": 3}  # with their outputs
HEADS = ("classifier.*", "score.*", "*pooler.*")
PIXELS = (7, 3, 16, 16)
# Of each kind: what is merged, its list of blocks, and what enters the first of them.
ENTERS: dict[str, tuple[str, str, Callable[[Any, Mapping[str, Tensor]], Tensor]]] = {
    "bert": ("*", "bert.encoder.layer", lambda model, row: model.bert.embeddings(row["input_ids"])),
    "gpt2": (
        "*",
        "transformer.h",
        lambda model, row: (
            model.transformer.wte(row["input_ids"]) + model.transformer.wpe.weight[: row["input_ids"].shape[1]]
        ),
    ),
    "clip": (
        "vision_model.encoder.*",
        "vision_model.encoder.layers",
        lambda model, row: model.vision_model.pre_layrnorm(model.vision_model.embeddings(row["pixels"])),
    ),
}
Said = list[tuple[int, int]]


def tuned(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def opened(root: Path, kind: str) -> tuple[BlockMerging, dict[str, Any]]:
    """Write a base and two models of it, each with data of its own; return what merges them, and the models."""
    merged, family, texts = ENTERS[kind][0], FAMILIES[kind], kind != "clip"
    base, models = write_model(root / "base", kind, 2 if texts else None), {}
    (root / "deltas").mkdir()
    rules, data, heads = ParameterRules((merged,), "linear", HEADS), {}, {}
    for seed, (task, outputs) in enumerate(TASKS.items()):
        model = write_model(root / task, kind, outputs if texts else None)
        own = {name: value for name, value in base.state_dict().items() if not is_head(name, HEADS)}
        model.load_state_dict(own, strict=False)
        models[task] = tuned(model, seed)
        models[task].save_pretrained(root / task)
        extract(
            open_for_merging(root / "base"),
            open_checkpoint(root / task),
            rules,
            task,
            root / f"deltas/{task}.safetensors",
        )
        own = {name: value for name, value in model.state_dict().items() if is_head(name, HEADS)}
        heads[task] = Head(own, HEADS, [])
        data[task] = pictures(root / f"{task}-data", seed) if kind == "clip" else texts_of(root, task, family, seed)
    setups = open_setups(family, root / "base", data, heads, "cpu")
    samples = [draw(data[task], 100, seed=0, task=task) for task in TASKS]
    learner = get_learner("regmean_plus_plus")
    layers = open_deltas(root / "deltas", list(TASKS))
    base_file = open_for_merging(root / "base")
    return BlockMerging(learner, Settings(ratio=RATIO), layers, base_file, setups, samples), models  # type: ignore[arg-type]


def pictures(folder: Path, seed: int) -> Prepared:
    generator = np.random.default_rng(seed)
    pixels = torch.from_numpy(generator.integers(0, 256, PIXELS, dtype=np.uint8))
    return prepared_in(folder, "image_classification", {"pixels": pixels}, {"templates": ["a {} image."]})


def texts_of(root: Path, task: str, family: str, seed: int) -> Prepared:
    network = open_network(family, root / task, outputs=TASKS[task])
    assert isinstance(network, TakesTexts)
    encoded = network.encode(TEXTS[seed : seed + 4], 30)
    about = {"kind": "text_classification", "settings": {}, "metric": "accuracy", "classes": CLASSES[: TASKS[task]]}
    folder = root / f"{task}-data"
    folder.mkdir()
    write_prepared(folder, [{name: value.int() for name, value in encoded.items()}], about)
    return Prepared(folder)


def run(merging: BlockMerging, folder: Path, origin: str = "origin", said: Said | None = None) -> Merged:
    return merging.run(folder, origin, lambda *counts: said.append(counts) if said is not None else None)


def rows_of(merging: BlockMerging, number: int) -> list[dict[str, Tensor]]:
    """Return a task's examples one by one, without padding, as a module takes them in float64."""
    setup, sample = merging.setups[number], merging.samples[number]
    rows = [{name: value.long() for name, value in each.items()} for each in sample.batches(setup.network, 1)]
    if "pixels" in rows[0]:
        return [{"pixels": setup.network._normalised(each).double()} for each in rows]  # type: ignore[attr-defined]
    return [{name: value[:, each["attention_mask"][0] > 0] for name, value in each.items()} for each in rows]


@contextmanager
def watched(block: Any) -> Iterator[dict[str, list[Tensor]]]:
    """Keep the input rows of each linear map of a block."""
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        part.register_forward_pre_hook(
            lambda _, args, name=name: seen.setdefault(name, []).append(args[0].flatten(0, -2))
        )
        for name, part in block.named_modules()
        if isinstance(part, torch.nn.Linear | Conv1D)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def through(block: Any, states: Tensor) -> Tensor:
    found = block(states, attention_mask=None)
    return found[0] if isinstance(found, tuple) else found


@torch.inference_mode()
def plainly(merging: BlockMerging, models: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """Merge as the paper's algorithm: each task's states go through its own block, then through the merged one."""
    _, place, enter = ENTERS[kind]
    own = [deepcopy(model).double() for model in models.values()]
    merged = deepcopy(own[0])
    base = {name: merging.base.read(name).double() for name in merging.base.names}
    for name, value in merged.named_parameters():
        if name in merging.layers.names:
            value.copy_(torch.stack([model.get_parameter(name) for model in own]).mean(0))
        elif name in base:
            value.copy_(base[name])
    states = [[enter(merged, row) for row in rows_of(merging, number)] for number in range(len(own))]
    found = {}
    for number, block in enumerate(merged.get_submodule(place)):
        inputs = []
        for model, of_task in zip(own, states, strict=True):
            with watched(model.get_submodule(place)[number]) as seen:
                for each in of_task:
                    through(model.get_submodule(place)[number], each)
            inputs.append({name: torch.cat(rows) for name, rows in seen.items()})
        for name in inputs[0]:
            of_rows = isinstance(block.get_submodule(name), Conv1D)
            weights = [model.get_submodule(place)[number].get_submodule(name).weight for model in own]
            weights = [weight if of_rows else weight.T for weight in weights]
            shrunk = [
                RATIO * g + (1 - RATIO) * g.diagonal().diag()
                for g in (x[name].T @ x[name] / len(x[name]) for x in inputs)
            ]
            total = sum(gram @ weight for gram, weight in zip(shrunk, weights, strict=True))
            weight = torch.linalg.solve(sum(shrunk), total)
            block.get_submodule(name).weight.copy_(weight if of_rows else weight.T)
            full = f"{place}.{number}.{name}.weight"
            start = base[full].T if full in merging.base.transposed else base[full]
            found[full] = weight.T - (start.T if of_rows and full not in merging.base.transposed else base[full])
        states = [[through(block, each) for each in of_task] for of_task in states]
    return found


@pytest.mark.parametrize("kind", ENTERS)
def test_a_block_is_merged_by_its_inputs_behind_the_merged_blocks_before_it(kind: str, tmp_path: Path) -> None:
    merging, models = opened(tmp_path, kind)
    found = run(merging, tmp_path / "state").values
    expected = plainly(merging, models, kind)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() < 1e-4 * value.norm(), name


def test_a_first_block_is_merged_as_by_regmean_and_the_next_is_not(tmp_path: Path) -> None:
    """Where nothing before the first block is merged."""
    merging, _ = opened(tmp_path, "clip")
    found = run(merging, tmp_path / "state")
    for block, is_same in zip(found.blocks, (True, False), strict=True):
        own: dict[str, list[Tensor]] = {name: [] for name in block.first}
        for setup, sample, task in zip(merging.setups, merging.samples, TASKS, strict=True):
            model, merged = open_checkpoint(tmp_path / task), merging.layers.names
            setup.load((name, (model if name in merged else merging.base).read(name)) for name in model.names)
            for name, gram in grams(setup.network, sample, block.first).items():
                own[name].append(gram)
        for name, of_tasks in own.items():
            layer = merging.layers.layer(name)
            assert isinstance(layer, LayerDeltas)
            regmean = merged_map(
                replace(layer, statistics=Statistics({"gram": torch.stack(of_tasks)})), Settings(ratio=RATIO)
            )
            assert torch.allclose(found.values[name], regmean, rtol=1e-4, atol=1e-5) is is_same, name


ORDERS = {
    "bert": ["bert.encoder.layer.0", "bert.encoder.layer.1", "bert.pooler.dense.weight"],
    "llama, untied": ["model.layers.0", "model.layers.1"],
    "t5": ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"],
    "vit": ["vit.embeddings.patch_embeddings.projection.weight", "vit.layers.0", "vit.layers.1"],
    "ResNetForImageClassification": [
        "resnet.embedder.embedder.convolution.weight",
        *(f"resnet.encoder.stages.{number}" for number in range(4)),
    ],
}


@pytest.mark.parametrize("kind", ORDERS)
def test_blocks_come_in_the_order_of_a_forward_pass(kind: str, tmp_path: Path) -> None:
    family = FAMILIES[kind]
    outputs = 2 if family == "encoder" else None
    model = write_model(tmp_path / "model", kind, outputs)
    network = open_network(family, tmp_path / "model", outputs=outputs)
    network.load(model.state_dict().items())
    if isinstance(network, TakesTexts):
        tokens = {name: value.int() for name, value in network.encode(TEXTS, 30).items()}
        prepared = prepared_in(tmp_path / "data", "text_generation", tokens, {})
    else:
        assert isinstance(network, TakesImages)
        prepared = prepared_in(
            tmp_path / "data", "image_classifier", {"pixels": network.pixels(noise(2, (40, 40)))}, {}
        )
    sample, maps = draw(prepared, 2, 0, "task"), set(network.linear_maps())
    blocks = blocks_in_order(network, [sample], maps, sorted(maps))
    assert [block.name for block in blocks] == ORDERS[kind]
    applied = applied_maps(network, [sample], maps)
    assert {name for block in blocks for name in block.first} == {*applied}
    assert blocks[0].later == {name for name in applied if block_name(name) != blocks[0].name}


def test_a_pass_that_ends_behind_a_block_measures_what_a_whole_one_does(tmp_path: Path) -> None:
    merging, _ = opened(tmp_path, "bert")
    block, sample, network = merging.blocks()[0], merging.samples[0], merging.setups[0].network
    whole, cut = grams(network, sample, block.first), block_merging.block_grams(network, sample, block)
    assert cut.keys() == set(block.first.values())
    for name, gram in cut.items():
        torch.testing.assert_close(gram, whole[name], rtol=1e-5, atol=1e-6)


def test_blocks_that_are_done_are_kept_and_a_kill_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging, _ = opened(tmp_path, "gpt2")
    folder, said = tmp_path / "state", Said()
    before = run(merging, folder, said=said)
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert said == [(0, 2), (1, 2)]
    assert set(written) == {"transformer.h.0.safetensors", "transformer.h.1.safetensors"}
    assert before.forwards == 2 * 8
    (folder / "transformer.h.1.safetensors").unlink()
    (folder / "gone.safetensors").write_bytes(b"old")
    (folder / "seeds").mkdir()  # where another seed's blocks lie
    run(merging, folder)
    (folder / "seeds").rmdir()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written
    monkeypatch.setattr(BlockMerging, "_merged", None)
    assert run(merging, folder).values.keys() == before.values.keys()
    with pytest.raises(TypeError):
        run(merging, folder, "another")


def test_inputs_that_are_not_finite_are_named(tmp_path: Path) -> None:
    merging, _ = opened(tmp_path, "bert")
    name = "bert.encoder.layer.1.output.dense.weight"
    run(merging, tmp_path / "state")
    broken = tmp_path / "state" / "bert.encoder.layer.0.safetensors"
    values = SafetensorsFile(broken)
    infinite = {each: values.read(each) * torch.inf for each in values.names}
    save_tensors(broken, infinite, values.metadata["merganser"])
    (tmp_path / "state" / "bert.encoder.layer.1.safetensors").unlink()
    with pytest.raises(InputError, match=r"one: the input of bert.encoder.layer.1.*NaN or infinite behind the merged"):
        run(merging, tmp_path / "state")
    assert name in merging.layers.names


def test_a_network_none_of_whose_maps_is_merged_is_refused(tmp_path: Path) -> None:
    merging, _ = opened(tmp_path, "bert")
    vectors = [name for name, kind in merging.layers.kinds.items() if kind == "vector"]
    with pytest.raises(InputError, match=r"no matrix that is merged is a linear map of this network"):
        run(replace(merging, layers=SomeLayers(merging.layers, vectors)), tmp_path / "state")
