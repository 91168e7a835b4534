"""Networks of texts: tokenizer, padding, and batches of texts with the same logits as alone.

FNet mixes all tokens and RWKV reads them one after another: neither uses an attention mask, so padding changes their
outputs. This is measured on the loaded network, and such networks get smaller batches without padding.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import Embedding, Module
from transformers import AutoTokenizer, GenerationConfig

from merganser.errors import InputError, quoting
from merganser.models import Inputs
from merganser.models.named_module import NamedModule
from merganser.models.naming import Naming

Batching = Literal["padded", "equal", "single"]  # texts of any length, of one length, one text
Encode = Callable[[Sequence[str], int], Inputs]  # of texts and their most tokens
Result = TypeVar("Result")
SHORT, LONG = 3, 12  # words of the two texts of a probe
MASK = "attention_mask"
MOST_TOKENS, NEW_TOKENS = 16, 3  # of a probe, and of what a language model adds to it
# Of the largest output. Rounding alone makes at most 2e-6 of it in float32, padding that is seen at least 1e-2.
TOLERANCE, OF_HALVES = 1e-4, {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def ordinary_tokens(tokenizer: Any) -> list[int]:
    """Return tokens from all parts of a vocabulary that are not special."""
    step = max(1, len(tokenizer) // LONG)
    return [token for token in range(0, len(tokenizer), step) if token not in tokenizer.all_special_ids]


def probes(tokenizer: Any) -> list[str]:
    """Write a short and a long text of a tokenizer's own words.

    >>> from tests.tiny_transformers import tokenizer
    >>> probes(tokenizer())
    ['the a cat', 'the a cat dog sat ran on mat yes no red dark']
    """
    return [
        str(tokenizer.decode(ordinary_tokens(tokenizer)[:count], skip_special_tokens=True)) for count in (SHORT, LONG)
    ]


def measure_batching(
    score: Callable[[Inputs], Tensor], encode: Encode, texts: Sequence[str], dtype: torch.dtype
) -> Batching | None:
    """Find the largest batches in which a short and a long text have the same logits as alone; None for NaN.

    `dtype`: of the network's parameters, which sets the tolerance for rounding.
    """
    batch = encode(texts, MOST_TOKENS)
    lengths = batch[MASK].sum(dim=1)
    alone = torch.cat([score(encode([text], MOST_TOKENS)) for text in texts])
    if not alone.isfinite().all():
        return None
    if lengths[0] < lengths[1] and is_alike(score(batch), alone, dtype):
        return "padded"
    cut = [encode([text], int(lengths[0])) for text in texts]
    if {one["input_ids"].shape for one in cut} != {cut[0]["input_ids"].shape}:
        return "single"
    together = score({name: torch.cat([one[name] for one in cut]) for name in cut[0]})
    return "equal" if is_alike(together, torch.cat([score(one) for one in cut]), dtype) else "single"


def is_alike(together: Tensor, alone: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether outputs (B, ...) of a batch and of its texts alone differ by rounding only."""
    tolerance = OF_HALVES.get(dtype, TOLERANCE)
    return torch.allclose(together, alone, rtol=0, atol=tolerance * float(alone.abs().max()))


def in_groups(inputs: Inputs, run: Callable[[Inputs], Iterable[Result]], batching: Batching) -> list[Result]:
    """Run texts in batches without padding, of one length or of one text; return the results in order."""
    lengths = inputs[MASK].sum(dim=1)
    groups = lengths if batching == "equal" else torch.arange(len(lengths), device=lengths.device)
    by_row: dict[int, Result] = {}
    for group in groups.unique():
        rows = (groups == group).nonzero()[:, 0]
        results = run({name: values[rows] for name, values in inputs.items()})
        by_row.update(zip(rows.tolist(), results, strict=True))
    return [by_row[row] for row in range(len(lengths))]


POSITIONS = re.compile(r"(?!.*(vis|image|audio))(.*\.)?(\w*position\w*|pos_\w+|wpe)")  # their table, of texts alone


def positions_of(module: Module) -> int | None:
    """Return the longest text in tokens by a network's learned table of positions; None without one."""
    tables = [
        part for name, part in module.named_modules() if isinstance(part, Embedding) and POSITIONS.fullmatch(name)
    ]
    before = [(0 if part.padding_idx is None else part.padding_idx + 1) + getattr(part, "offset", 0) for part in tables]
    usable = [part.num_embeddings - first for part, first in zip(tables, before, strict=True)]
    said = getattr(module.config, "max_position_embeddings", None)
    return min([*usable, *([said] if isinstance(said, int) and said > 0 else [])]) if usable else None


VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # without any, transformers makes one of no words


class TextModule(NamedModule):
    """A module with the tokenizer of its folder; `_run` scores a batch."""

    _settings: GenerationConfig | None = None  # of a network that generates
    batching: Batching | None = None  # in which batches texts are scored as they are alone; None: not yet measured

    def __init__(self, module: Any, folder: Path, naming: Naming, side: Literal["left", "right"] = "right") -> None:
        """Take a module as it was built; its texts are padded and cut on one side."""
        super().__init__(module, naming)
        self.positions = positions_of(module)
        self.tokenizer = open_tokenizer(folder, module.config, side)
        if MASK not in self.tokenizer.model_input_names:  # as of FNet, whose layers take none: padding is cut off by it
            self.tokenizer.model_input_names = [*self.tokenizer.model_input_names, MASK]

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters of a model; raise InputError naming a missing, unknown or misshapen one."""
        super().load(parameters)
        if self.batching is None:
            self.batching = self._measured()

    @torch.inference_mode()
    def _measured(self) -> Batching | None:
        """Measure in which batches texts have the same logits as alone; without a cache if transformers' own fails.

        It fails for a RecurrentGemma without an attention layer.
        """
        dtype, texts = next(self.module.parameters()).dtype, probes(self.tokenizer)
        try:
            return measure_batching(self._probed, self.encode, texts, dtype)
        except Exception:  # whatever the architecture raises; the second try says it, if it is not the cache
            for part in (self.module.config, self.module.config.get_text_config(), self._settings):
                if part is not None:
                    part.use_cache = False
        with quoting(f"{self.naming.where}: {self.naming.architecture} cannot score a text"):
            return measure_batching(self._probed, self.encode, texts, dtype)

    def encode(self, texts: Sequence[str] | Sequence[tuple[str, str]], max_length: int) -> dict[str, Tensor]:
        """Tokenise texts, or pairs of texts, padded to the longest; longer ones are cut to `max_length` tokens.

        Raises InputError if the network has no position for a token.
        """
        columns = list(zip(*texts, strict=True)) if texts and not isinstance(texts[0], str) else [texts]
        how = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
        return self.within_positions(self.tokenizer(*map(list, columns), **how))

    def within_positions(self, encoded: Inputs) -> dict[str, Tensor]:
        """Return tokenised texts; raise InputError if the network has no position for a token."""
        tokens = encoded["input_ids"].shape[1]
        if self.positions is not None and tokens > self.positions:
            has = f"a text has {tokens} tokens, and the network positions for {self.positions}"
            raise InputError(f"{self.naming.where}: {has}; set data.max_length to {self.positions} or less")
        return dict(encoded)

    def _batched(self, run: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        """Run a batch (B, ...), in parts if padding or other texts change a text's logits."""
        if self.batching in ("padded", None):
            return run(inputs)
        return torch.stack(in_groups(inputs, run, self.batching))

    def _probed(self, inputs: Inputs) -> Tensor:
        """Return outputs (B, ...) that show whether texts in a batch have the same logits as alone."""
        return self._run(inputs)


def open_tokenizer(folder: Path, config: Any, side: Literal["left", "right"] = "right", **options: Any) -> Any:
    """Open the tokenizer of a folder, which pads and cuts texts on one side; `options`: its own options.

    It and the configuration pad with one token: the tokenizer's own, else the configuration's, else the one that
    ends a text. Raises InputError if there is no tokenizer, or no such token.
    """
    if not any(file for pattern in VOCABULARIES for file in folder.glob(pattern)):
        raise InputError(f"{folder}: no tokenizer.json nor another vocabulary; the checkpoint's folder must hold one")
    with quoting(f"{folder}: transformers cannot make the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _padding(tokenizer, config.pad_token_id)
    if tokenizer.pad_token_id is None:
        raise InputError(f"{folder}: there is no padding token, which batches need; set base.pad_token_id")
    config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = tokenizer.truncation_side = side
    return tokenizer


def _padding(tokenizer: Any, configured: int | None) -> str | None:
    usable = configured is not None and 0 <= configured < len(tokenizer)
    token: str | None = tokenizer.convert_ids_to_tokens(configured) if usable else tokenizer.eos_token
    return token


def ready(inputs: Inputs, device: torch.device) -> dict[str, Tensor]:
    """Move a batch to a device without columns that are all padding: (B, L) each."""
    used = inputs[MASK].any(dim=0).nonzero()
    start, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return {name: value[:, start:stop].to(device, torch.long) for name, value in inputs.items()}
