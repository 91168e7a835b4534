"""SMILE's gates and experts: its laws against plain float64, and every family's network with them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.at_run_time import running
from merganser.at_run_time.additions import gates
from merganser.at_run_time.additions.gates import applied, chosen
from merganser.checkpoints.kinds import bias_of
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.models import EmbedsTexts, Network, TakesImages, open_network
from merganser.overlays import LowRank, OverlayWriter, Parts, task_model
from tests.laws.layers import factored, merged
from tests.merges import merge_checkpoints
from tests.tiny_clip import write_clip
from tests.tiny_transformers import FAMILIES, state_of, write_model


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def experts(*deltas: Tensor, k: int = 4) -> list[LowRank | None]:
    """Give what the method keeps of each task matrix."""
    (parts,) = merged("smile", factored(list(deltas)), k=k, k_gate=1)
    assert isinstance(parts, Parts)
    found = [parts.tasks.get(f"task{t}") for t in range(len(deltas))]
    assert all(part is None or isinstance(part, LowRank) for part in found)
    return found  # type: ignore[return-value]


TASKS = [drawn(6, 8, seed=1), drawn(6, 8, seed=2), drawn(6, 8, seed=3)]
ROWS = drawn(20, 8)


def test_each_row_takes_the_expert_it_projects_onto_most() -> None:
    made, rows = experts(*TASKS), ROWS.double().numpy()
    expected = np.zeros((20, 6))
    svds = [np.linalg.svd(task.double().numpy(), full_matrices=False) for task in TASKS]
    for number, row in enumerate(rows):
        norms = [np.linalg.norm(vh[:2] @ row) for _, _, vh in svds]
        u, s, vh = svds[int(np.argmax(norms))]
        expected[number] = u[:, :4] @ (s[:4] * (vh[:4] @ row))
    choice = chosen(ROWS, made, k_gate=2)
    assert set(choice.tolist()) == {0, 1, 2}
    found = applied(ROWS, made, choice)
    assert found is not None
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_true_routing_at_full_rank_is_the_tasks_own_layer() -> None:
    found = applied(ROWS, experts(*TASKS, k=6), torch.full((20,), 2))
    torch.testing.assert_close(found, ROWS @ TASKS[2].T, rtol=1e-4, atol=1e-5)


def test_identical_experts_are_that_expert() -> None:
    made = experts(TASKS[0], TASKS[0].clone())
    found = applied(ROWS, made, chosen(ROWS, made, k_gate=2))
    torch.testing.assert_close(found, applied(ROWS, made[:1], torch.zeros(20)), rtol=1e-5, atol=1e-6)


def test_the_choice_does_not_depend_on_the_inputs_scale_nor_on_a_basis_of_the_gates() -> None:
    made = experts(*TASKS)
    choice = chosen(ROWS, made, k_gate=3)
    assert torch.equal(chosen(100 * ROWS, made, k_gate=3), choice)
    rotation = torch.linalg.qr(drawn(3, 3, seed=9))[0]
    turned = []
    for expert in made:
        assert expert is not None
        turned.append(LowRank(expert.u, expert.s, torch.cat([rotation @ expert.vh[:3], expert.vh[3:]])))
    assert torch.equal(chosen(ROWS, turned, k_gate=3), choice)


def test_a_task_that_changed_nothing_has_no_expert_and_is_never_chosen() -> None:
    made = experts(torch.zeros(6, 8), TASKS[0])
    assert made[0] is None
    assert chosen(ROWS, made, k_gate=2).tolist() == [1] * 20
    assert applied(ROWS, [None, None], torch.zeros(20)) is None


@pytest.mark.parametrize("name", ["visual.proj", "vision_model.embeddings.position_embedding.weight"])
def test_projections_and_embeddings_stay_the_bases(name: str) -> None:
    assert merged("smile", factored(TASKS, name=name)) == [Parts()]


def written(folder: Path, network: Network, count: int) -> list[str]:
    """Put experts of random task matrices, one of rank one a linear map and task, beside a base."""
    base = open_for_merging(folder)
    specs = {name: base.spec(name).shape for name in network.linear_maps()}
    linear = [name for name, shape in specs.items() if len(shape) == 2 and not name.endswith("proj")]
    names = [name for name in linear if name.startswith("visual.")] or linear  # of open_clip the image tower
    tasks = tuple(f"task{number}" for number in range(count))
    with OverlayWriter(folder, tasks) as writer:
        for number, name in enumerate(names):
            (parts,) = merged(
                "smile", factored([0.3 * drawn(*specs[name], seed=number + t) for t in range(count)]), k=3, k_gate=2
            )
            assert isinstance(parts, Parts)
            writer.add(name, parts, specs[name])
    (folder / gates.FILE).write_text('{"k_gate": 2}')
    return names


def inputs_of(network: Any, family: str) -> dict[str, Tensor]:
    if family in ("open_clip", "clip"):
        network.head([["a red image ."], ["a dark image ."]])
    if isinstance(network, TakesImages):
        return {"pixels": torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)}
    found: dict[str, Tensor] = network.encode(["the cat sat on the mat .", "a dog"], 16)
    return found


@pytest.mark.parametrize("kind", ["open_clip", "clip", "bert", "gpt2", "llama, tied", "vit"])
def test_where_there_is_one_task_routing_gives_its_own_model(kind: str, tmp_path: Path) -> None:
    family = FAMILIES.get(kind, "open_clip")
    if family == "open_clip":
        write_clip(tmp_path)
    else:
        write_model(tmp_path, kind, None if family == "clip" else 3)
    network = open_network(family, tmp_path, outputs=None if "clip" in family else 3)
    network.load(task_model(tmp_path, "task0"))  # no parts yet: the base
    assert written(tmp_path, network, 1)
    plain = network.logits(inputs := inputs_of(network, family))
    with running(network, tmp_path) as (_, tokens):
        found = network.logits(_again(network, inputs))
    assert tokens.accuracy("task0") == 1
    network.load(task_model(tmp_path, "task0"))
    expected = network.logits(_again(network, inputs))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found, plain, atol=1e-2)


@pytest.mark.parametrize("kind", ["open_clip", "bert", "gpt2"])
def test_a_model_whose_linear_maps_and_biases_were_tuned_comes_back_at_full_rank(kind: str, tmp_path: Path) -> None:
    family, base, task = FAMILIES.get(kind, "open_clip"), tmp_path / "base", tmp_path / "task"
    if family == "open_clip":
        write_clip(base)
    else:
        write_model(base, kind, 3)
    network: Any = open_network(family, base, outputs=None if family == "open_clip" else 3)
    weights, state = open_checkpoint(base), {}
    maps = {name for name in network.linear_maps() if len(weights.spec(name).shape) == 2 and not name.endswith("proj")}
    maps = {name for name in maps if name.startswith("visual.")} or maps  # of open_clip the image tower
    biases = {bias_of(name) for name in maps} & set(weights.names)
    assert biases
    for seed, name in enumerate(weights.names):
        value = weights.read(name)
        state[name] = value + 0.3 * drawn(*value.shape, seed=seed) if name in maps | biases else value
    shutil.copytree(base, task)
    next(task.glob("*.safetensors")).unlink()
    save_tensors(task / "model.safetensors", state)
    merge_checkpoints("smile", {"k": 64, "k_gate": 1}, base, {"a": task}, tmp_path / "out", device="cpu")
    network.load(task_model(base, "a"))
    inputs = inputs_of(network, family)
    plain = network.logits(inputs)
    with running(network, tmp_path / "out") as (_, tokens):
        found = network.logits(_again(network, inputs))
    assert tokens.accuracy("a") == 1
    network.load(task_model(task, "a"))
    own = network.logits(_again(network, inputs))
    torch.testing.assert_close(found, own, rtol=2e-4, atol=2e-4)
    assert (found - own).norm() < 1e-3 * (plain - own).norm()


@pytest.mark.parametrize("k_gate", [3, 4])
def test_gates_that_choose_by_rounding_alone_are_refused(k_gate: int, tmp_path: Path) -> None:
    models = {name: tmp_path / name for name in ("base", "a", "b")}
    for seed, folder in enumerate(models.values()):
        folder.mkdir()
        save_tensors(folder / "model.safetensors", {"fc.weight": drawn(6, 4, seed=seed)})
    base = models.pop("base")
    if k_gate == 3:
        merge_checkpoints("smile", {"k": 4, "k_gate": 3}, base, models, tmp_path / "out", device="cpu")
        return
    with pytest.raises(InputError, match=r"k_gate: fc\.weight has 4 inputs, .* tie; give k_gate at most 3, or leave "):
        merge_checkpoints("smile", {"k": 4, "k_gate": 4}, base, models, tmp_path / "out", device="cpu")


def _again(network: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make the class head once more: loading a model lost it."""
    if isinstance(network, EmbedsTexts):
        network.head([["a red image ."], ["a dark image ."]])
    return inputs


