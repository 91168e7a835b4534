"""The mean of checkpoints, which takes the base's place where there is none."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.small_models import write_models


def mean_of(folder: Path, **states: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write the states as models, average them and read the mean."""
    for name, state in states.items():
        (folder / name).mkdir()
        save_tensors(folder / name / "model.safetensors", state)
    (folder / "mean").mkdir()
    write_mean({name: folder / name for name in states}, folder / "mean")
    mean = open_checkpoint(folder / "mean")
    return {name: mean.read(name) for name in mean.names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_mean_is_rounded_once_to_the_models_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = mean_of(tmp_path, a={"w": weights[0]}, b={"w": weights[1]}, c={"w": weights[2]})
    assert torch.equal(found["w"], weights.double().mean(0).to(dtype))


def test_heads_of_other_sizes_have_no_part_in_the_mean(tmp_path: Path) -> None:
    for name, size in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        state = {"w": torch.full((2,), float(size)), "classifier.weight": torch.ones(size, 2)}
        save_tensors(tmp_path / name / "model.safetensors", state)
    (tmp_path / "mean").mkdir()
    models = {name: tmp_path / name for name in ("a", "b")}
    with pytest.raises(InputError, match=r"classifier\.weight has shape"):
        write_mean(models, tmp_path / "mean")
    write_mean(models, tmp_path / "mean", ["classifier.*"])
    mean = open_checkpoint(tmp_path / "mean")
    assert (mean.names, mean.read("w").tolist()) == (("w",), [2.5, 2.5])


def test_the_mean_of_one_model_said_three_times_is_that_model(tmp_path: Path) -> None:
    state = {"w": torch.randn(40, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(mean_of(tmp_path, a=state, b=state, c=state)["w"], state["w"])


def test_a_value_that_is_no_number_is_blamed_on_the_model_that_holds_it(tmp_path: Path) -> None:
    for value in ("nan", "inf"):
        folder = tmp_path / value
        folder.mkdir()
        bad = {"w": torch.tensor([1.0, float(value)])}
        with pytest.raises(InputError, match=r"^b: w holds NaN or infinity; such a checkpoint cannot be merged"):
            mean_of(folder, a={"w": torch.ones(2)}, b=bad, c={"w": torch.ones(2)})
    mask = {"mask": torch.tensor([0.0, float("-inf")])}
    assert torch.equal(mean_of(tmp_path, a=mask, b=mask)["mask"], mask["mask"])


def test_what_only_some_models_have_is_taken_from_those(tmp_path: Path) -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
    found = mean_of(tmp_path, a={"w": x}, b={"w": y, "text": x}, c={"w": y, "text": y, "logit": y})
    torch.testing.assert_close(found["w"], (x + 2 * y) / 3)
    assert torch.equal(found["text"], torch.tensor([2.0, 4.0]))
    assert torch.equal(found["logit"], y)


def test_what_is_no_number_with_a_point_is_the_first_models(tmp_path: Path) -> None:
    found = mean_of(tmp_path, b={"steps": torch.tensor(8)}, a={"steps": torch.tensor(3)})
    assert found["steps"] == 3  # of the first by name, in whatever order they were given


def test_the_order_of_the_models_changes_nothing(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    del models["base"]
    files = []
    for name, order in (("one", list(models)), ("two", list(reversed(models)))):
        (tmp_path / name).mkdir()
        write_mean({task: models[task] for task in order}, tmp_path / name)
        files.append((tmp_path / name / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_the_configuration_is_the_first_models(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        save_tensors(tmp_path / name / "model.safetensors", {"w": torch.ones(2)})
        (tmp_path / name / "config.json").write_text(f'{{"model": "{name}"}}')
    (tmp_path / "mean").mkdir()
    write_mean({name: tmp_path / name for name in ("b", "a")}, tmp_path / "mean")
    assert (tmp_path / "mean/config.json").read_text() == '{"model": "a"}'


def test_models_of_two_shapes_have_no_mean(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b: w has shape \[3\], in a it has \[2\]"):
        mean_of(tmp_path, a={"w": torch.zeros(2)}, b={"w": torch.zeros(3)})


def test_an_adapter_has_no_mean(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "lora", tmp_path / "base")
    (tmp_path / "mean").mkdir()
    with pytest.raises(InputError, match=r"one: .*lora is an adapter, and the mean needs whole models; give the base"):
        write_mean({"one": tmp_path / "lora"}, tmp_path / "mean")
