"""The overlay file: what is written per task comes back, part by part, and makes the task's model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser.errors import InputError
from merganser.linalg.decompositions import Factors
from merganser.overlays.files import (
    FILE,
    UNIFIED,
    OverlayFile,
    OverlayWriter,
    open_overlays,
    task_model,
    write_task_model,
)
from merganser.overlays.index import KINDS
from merganser.overlays.parts import (
    Binary,
    Dense,
    LowRank,
    Masked,
    Part,
    Parts,
    Signs,
    bytes_of,
    pack_bits,
    signs,
    sparse,
    tensors_of,
    unpack_bits,
)
from merganser.overlays.thresholded import threshold, threshold_factors
from tests.laws.layers import delta_of
from tests.support import steady

SHAPES: dict[str, tuple[int, ...]] = {
    "conv.weight": (5, 3, 2, 2),
    "embedding": (4, 3),
    "head.weight": (6, 8),
    "ln.bias": (7,),
    "masked.weight": (3, 3),
    "proj.weight": (5, 3, 2, 2),
    "scale": (),
    "signed.weight": (3, 5),
    "switched.bias": (9,),
}
TASKS = {"a": 0, "b": 10}  # and the seed of their parts


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unified(name: str) -> Tensor | None:
    return noise(*SHAPES[name], seed=99) if name in ("embedding", "masked.weight") else None


def parts(seed: int = 0) -> dict[str, Part]:
    """Make one part of every kind, of every dtype: float32, float16 and packed bytes; the counts depend on the seed."""
    rank, u, v = 2 + (seed > 0), noise(5, 3, seed=seed), noise(3, 12, seed=seed + 1)
    embedding, bias = noise(4, 3, seed=seed), noise(9, seed=seed)
    return {
        "conv.weight": threshold_factors(Factors(u, noise(3, seed=seed).abs(), v)),
        "embedding": sparse(embedding, embedding > 0),
        "head.weight": LowRank(
            noise(6, rank, seed=seed).half(), noise(rank, seed=seed).abs(), noise(rank, 8, seed=seed).half()
        ),
        "ln.bias": threshold(noise(7, seed=seed)),
        "masked.weight": Masked(pack_bits(noise(3, 3, seed=seed) > 0), noise(seed=seed)),
        "scale": Dense(noise(seed=seed)),
        "proj.weight": threshold_factors(Factors(u, noise(3, seed=seed).abs(), v), groups="vector"),
        "signed.weight": Binary(pack_bits(noise(3, 5, seed=seed) < 0), noise(seed=seed).abs()),
        "switched.bias": signs(bias, bias.abs() > 0.3, torch.tensor([1.5, -2.5])),
    }


def all_parts(name: str) -> Parts:
    return Parts({task: parts(seed)[name] for task, seed in TASKS.items()}, unified(name))


def write(folder: Path, **changes: Any) -> Path:
    """Write the parts of two tasks, parameter by parameter as a merge does; task c has none."""
    folder.mkdir(exist_ok=True)
    with OverlayWriter(folder, ("a", "b", "c")) as writer:
        for name, shape in SHAPES.items():
            writer.add(name, Parts(**{**vars(all_parts(name)), **changes}), shape)
    return folder / FILE


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_the_parts_are_of_every_kind() -> None:
    assert {part.kind for part in parts().values()} == set(KINDS)


@pytest.mark.parametrize("name", SHAPES)
def test_every_part_comes_back_as_it_was_written(written: Path, name: str) -> None:
    overlays = OverlayFile(written)
    for task in TASKS:
        delta = overlays.delta(task, name, SHAPES[name])
        assert delta is not None
        assert delta.dtype == torch.float32
        assert torch.equal(delta, delta_of(all_parts(name), task, SHAPES[name]))


def test_a_task_has_one_tensor_per_dtype_in_a_plain_safetensors_file(written: Path) -> None:
    with safe_open(written, framework="pt") as file:
        assert set(file.keys()) == {f"{task}/{dtype}" for task in TASKS for dtype in ("F32", "F16", "U8")}
        halves = parts()["head.weight"]
        assert isinstance(halves, LowRank)
        assert torch.equal(file.get_tensor("a/F16"), torch.cat([halves.u.flatten(), halves.vh.flatten()]))


def test_the_file_is_little_larger_than_the_parts(written: Path) -> None:
    inside = sum(
        tensor.nbytes for seed in TASKS.values() for p in parts(seed).values() for tensor in tensors_of(p).values()
    )
    names = sum(map(len, SHAPES))
    assert inside < written.stat().st_size < inside + names + 60 * len(SHAPES) + 120 * 6


def test_a_task_without_a_part_adds_nothing(written: Path) -> None:
    overlays = OverlayFile(written)
    assert overlays.tasks == ("a", "b", "c")
    assert overlays.delta("c", "scale", ()) is None
    assert overlays.delta("a", "no.such.parameter", (2,)) is None


def test_what_tasks_share_is_stored_once_beside_the_parts(written: Path) -> None:
    shared = load_file(written.with_name(UNIFIED))
    assert shared.keys() == {"embedding", "masked.weight"}
    for name, tensor in shared.items():
        assert torch.equal(tensor, unified(name) if unified(name) is not None else torch.empty(0))


def test_nothing_is_stored_beside_parts_that_share_nothing(tmp_path: Path) -> None:
    with OverlayWriter(tmp_path, ("a",)) as writer:
        writer.add("scale", Parts({"a": Dense(noise())}), ())
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_mixture_is_the_weighted_sum_of_other_tasks_deltas(tmp_path: Path) -> None:
    overlays = OverlayFile(write(tmp_path, mixtures={"a": {"b": 1.0}, "c": {"a": 0.25, "b": 0.75}}))
    plain = OverlayFile(write(tmp_path / "plain"))
    for name, shape in SHAPES.items():
        first, second = (plain.delta(task, name, shape) for task in TASKS)
        assert first is not None
        assert second is not None
        torch.testing.assert_close(overlays.delta("c", name, shape), 0.25 * first + 0.75 * second)
        assert torch.equal(overlays.delta("a", name, shape) + 0, second)
        assert torch.equal(overlays.delta("b", name, shape) + 0, second)


def test_a_method_that_stored_nothing_leaves_an_empty_file_of_its_tasks(tmp_path: Path) -> None:
    with OverlayWriter(tmp_path, ("a", "b")):
        pass
    overlays = OverlayFile(tmp_path / FILE)
    assert overlays.tasks == ("a", "b")
    assert overlays.delta("a", "scale", ()) is None


def test_the_same_parts_make_the_same_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "one").read_bytes() == write(tmp_path / "two").read_bytes()


def test_a_failed_merge_leaves_no_file(tmp_path: Path) -> None:
    def stopped_merge() -> None:
        with OverlayWriter(tmp_path, ("a",)) as writer:
            writer.add("scale", Parts({"a": Dense(noise())}), ())
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped_merge()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (Parts({"a": Dense(noise(3))}), "needs"),
        (Parts({"a": LowRank(noise(2, 1), noise(1), noise(1, 3))}), "needs"),
        (Parts({"a": Dense(noise(2)), "b": threshold(noise(2))}), "different forms"),
        (Parts({"a": Dense(noise(2)), "b": Dense(noise(2).half())}), "different forms"),
        (Parts({"a": Dense(noise(2))}, mixtures={"b": {"a": 1.0}}), "mixtures differ"),
    ],
)
def test_parts_that_the_index_could_not_tell_are_a_mistake_of_the_method(
    tmp_path: Path, parts: Parts, complaint: str
) -> None:
    with OverlayWriter(tmp_path, ("a", "b")) as writer:
        writer.add("first", Parts({"a": Dense(noise(2))}, mixtures={"b": {"a": 0.5}}), (2,))
        with pytest.raises(ValueError, match=complaint):
            writer.add("second", parts, (2,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tasks_model_is_the_shared_one_plus_its_parts_rounded_once(written: Path, dtype: torch.dtype) -> None:
    shared = {name: noise(*shape, seed=3).to(dtype) for name, shape in SHAPES.items()} | {"frozen": noise(2).to(dtype)}
    save_file(shared, written.parent / "model.safetensors")
    model = dict(task_model(written.parent, "b"))
    assert list(model) == sorted(shared)
    for name, tensor in model.items():
        delta = delta_of(all_parts(name), "b", SHAPES[name]) if name in SHAPES else torch.zeros(2)
        assert torch.equal(tensor, (shared[name].float() + delta).to(dtype))
    assert all(torch.equal(tensor, shared[name]) for name, tensor in task_model(written.parent, "c"))
    write_task_model(written.parent, "b", written.parent / "own/b.safetensors")
    own = load_file(written.parent / "own/b.safetensors")
    assert all(torch.equal(own[name], tensor) for name, tensor in model.items())


def test_a_task_that_was_not_merged_is_refused_by_name(written: Path) -> None:
    save_file({"scale": noise()}, written.parent / "model.safetensors")
    with pytest.raises(InputError, match=r"no parts for the task 'd'; it has a, b, c"):
        list(task_model(written.parent, "d"))


def test_a_model_without_overlays_is_every_tasks_model(tmp_path: Path) -> None:
    save_file({"scale": noise(3)}, tmp_path / "model.safetensors")
    assert open_overlays(tmp_path) is None
    ((name, tensor),) = task_model(tmp_path, "anything")
    assert name == "scale"
    assert torch.equal(tensor, noise(3))


def reindexed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write an overlay file again with another index."""
    with safe_open(path, framework="pt") as file:
        index = json.loads(file.metadata()["merganser"])
    change(index)
    save_file(load_file(path), path, {"merganser": json.dumps(index)})
    return path


