"""The overlay file: what is written per task comes back, part by part, and makes the task's model."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from merganser.errors import InputError
from merganser.layers import Factors
from merganser.overlays.files import FILE, KINDS, OverlayFile, OverlayWriter, open_overlays, task_model
from merganser.overlays.parts import Dense, LowRank, Part, Parts, tensors_of
from merganser.overlays.thresholded import threshold, threshold_factors

SHAPES: dict[str, tuple[int, ...]] = {"head.weight": (6, 8), "conv.weight": (5, 3, 2, 2), "ln.bias": (7,), "scale": ()}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parts(seed: int = 0) -> dict[str, Part]:
    """Make one part of every kind, of every dtype: float32, float16 and packed bytes."""
    u, v = noise(5, 3, seed=seed), noise(3, 12, seed=seed + 1)
    return {
        "head.weight": LowRank(noise(6, 2, seed=seed).half(), noise(2, seed=seed).abs(), noise(2, 8, seed=seed).half()),
        "conv.weight": threshold_factors(Factors(u, noise(3, seed=seed).abs(), v)),
        "ln.bias": threshold(noise(7, seed=seed)),
        "scale": Dense(noise(seed=seed)),
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Write the parts of two tasks, interleaved as a merge writes them; task c has none."""
    path = tmp_path / FILE
    with OverlayWriter(tmp_path, ("a", "b", "c")) as writer:
        for name in SHAPES:
            writer.add(name, Parts({task: parts(seed)[name] for task, seed in (("a", 0), ("b", 10))}))
    return path


def test_the_parts_are_of_every_kind() -> None:
    assert {part.kind for part in parts().values()} == set(KINDS)


@pytest.mark.parametrize("name", SHAPES)
def test_every_part_comes_back_as_it_was_written(written: Path, name: str) -> None:
    overlays = OverlayFile(written)
    for task, seed in (("a", 0), ("b", 10)):
        delta = overlays.delta(task, name, SHAPES[name])
        assert delta is not None
        assert delta.dtype == torch.float32
        assert torch.equal(delta, parts(seed)[name].delta(SHAPES[name]))


def test_dtypes_are_stored_as_they_are(written: Path) -> None:
    with safe_open(written, framework="pt") as file:
        for field, tensor in tensors_of(parts()["head.weight"]).items():
            assert file.get_tensor(f"a/head.weight/low_rank.{field}").dtype == tensor.dtype
        assert file.get_tensor("a/ln.bias/thresholded.codes").dtype == torch.uint8


def test_the_file_is_little_larger_than_the_parts(written: Path) -> None:
    inside = sum(
        tensor.nbytes for seed in (0, 10) for part in parts(seed).values() for tensor in tensors_of(part).values()
    )
    assert inside < written.stat().st_size < inside + 200 * len(list(OverlayFile(written).file.names)) + 200


def test_a_task_without_a_part_adds_nothing(written: Path) -> None:
    overlays = OverlayFile(written)
    assert overlays.tasks == ("a", "b", "c")
    assert overlays.delta("c", "scale", ()) is None
    assert overlays.delta("a", "no.such.parameter", (2,)) is None


def test_a_method_that_stored_nothing_leaves_an_empty_file_of_its_tasks(tmp_path: Path) -> None:
    with OverlayWriter(tmp_path / FILE, ("a", "b")):
        pass
    overlays = OverlayFile(tmp_path / FILE)
    assert overlays.tasks == ("a", "b")
    assert overlays.delta("a", "scale", ()) is None


def test_the_same_parts_make_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        with OverlayWriter(tmp_path / folder / FILE, ("a",)) as writer:
            for name, part in parts().items():
                writer.add("a", name, part)
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "two" / FILE).read_bytes()


def test_a_failed_merge_leaves_no_file(tmp_path: Path) -> None:
    def stopped_merge() -> None:
        with OverlayWriter(tmp_path / FILE, ("a",)) as writer:
            writer.add("a", "scale", Dense(noise()))
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped_merge()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tasks_model_is_the_shared_one_plus_its_parts(written: Path, dtype: torch.dtype) -> None:
    shared = {name: noise(*shape, seed=3).to(dtype) for name, shape in SHAPES.items()} | {"frozen": noise(2).to(dtype)}
    save_file(shared, written.parent / "model.safetensors")
    model = dict(task_model(written.parent, "b"))
    assert list(model) == sorted(shared)
    for name, tensor in model.items():
        part = parts(10).get(name)
        expected = shared[name] if part is None else (shared[name].float() + part.delta(SHAPES[name])).to(dtype)
        assert torch.equal(tensor, expected)
    assert all(torch.equal(tensor, shared[name]) for name, tensor in task_model(written.parent, "c"))


def test_a_task_that_was_not_merged_is_refused_by_name(written: Path) -> None:
    save_file({"scale": noise()}, written.parent / "model.safetensors")
    with pytest.raises(InputError, match=r"no part for the task 'd'; it has a, b, c"):
        list(task_model(written.parent, "d"))


def test_a_model_without_overlays_is_every_tasks_model(tmp_path: Path) -> None:
    save_file({"scale": noise(3)}, tmp_path / "model.safetensors")
    assert open_overlays(tmp_path) is None
    ((name, tensor),) = task_model(tmp_path, "anything")
    assert name == "scale"
    assert torch.equal(tensor, noise(3))


@pytest.mark.parametrize("metadata", [None, {"merganser": "{}"}, {"merganser": "not json"}])
def test_a_file_that_holds_no_overlays_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a/scale/dense.values": noise(3)}, tmp_path / FILE, metadata)
    with pytest.raises(InputError, match="not an overlay file"):
        OverlayFile(tmp_path / FILE)


@pytest.mark.parametrize("key", ["a/scale/unheard_of.values", "scale"])
def test_an_unknown_part_is_refused(tmp_path: Path, key: str) -> None:
    save_file({key: noise(3)}, tmp_path / FILE, {"merganser": '{"tasks": ["a"]}'})
    with pytest.raises(InputError, match="not an overlay file"):
        OverlayFile(tmp_path / FILE)


def test_a_parameters_name_may_have_a_slash(tmp_path: Path) -> None:
    with OverlayWriter(tmp_path / FILE, ("one",)) as overlay:
        overlay.add("one", "blocks/0/weight", Dense(torch.ones(2)))
    delta = OverlayFile(tmp_path / FILE).delta("one", "blocks/0/weight", (2,))
    assert delta is not None
    assert torch.equal(delta, torch.ones(2))
