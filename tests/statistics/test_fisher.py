"""Diagonal Fisher information: whole expectations, draws, and what is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merganser.statistics.kinds.fisher import Score, fishers, write_fishers
from merganser.statistics.sampling import Sample, draw
from tests.statistics.samples import clip_sample, prepared_in, score_of, text_sample

SEEDS = 2000


def test_drawn_labels_estimate_the_information_of_a_linear_map(tmp_path: Path) -> None:
    """F is the mean of (H^T (diag p - p p^T) H)_ii x_j^2."""
    generator = torch.Generator().manual_seed(0)
    head, w, x = (torch.randn(shape, generator=generator) for shape in ((4, 3), (3, 5), (SEEDS, 5)))
    sample = draw(prepared_in(tmp_path / "x", "regression", {"x": x}, {}), SEEDS, 0, "task")
    found = fishers(lambda given, rows: x[list(rows)] @ given["w"].T @ head.T, sample, {"w": w})["w"].double()
    shares = torch.softmax((x @ w.T @ head.T).double(), dim=1)
    spread = torch.diag_embed(shares) - shares.unsqueeze(2) * shares.unsqueeze(1)
    of_each = (
        torch.einsum("ki,nkl,li->ni", head.double(), spread, head.double()).unsqueeze(2) * x.double().unsqueeze(1) ** 2
    )
    expected = of_each.mean(0)
    assert ((found - expected).abs() < 0.15 * expected).all()
    assert (found - expected).abs().max() > 0


def enumerated(score: Score, sample: Sample, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the whole expectation over labels, a backward pass for each."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    for number in sample.numbers:
        chances = torch.log_softmax(score(leaves, [number])[0], dim=0)
        for chance in chances:
            found = torch.autograd.grad(chance, list(leaves.values()), retain_graph=True)
            for total, gradient in zip(sums.values(), found, strict=True):
                total += chance.detach().exp() * gradient**2 / len(sample)
    return sums


def test_the_mean_over_draws_is_the_whole_expectation(tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path, examples=3)
    weights, score = (
        {name: parameters[name] for name in ("visual.proj", "visual.ln_post.bias")},
        score_of(network, sample),
    )
    drawn = [fishers(score, replace(sample, seed=seed), weights) for seed in range(20)]
    for name, expected in enumerated(score, sample, weights).items():
        mean = torch.stack([each[name] for each in drawn]).mean(0)
        assert (mean - expected).norm() < 0.25 * expected.norm()


def test_one_examples_squared_gradients_are_not_mixed_with_anothers(tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path, examples=4)
    weights = {"visual.conv1.weight": parameters["visual.conv1.weight"]}
    alone = [
        fishers(score_of(network, sample), replace(sample, numbers=(number,)), weights) for number in sample.numbers
    ]
    together = fishers(score_of(network, sample), sample, weights)["visual.conv1.weight"]
    torch.testing.assert_close(together, sum(each["visual.conv1.weight"] for each in alone) / 4)


def test_outputs_that_are_no_class_are_not_drawn(tmp_path: Path) -> None:
    network, sample = text_sample(tmp_path, "bert", masked=[1])
    weights = {"classifier.weight": network.module.get_parameter("classifier.weight").detach()}
    found = fishers(score_of(network, sample), sample, weights)["classifier.weight"]
    assert not found[1].any()
    assert found[0].any()
    torch.testing.assert_close(found[0], found[2])  # of two classes, the gradients are opposite


def test_what_no_output_depends_on_has_none(tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path, examples=2)
    assert not fishers(score_of(network, sample), sample, {"text_projection": parameters["text_projection"]})[
        "text_projection"
    ].any()


@pytest.mark.parametrize("budget", [1, 2**14])
def test_passes_and_a_new_start_change_no_byte(budget: int, tmp_path: Path) -> None:
    network, parameters, sample = clip_sample(tmp_path, examples=3)
    score = score_of(network, sample)
    sizes = {name: value.numel() for name, value in parameters.items() if name.startswith("visual.")}

    def write(folder: str, budget: int) -> tuple[dict[str, str], int]:
        read, out = parameters.__getitem__, tmp_path / folder / "fisher"
        return write_fishers(score, sample, sizes, read, lambda name, value: {name: value}, out, "origin", budget)

    files, done = write("one", 2**30)
    assert done == len(sizes)
    write("many", budget)
    for name in list(files)[::2]:
        (tmp_path / "many/fisher" / files[name]).unlink()
    assert write("many", budget) == (files, len(list(files)[::2]))
    one, many = ({p.name: p.read_bytes() for p in (tmp_path / f / "fisher").iterdir()} for f in ("one", "many"))
    assert one == many


def test_the_information_of_a_stack_is_written_matrix_by_matrix(tmp_path: Path) -> None:
    """The network has one parameter, and what is merged are its matrices."""
    generator = torch.Generator().manual_seed(0)
    stack, x = torch.randn(2, 3, 5, generator=generator), torch.randn(8, 5, generator=generator)
    sample = draw(prepared_in(tmp_path / "x", "regression", {"x": x}, {}), 8, 0, "task")

    def score(given: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        return x[list(rows)] @ (given["experts"][0] + 2 * given["experts"][1]).T

    def shown(name: str, information: Tensor) -> dict[str, Tensor]:
        return {f"{name}[{number}]": matrix for number, matrix in enumerate(information)}

    sizes = {f"experts[{number}]": 15 for number in range(2)}
    files, done = write_fishers(score, sample, sizes, {"experts": stack}.__getitem__, shown, tmp_path / "fisher", "o")
    assert done == 2
    one, two = (load_file(tmp_path / "fisher" / files[name])["fisher"] for name in sizes)
    torch.testing.assert_close(4 * one, two)
    assert write_fishers(score, sample, sizes, {}.__getitem__, shown, tmp_path / "fisher", "o") == (files, 0)
