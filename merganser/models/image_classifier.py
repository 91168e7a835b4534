"""Networks of pictures with a head of the task's own. Shape legend: B pictures, C classes, D features."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Linear

from merganser.errors import InputError
from merganser.models import Change, Inputs
from merganser.models.linear_maps import WithBlocks
from merganser.models.named_module import Maps, NamedModule
from merganser.models.naming import Naming
from merganser.models.pictures import PictureModule


class ImageClassifier(PictureModule, NamedModule, WithBlocks):
    """A network of pictures with a head of the task's own."""

    mlps = (("mlp.fc1", "mlp.fc2"), ("intermediate.dense", "output.dense"), ("mlp.dense1", "mlp.dense2"))

    def __init__(self, module: Any, folder: Path, naming: Naming, heads: Sequence[str]) -> None:
        """Take a module as it was built, the folder of its image processor, and the names of modules that are heads."""
        super().__init__(module, naming)
        self.folder, self.heads = folder, tuple(f"{name}." for name in heads)
        parts = dict(module.named_modules())
        inside = [part for name in heads if name in parts for part in parts[name].modules()]
        self._heads = [part for part in inside if isinstance(part, Linear)]
        if not self._heads:
            raise InputError(f"{folder}: {type(module).__name__} has no linear head called {' or '.join(heads[:2])}")

    def head_parameters(self) -> frozenset[str]:
        """Name the loaded parameters of the head."""
        own = (name for name, _ in self.module.named_parameters())
        return frozenset(self.stored_name(name) for name in own if name.startswith(self.heads))

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """In the block, give the head the result of `change` on the features (B, D)."""
        return self._only_head().register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))

    def _features(self, inputs: Inputs) -> Tensor:
        return self._passed(self._only_head(), inputs)[0]

    def _only_head(self) -> Linear:
        """Return the head; raise InputError for a network with two."""
        if len(self._heads) > 1:
            what = "scores by two heads, which see different features"
            raise InputError(f"{self.folder}: {self.naming.architecture} {what}; no router and no surgery knows which")
        return self._heads[0]

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(pixel_values=self._normalised(inputs)).logits
        return logits

    def _weights(self) -> Maps:
        """Return all weights except the head's."""
        head = self.head_parameters()
        return {name: value for name, value in super()._weights().items() if self.stored_name(name) not in head}