def test_an_index_written_by_another_hand_is_read(written: Path) -> None:
    delta = OverlayFile(reindexed(written, lambda index: None)).delta("b", "ln.bias", (7,))
    assert delta is not None
    assert torch.equal(delta, parts(10)["ln.bias"].delta((7,)))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("forms"),
        lambda index: index.update(tasks="a"),
        lambda index: index["forms"].__setitem__(0, ["unheard_of", "F32", [3]]),
        lambda index: index["forms"].__setitem__(0, ["dense", "F32", [-3]]),
        lambda index: index["forms"].__setitem__(0, ["low_rank", "F32", [3]]),
        lambda index: index["forms"].__setitem__(0, ["dense", "F31", [3]]),
        lambda index: index["forms"].__setitem__(0, ["dense", "F32", ["3"]]),
        lambda index: index.update(parameters=[1, 2]),
        lambda index: index["parameters"].update({"scale": [0, 1]}),
        lambda index: index["parameters"].update({"scale": [0, 1, 1, -1]}),
        lambda index: index["parameters"].update({"scale": [99, 1, 1, 0]}),
        lambda index: index.update(mixtures={"a": {"z": 1.0}}),
        lambda index: index.update(mixtures={"a": {"b": float("nan")}}),
        lambda index: index.update(mixtures={"a": {"b": True}}),
        lambda index: index.update(mixtures={"a": {"b": 10**30}}),
        lambda index: index.update(mixtures={"a": "b"}),
    ],
)
def test_an_index_that_is_none_is_refused(written: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(InputError, match="not an overlay file"):
        OverlayFile(reindexed(written, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["parameters"].pop("scale"),
        lambda index: index["parameters"]["head.weight"].__setitem__(1, 10**12),
        lambda index: index["parameters"]["scale"].__setitem__(3, 1),
        lambda index: index["forms"][0].__setitem__(2, [5, 5000]),
        lambda index: index["forms"][0].__setitem__(1, "F64"),
    ],
)
def test_an_index_that_does_not_add_up_to_the_file_is_refused(
    written: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(InputError, match="its index does not match its tensors"):
        OverlayFile(reindexed(written, change))


@pytest.mark.parametrize("metadata", [None, {"merganser": "{}"}, {"merganser": "not json"}, {"merganser": "[]"}])
def test_a_file_that_holds_no_overlays_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a/F32": noise(3)}, tmp_path / FILE, metadata)
    with pytest.raises(InputError, match="not an overlay file"):
        OverlayFile(tmp_path / FILE)


@pytest.mark.parametrize("shape", [(8, 6), (48,), (6, 8, 1, 2), ()])
def test_parts_of_another_shape_are_refused_by_name(written: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"head\.weight is not stored with shape"):
        OverlayFile(written).delta("a", "head.weight", shape)


@pytest.mark.parametrize("name", ["embedding", "switched.bias"])
def test_a_mask_that_contradicts_the_values_is_refused(written: Path, name: str) -> None:
    tensors = load_file(written)
    tensors["a/U8"] = torch.full_like(tensors["a/U8"], 255)
    with safe_open(written, framework="pt") as file:
        save_file(tensors, written, file.metadata())
    with pytest.raises(InputError, match=rf"{name} of a: its mask keeps"):
        OverlayFile(written).delta("a", name, SHAPES[name])


def test_a_missing_or_strange_shared_delta_is_refused(written: Path) -> None:
    written.with_name(UNIFIED).unlink()
    with pytest.raises(InputError, match=r"masked\.weight of a: it masks a shared delta, which is missing"):
        OverlayFile(written).delta("a", "masked.weight", (3, 3))
    save_file({"masked.weight": noise(9)}, written.with_name(UNIFIED))
    with pytest.raises(InputError, match=r"masked\.weight is not stored as float32 of shape \[3, 3\]"):
        OverlayFile(written).delta("a", "masked.weight", (3, 3))


def test_a_cut_off_file_is_refused(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated or corrupt"):
        OverlayFile(written)


def test_a_parameters_name_may_have_any_letters(tmp_path: Path) -> None:
    name = 'blocks/0/"weight" \\ é'
    with OverlayWriter(tmp_path, ("one",)) as overlay:
        overlay.add(name, Parts({"one": Dense(torch.ones(2))}), (2,))
    delta = OverlayFile(tmp_path / FILE).delta("one", name, (2,))
    assert delta is not None
    assert torch.equal(delta, torch.ones(2))


@steady(100)
@given(st.lists(st.booleans(), max_size=40))
def test_bits_come_back_from_an_eighth_of_the_bytes(marks: list[bool]) -> None:
    packed = pack_bits(torch.tensor(marks, dtype=torch.bool))
    assert len(packed) == bytes_of(len(marks)) == (len(marks) + 7) // 8
    assert unpack_bits(packed, len(marks)).tolist() == marks


def test_bits_are_packed_from_the_lowest_up() -> None:
    assert pack_bits(torch.tensor([1, 0, 1, 0, 0, 0, 0, 0, 1])).tolist() == [5, 1]


def test_masks_by_hand() -> None:
    shared, marks = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[True, False], [False, True]])
    assert Masked(pack_bits(marks), torch.tensor(2.0)).delta((2, 2), shared).tolist() == [[2, 0], [0, 8]]
    own = torch.tensor([[5.0, 6.0], [7.0, -8.0]])
    assert sparse(own, marks).delta((2, 2)).tolist() == [[5, 0], [0, -8]]
    assert sparse(own, marks).delta((2, 2), shared).tolist() == [[5, 2], [3, -8]]
    switched = signs(own, marks, torch.tensor([0.5, -1.5]))
    assert isinstance(switched, Signs)
    assert switched.delta((2, 2)).tolist() == [[0.5, 0], [0, -1.5]]
