"""The search of a stream, by compiled loops and by torch; what of the balance it leaves undecided; samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.inputs.deltas import extract, open_deltas
from merganser.inputs.layers import Layer, LayerSource, MappedLayers, Sample, sample_of, weighted
from merganser.inputs.model_deltas import open_models
from merganser.linalg import blocks, search
from merganser.linalg.counts import count_of
from merganser.linalg.search import Found, InMemory, find
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.small_models import write_models

RUN, EVERY = 2, 3
DTYPES = [torch.float32, torch.float64]
FEW = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0])  # so that draws and equal magnitudes are many
NUMBERS = st.one_of(FEW, st.floats(-1e3, 1e3, width=32))


@contextmanager
def by_torch() -> Iterator[None]:
    """Let torch do what the compiled loops do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LOOPED", ())
        yield


def stacks(values: list[float], dtype: torch.dtype) -> list[Tensor]:
    """Make two pieces of three tasks' vectors."""
    rows = [values, values[::-1], [-value for value in values[1:] + values[:1]]]
    return list(torch.tensor(rows, dtype=dtype).split(max(1, len(values) // 2), dim=1))


def plain(found: Found) -> tuple[object, ...]:
    """Take apart what can be compared: not the columns, whose choice is free."""
    return found.patterns, found.ties, found.equal


@given(
    values=st.lists(NUMBERS, min_size=1, max_size=60),
    density=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    limit=st.sampled_from([0, 10, search.LIMIT]),
)
@settings(deadline=None, max_examples=200)
def test_the_loops_and_torch_find_the_same(values: list[float], density: float, dtype: torch.dtype, limit: int) -> None:
    stream = InMemory(lambda: stacks(values, dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "LIMIT", limit)
        looped = find(stream, partial(count_of, density), balance=True)
        with by_torch():
            assert plain(find(stream, partial(count_of, density), balance=True)) == plain(looped)


def test_more_entries_than_room_was_made_for_are_found() -> None:
    stack = 1 + torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0)) * 1e-4  # all in a few bins
    found = find(InMemory(lambda: [stack]), partial(count_of, 0.5), balance=True)
    assert found.undecided[0] is not None
    assert found.undecided[0].columns.shape[1] > 4096
    levels = torch.tensor(found.patterns, dtype=torch.int32).view(torch.float32)
    assert (stack >= levels.unsqueeze(1)).sum(1).tolist() == [
        10_000 + equal - ties for equal, ties in zip(found.equal[0], found.ties, strict=True)
    ]


def assert_samples(source: LayerSource, names: list[str]) -> None:
    """Compare what is read as a sample with what is picked of the whole layer."""
    for name in names:
        expected: Sample = sample_of(source.layer(name), RUN, EVERY)
        found = source.sample(name, RUN, EVERY)
        assert torch.equal(found.deltas, expected.deltas), name
        assert found.size == expected.size == prod(source.shapes[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sample_is_what_is_picked_of_the_whole_layer(dtype: torch.dtype, tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", dtype=dtype)
    base = open_checkpoint(models["base"])
    tuned = {task: open_checkpoint(path) for task, path in models.items() if task != "base"}
    (tmp_path / "deltas").mkdir()
    for task, checkpoint in tuned.items():
        extract(base, checkpoint, ParameterRules(), task, tmp_path / "deltas" / f"{task}.safetensors")
    for source in (open_models(base, tuned, ParameterRules()), open_deltas(tmp_path / "deltas", list(tuned))):
        assert_samples(source, list(source.names))
        assert_samples(MappedLayers(source, lambda layer: weighted(layer, (2.0,) * len(tuned))), list(source.names))


def test_a_sample_of_an_adapter_alone_and_beside_a_whole_model_is_picked_too(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_base(tmp_path / "whole")
    write_adapter(tmp_path / "adapter", tmp_path / "base")
    base = open_checkpoint(tmp_path / "base")
    models = {"adapter": open_model(tmp_path / "adapter"), "whole": open_checkpoint(tmp_path / "whole")}
    for tuned in ({"adapter": models["adapter"]}, models):
        source = open_models(base, tuned, ParameterRules())
        assert_samples(source, list(source.names))


def test_a_method_reads_all_once_beside_the_sample_and_twice_where_the_deltas_are_weighted(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    tuned = {task: open_checkpoint(path) for task, path in models.items() if task != "base"}
    read = []

    def note(layer: Layer) -> Layer:
        read.append(layer.name)
        return layer

    source = open_models(open_checkpoint(models["base"]), tuned, ParameterRules())
    layers = MappedLayers(source, note, keeps_deltas=True)
    ties = registry.get("ties")
    for own, times in (({}, 1), ({"coefficients": {"task0": 2.0}}, 2)):
        read.clear()
        ties.bind(ties.validate("ties", own), layers)
        assert sorted(read) == sorted(times * layers.names)