def test_each_token_goes_its_own_way_whatever_is_beside_it(tmp_path: Path) -> None:
    write_clip(tmp_path)
    network = open_network("open_clip", tmp_path)
    network.load(task_model(tmp_path, "task0"))
    names = written(tmp_path, network, 3)
    inputs = inputs_of(network, "open_clip")
    with running(network, tmp_path) as (_, tokens):
        together = network.logits(_again(network, inputs))
        alone = torch.cat([network.logits({"pixels": image[None]}) for image in inputs["pixels"]])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)
    assert sum(tokens.accuracy(f"task{t}") for t in range(3)) == pytest.approx(1)
    assert int(tokens.counts.sum()) == 2 * 3 * 5 * len(names)  # twice three images of five tokens
    assert (tokens.counts > 0).all()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_padding_is_counted_as_no_token(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path, kind, 3)
    network: Any = open_network(FAMILIES[kind], tmp_path, outputs=3)
    network.load(task_model(tmp_path, "task0"))
    written(tmp_path, network, 3)
    counts = []
    for batch in (["the cat sat on the mat .", "a dog"], ["the cat sat on the mat ."], ["a dog"]):
        with running(network, tmp_path) as (_, tokens):
            network.logits(network.encode(batch, 16))
        counts.append(tokens.counts)
    assert torch.equal(counts[0], counts[1] + counts[2])
    assert network.batching == "padded"


def test_gates_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gates.json").write_text('{"k_gate": 0}')
    with pytest.raises(InputError, match=r"gates\.json: does not describe the gates \(k_gate is 0\); merge again"):
        gates.read_gates(tmp_path)


@pytest.mark.parametrize(("kind", "tuned"), [("ResNetForImageClassification", "convolution.weight"), ("vit", "bias")])
def test_a_merge_without_experts_is_refused_and_not_scored_as_the_base(kind: str, tuned: str, tmp_path: Path) -> None:
    base, task = tmp_path / "base", tmp_path / "task"
    write_model(base, kind, 3)
    shutil.copytree(base, task)
    state = {name: value + 1 if name.endswith(tuned) else value for name, value in state_of(base).items()}
    save_tensors(task / "model.safetensors", state)
    with pytest.raises(InputError, match="no task changes a linear map that is merged"):
        merge_checkpoints("smile", {"k": 2, "k_gate": 1}, base, {"a": task}, tmp_path / "out", device="cpu")
