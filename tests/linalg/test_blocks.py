"""Taking a layer in blocks is a matter of memory: what comes out does not depend on where the blocks end."""

import pytest
import torch

from merganser.linalg import blocks as operator
from merganser.linalg.blocks import blocks, by_blocks, join_pieces
from tests.laws.samples import network
from tests.laws.test_registry_properties import choices, methods_that, models


@methods_that(lambda method: method.cost == "elementwise")
def test_the_size_of_the_blocks_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = network(3)
    for values in choices(name):
        whole = models(name, layers, values)
        for size in (1, 20, 48):
            monkeypatch.setattr(operator, "BLOCK", size)
            for found, expected in zip(models(name, layers, values), whole, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        monkeypatch.undo()


def test_blocks_are_whole_units_in_reading_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "BLOCK", 10)
    stack = torch.arange(36.0).view(2, 6, 3)
    assert [block.shape[1] for block in blocks(stack)] == [5, 5, 5, 3]
    assert [block.shape[1] for block in blocks(stack, unit=3)] == [3] * 6
    assert [block.shape[1] for block in blocks(stack, unit=18)] == [18]
    assert torch.equal(torch.cat(blocks(stack, 3), dim=1), stack.flatten(1))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (4, 0)])
@pytest.mark.parametrize("size", [1, 6, 1000])
def test_what_blocks_give_has_the_layers_shape(
    shape: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "BLOCK", size)
    stack = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    expected = stack.double().sum(0)
    assert torch.equal(by_blocks(lambda block: block.double().sum(0), stack, torch.float64), expected)
    pieces = (block.double().sum(0) for block in blocks(stack))
    assert torch.equal(join_pieces(pieces, shape, torch.float64, stack.device), expected)
