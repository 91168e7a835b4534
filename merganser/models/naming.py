"""Which parameter of a module a checkpoint means by a name.

A checkpoint may leave out or add the prefix of the inner model, spell LayerNorm as TensorFlow did, and hold what the
module does without: buffers that are computed today, heads of the pretraining.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, is_buffer
from merganser.checkpoints.tensors import Spec
from merganser.errors import InputError

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Naming:
    """A module's names and shapes, and what else a checkpoint for it may hold."""

    where: Path  # the folder, for messages
    architecture: str
    shapes: Mapping[str, tuple[int, ...]]
    prefix: str  # of the inner model, which a name may lack or have too much
    left_out: tuple[str, ...]  # patterns of what a checkpoint may hold and the module does not
    ignored: tuple[str, ...]  # the same as regular expressions, from transformers
    config: str = CONFIG  # the file that describes the architecture

    def own(self, name: str, shape: Sequence[int]) -> str | None:
        """Return the module's name of a checkpoint's parameter, None for one that it does without.

        Raises InputError where it is unknown, or of another shape.
        """
        spelled = name
        for old, new in OLD_NAMES.items():
            spelled = spelled.replace(old, new)
        for candidate in (spelled, f"{self.prefix}.{spelled}", spelled.removeprefix(f"{self.prefix}.")):
            if candidate in self.shapes:
                expected = self.shapes[candidate]
                if list(shape) != list(expected):
                    raise InputError(
                        f"{self.where}: {name} has shape {list(shape)}, {self.config} says {list(expected)}"
                    )
                return candidate
        known = _matches(name, self.left_out) or any(re.search(rule, name) for rule in self.ignored)
        if known or is_buffer(name, Spec("F32", tuple(shape))):
            return None
        raise InputError(
            f"{self.where}: parameter {name} is not in the architecture of {self.config} ({self.architecture})"
        )

    def check_missing(self, given: Iterable[str], may_lack: Sequence[str] = ()) -> None:
        """Refuse a checkpoint that lacks a parameter of the module, but for those of the patterns in `may_lack`."""
        present = set(given)
        missing = [name for name in self.shapes if name not in present and not _matches(name, may_lack)]
        if missing:
            raise InputError(f"{self.where}: parameter {min(missing)} of the architecture is missing in the checkpoint")


def naming_of(
    module: Any, folder: Path, left_out: Sequence[str] = (), prefix: str | None = None, config: str = CONFIG
) -> Naming:
    """Describe a module; where no prefix is given it is one of transformers, with that of its own inner model."""
    return Naming(
        where=folder,
        architecture=type(module).__name__,
        shapes={name: tuple(value.shape) for name, value in module.state_dict().items()},
        prefix=module.base_model_prefix if prefix is None else prefix,
        left_out=tuple(left_out),
        ignored=tuple(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()),
        config=config,
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
