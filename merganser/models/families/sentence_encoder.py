"""Text encoders saved by sentence-transformers: BERT, RoBERTa, MPNet and others of transformers.

The network ends at the embeddings, which are its logits. A text's tokens are pooled to one vector as
sentence-transformers does, by mode, with padding on either side: sums are in float32 or wider, results in the states'
dtype. Shape legend: B texts, L tokens, D features.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.sentence_files import read_sentence_encoder
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.families.encoder import LEFT_OUT
from merganser.models.families.encoder import MODEL_TYPES as ENCODERS
from merganser.models.naming import naming_of
from merganser.models.texts import MASK, TextModule, ready

CONFIG = "modules.json"  # beside config.json
TRUNKS_OF = "encoder"
MODEL_TYPES = modeling_auto.MODEL_MAPPING_NAMES.keys() & ENCODERS
LIBRARY = "sentence-transformers"
PIPELINES = {
    "Model": "sentence-similarity",
    "LM": "sentence-similarity",
    "ForPreTraining": "sentence-similarity",
}  # a classifier with these files beside it is none
Pool = Callable[[Tensor, Tensor], Tensor]  # of states (B, L, D) and what is no padding (B, L), vectors (B, D)


def pooled(states: Tensor, mask: Tensor, modes: Sequence[str]) -> Tensor:
    """Pool states (B, L, D) in each mode, and concatenate the M modes' vectors: (B, M D).

    >>> states, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
    >>> pooled(states, mask, ["cls", "max", "mean", "lasttoken"])
    tensor([[1., 3., 2., 3.]])
    """
    return torch.cat([MODES[mode](states, mask) for mode in modes], dim=1)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.int().argmax(dim=1))


def _last(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1))


def _at(states: Tensor, places: Tensor) -> Tensor:
    return states[torch.arange(len(states), device=states.device), places]


def _largest(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(~mask.bool()[..., None], float("-inf")).amax(dim=1)


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return _weighted(states, mask, mask.sum(dim=1))


def _mean_by_root(states: Tensor, mask: Tensor) -> Tensor:
    return _weighted(states, mask, mask.sum(dim=1).sqrt())


def _mean_by_place(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.cumsum(dim=1) * mask
    return _weighted(states, weights, weights.sum(dim=1))


def _weighted(states: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Sum states with weights (B, L), and divide by a total per text (B,)."""
    exact = torch.promote_types(states.dtype, torch.float32)
    sums = (states.to(exact) * weights.to(exact)[..., None]).sum(dim=1)
    return (sums / total.to(exact)[:, None]).to(states.dtype)


MODES: Mapping[str, Pool] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_place,
    "lasttoken": _last,
}


class SentenceNetwork(TextModule):
    """An encoder with its pooling."""

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer and the pooling of its folder."""
        super().__init__(module, folder, naming_of(module, folder, LEFT_OUT))
        self._how = read_sentence_encoder(folder)
        self.tokenizer.truncation_side = self.tokenizer.init_kwargs.get("truncation_side", "right")  # its own
        if self._how.lower_case:
            _put_into_lower_case(self.tokenizer)

    @property
    def longest(self) -> int:
        """Return the longest text in tokens that sentence-transformers gives the model."""
        if self._how.longest is not None:
            return self._how.longest
        positions = getattr(self.module.config, "max_position_embeddings", -1)  # -1: any number of tokens
        longest: int = self.tokenizer.model_max_length
        return longest if positions in (-1, None) else min(longest, positions)

    def encode(self, texts: Sequence[str] | Sequence[tuple[str, str]], max_length: int) -> dict[str, Tensor]:
        """Tokenise texts; longer ones are cut to `max_length` tokens, or to the model's own limit."""
        return super().encode(texts, min(max_length, self.longest))

    def sentence_embeddings(self, inputs: Inputs) -> Tensor:
        """Embed texts, for inference: (B, D)."""
        return self.logits(inputs)

    def _features(self, inputs: Inputs) -> Tensor:
        return self._run(inputs)

    def _run(self, inputs: Inputs) -> Tensor:
        given = ready(inputs, self.device)
        pooled_states = pooled(self.module(**given).last_hidden_state, given[MASK], self._how.pooling)
        return normalize(pooled_states, dim=1) if self._how.normalized else pooled_states


def _put_into_lower_case(tokenizer: Any) -> None:
    """Have a tokenizer lower-case texts first, as sentence-transformers' `do_lower_case` does."""
    if not tokenizer.is_fast:
        tokenizer.do_lower_case = True
        return
    own: Any = tokenizer.backend_tokenizer.normalizer
    several = isinstance(own, normalizers.Sequence)
    steps = list(own) if several else [own] if own is not None else []
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


def make(config: Any, **how: Any) -> Any:
    """Build an encoder, without the unused pooler if its architecture allows that."""
    made: Any = modeling_auto.MODEL_MAPPING[type(config)]
    without = {"add_pooling_layer": False} if "add_pooling_layer" in signature(made).parameters else {}
    return AutoModel.from_config(config, **without, **how)


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> SentenceNetwork:
    """Build the encoder that a folder describes, without weights."""
    config = read_family_config("sentence_encoder", folder)
    return SentenceNetwork(build(make, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is no sentence encoder, or lacks a parameter of one, by its files and headers."""
    config = read_family_config("sentence_encoder", folder)
    read_sentence_encoder(folder)
    check_parameter_names(make, config, folder, checkpoint, left_out=LEFT_OUT)
