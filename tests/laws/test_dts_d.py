import torch

from merganser.overlays.parts import Parts, tensors_of
from tests.laws.dts import reference as reference
from tests.laws.layers import merged, vectors
from tests.laws.spectra import decomposed, drawn


def test_dts_d_codes_differences_as_dts_t_codes_task_vectors() -> None:
    differences = decomposed(drawn(3, (12, 9), torch.float32)), vectors([torch.tensor([1.0, 1, 5, -2, -9])] * 3)
    for by_difference, by_task in zip(merged("dts_d", *differences), merged("dts_t", *differences), strict=True):
        assert isinstance(by_difference, Parts)
        assert isinstance(by_task, Parts)
        assert list(by_difference.tasks) == list(by_task.tasks)
        for task, part in by_difference.tasks.items():
            pairs = zip(tensors_of(part).values(), tensors_of(by_task.tasks[task]).values(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_the_toy_vector_is_reproduced() -> None:
    (parts,) = merged("dts_d", vectors([torch.tensor([1.0, 1, 5, -2, -9])]))
    assert isinstance(parts, Parts)
    assert parts.tasks["task0"].delta((5,)).tolist() == [1, 1, 5, -2, -9]
