"""The format of a merged model: dtypes and shards, by default the base's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.kinds import FLOATS
from merganser.checkpoints.reading import written_as
from merganser.checkpoints.tensors import DTYPES, NAMES_OF_DTYPES, Checkpoint, Spec
from merganser.checkpoints.views import stored_specs
from merganser.checkpoints.writing import shards_like, shards_of
from merganser.errors import InputError

Dtype = Literal["float32", "float16", "bfloat16"]
TORCH: Mapping[Dtype, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CONFIG_KEYS = ("dtype", "torch_dtype")  # transformers' from version 5 on, and before


@dataclass(frozen=True)
class OutputFormat:
    """The dtype of all floating-point parameters, and the bytes per file; by default the base's."""

    dtype: Dtype | None = None
    max_shard_size: int | None = None

    def specs(self, base: Checkpoint) -> dict[str, Spec]:
        """Return the written dtype and shape of each of a base's parameters, in the layout of its file."""
        return {
            name: Spec(NAMES_OF_DTYPES[self.dtype_of(spec.dtype)], spec.shape)
            for name, spec in stored_specs(base).items()
        }

    def shards(self, base: Checkpoint) -> dict[str, str]:
        """Name the shard of each tensor; empty for a single file."""
        if not self.max_shard_size:
            return shards_like(base)
        return shards_of(self.specs(base), self.max_shard_size, written_as(base))

    def dtype_of(self, stored: str) -> torch.dtype:
        """Return the written dtype for a stored one."""
        return TORCH[self.dtype] if self.dtype and stored in FLOATS else DTYPES[stored]

    def held(self, name: str, values: Tensor, stored: str) -> Tensor:
        """Convert values to the written dtype; raise InputError if it cannot represent them."""
        written = values.to(self.dtype_of(stored))
        if written.dtype == torch.float16 and not written.isfinite().all():  # bfloat16 has float32's range
            remedy = "write the merge in a wider dtype (merganser merge --dtype bfloat16 or float32), or scale it down"
            raise InputError(f"{name}: has values beyond float16's largest, 65504; {remedy}")
        return written

    def declare(self, folder: Path) -> None:
        """Write the dtype into a model's configuration if that has one."""
        config = read_config(folder / CONFIG) if self.dtype else None
        if config is None:
            return
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            part.update({key: self.dtype for key in CONFIG_KEYS if isinstance(part.get(key), str)})
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


AS_THE_BASE = OutputFormat()
