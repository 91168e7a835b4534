from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from merganser.methods.sftm import RIDGE
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, PerTask, counted, each_task, largest, models_of
from tests.laws.references import svd as known
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_shape, numpy_of


def trimmed(delta: Array, density: float) -> Array:
    """Keep the largest entries."""
    kept = largest(np.abs(delta).ravel(), counted(density, delta.size))
    return np.where(kept.reshape(delta.shape), delta, 0)


def triples(deltas: Array, density: float | Sequence[float]) -> list[tuple[Array, float, Array]]:
    """List the singular triples of all trimmed deltas."""
    found = []
    shares = density if isinstance(density, Sequence) else [density] * len(deltas)
    for delta, share in zip(deltas, shares, strict=True):
        u, s, vh = known(trimmed(delta, share))
        found += [(u[:, k], s[k], vh[k]) for k in range(len(s))]
    return found


def superposition(deltas: Array, density: float | Sequence[float]) -> Array:
    """SFTM by equation 3, with alpha * sigma as the unknown and the ridge on the diagonal."""
    parts = triples(deltas, density)
    system = np.array([[(u @ u_) * (v @ v_) for u_, _, v_ in parts] for u, _, v in parts])
    strengths = np.linalg.solve(system + RIDGE * np.eye(len(parts)), np.array([s for _, s, _ in parts]))
    return sum((b * np.outer(u, v) for b, (u, _, v) in zip(strengths, parts, strict=True)), np.zeros_like(deltas[0]))


CASES = [{"density": 1.0}]


def reference(layers: Sequence[Given], *, superpose: str, density: PerTask, solve: bool, scaling: float) -> list[Array]:
    """Superpose matrices' trimmed features; average trimmed norms, add up other vectors, trimmed."""
    merged, shares = [], each_task(density, layers)
    for layer in layers:
        if superpose == "models" and layer.kind == "matrix":
            (found,) = reference(
                [layer._replace(deltas=models_of(layer))],
                superpose="deltas",
                density=density,
                solve=solve,
                scaling=scaling,
            )
            merged.append(found - layer.base)
            continue
        own = [trimmed(delta, share) for delta, share in zip(layer.deltas, shares, strict=True)]
        if layer.kind == "matrix":
            merged.append(scaling * (superposition(layer.deltas, shares) if solve else np.sum(own, axis=0)))
        elif ".ln_" in layer.name:
            merged.append(np.mean(own, axis=0))
        else:
            merged.append(scaling * np.sum(own, axis=0))
    return merged


@every_shape
@both_dtypes
def test_one_task_with_scaling_one_gives_the_trimmed_matrix(shape: tuple[int, int], dtype: torch.dtype) -> None:
    deltas = drawn(1, shape, dtype)
    (found,) = merged("sftm", matrices(list(deltas)), density=0.5, scaling=1.0)
    assert_close(found, trimmed(numpy_of(deltas)[0], 0.5), 2 * RIDGE)


@both_dtypes
def test_the_same_task_twice_gives_it_once(dtype: torch.dtype) -> None:
    delta = drawn(1, (12, 9), dtype)
    (found,) = merged("sftm", matrices(list(delta.repeat(2, 1, 1))), density=1.0, scaling=1.0)
    assert_close(found, numpy_of(delta)[0])


@pytest.mark.parametrize("tasks", [2, 4])
def test_every_kept_feature_keeps_its_singular_value(tasks: int) -> None:
    deltas = drawn(tasks, (16, 12))
    parts = triples(numpy_of(deltas), 0.4)
    system = np.array([[(u @ u_) * (v @ v_) for u_, _, v_ in parts] for u, _, v in parts])
    smallest = np.linalg.eigvalsh(system)[0]
    assert smallest > 0.05  # the law holds away from zero
    (found,) = merged("sftm", matrices(list(deltas)), density=0.4, scaling=1.0)
    sigmas = np.array([s for _, s, _ in parts])
    errors = [float(u @ numpy_of(found) @ v) - s for u, s, v in parts]  # type: ignore[arg-type]
    assert np.linalg.norm(errors) <= RIDGE / smallest * np.linalg.norm(sigmas)


@both_dtypes
def test_a_task_and_its_double_do_not_blow_up(dtype: torch.dtype) -> None:
    delta = drawn(1, (12, 9), dtype)
    (found,) = merged("sftm", matrices([delta[0], 2 * delta[0]]), density=1.0, scaling=1.0)
    assert_close(found, 1.5 * numpy_of(delta)[0])


@both_dtypes
def test_models_that_are_the_same_superpose_to_themselves(dtype: torch.dtype) -> None:
    base, delta = drawn(1, (12, 9), dtype, seed=1)[0], drawn(1, (12, 9), dtype)[0]
    layer = replace(matrices([delta, delta]), base=base)
    (found,) = merged("sftm", layer, superpose="models", density=1.0, scaling=1.0)
    assert_close(found, numpy_of(delta), 1e-5)


@both_dtypes
def test_rounding_errors_of_models_of_low_rank_are_no_features(dtype: torch.dtype) -> None:
    models = drawn(3, (12, 9), dtype, rank=2)
    layer = replace(matrices(list(models)), base=torch.zeros_like(models[0]))
    found, wanted = (
        merged("sftm", layer, superpose=each, density=1.0, scaling=1.0)[0] for each in ("models", "deltas")
    )
    assert isinstance(wanted, torch.Tensor)
    assert_close(found, numpy_of(wanted))


def test_vectors_are_trimmed_and_added_but_norms_trimmed_and_averaged() -> None:
    deltas = [torch.tensor([5.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, -4.0, 3.0, 0.0])]

    def found(name: str) -> list[float]:
        return merged("sftm", vectors(deltas, name), density=0.5, scaling=0.25)[0].tolist()  # type: ignore[union-attr]

    assert found("blocks.0.mlp.bias") == found("positional_embedding") == [1.25, -1.0, 0.75, 0.5]
    norms = ("blocks.0.ln_1.bias", "norm.weight", "encoder.layer.0.output.LayerNorm.bias")
    assert [found(name) for name in norms] == [[2.5, -2.0, 1.5, 1.0]] * 3


def test_sftm_by_hand() -> None:
    # The features 4 e1 e1^T and 2 e1 (e1 + e2)^T / sqrt(2) overlap by c = 1 / sqrt(2): b1 + c b2 = 4 and c b1 + b2 = 2
    # give b1 = 8 - 2 sqrt(2) and b2 = 4 - 4 sqrt(2).
    root = 2**0.5
    deltas = [torch.tensor([[4.0, 0.0]], dtype=torch.float64), torch.tensor([[root, root]], dtype=torch.float64)]
    expected = (8 - 2 * root) * np.array([[1.0, 0.0]]) + (4 - 4 * root) * np.array([[1.0, 1.0]]) / root
    assert_close(merged("sftm", matrices(deltas), density=1.0, scaling=1.0)[0], expected)
