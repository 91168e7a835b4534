"""Random numbers as a generator of torch draws them, in a tenth of the time: for numbers that are drawn by billions."""

import numpy as np
from torch import Tensor

from merganser.linalg import loops

State = tuple[np.ndarray, int]  # the Mersenne Twister's words, and which of them comes next


class Uniform:
    """The float32 numbers that `torch.rand` draws by a generator on the CPU with this seed.

    >>> import torch
    >>> drawn = torch.empty(3)
    >>> Uniform(7).draw(drawn)
    >>> torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(7)))
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.begin()

    def begin(self) -> None:
        """Begin at the first number."""
        twister = np.random.MT19937()
        twister._legacy_seeding(self._seed & 0xFFFFFFFF)  # as torch does: from the seed's lower half
        self._words, self._next = twister.state["state"]["key"].astype(np.uint32), loops.TWISTED

    def draw(self, numbers: Tensor) -> None:
        """Write the next numbers into a contiguous tensor."""
        self._next = loops.uniform(self._words, self._next, numbers.view(-1).numpy())

    def state(self) -> State:
        """Return what `restore` takes."""
        return self._words.copy(), self._next

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self._words, self._next = state[0].copy(), state[1]
