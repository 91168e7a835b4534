"""Whether a network scores a text in a batch as it does alone, and smaller batches for one that does not.

FNet mixes all tokens and RWKV reads them one after another: neither looks at an attention mask, so that padding changes
their outputs. It is measured on the network itself, once it has parameters, and not listed by name.
Shape legend: B texts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Batching = Literal["padded", "equal", "single"]  # texts of any length, of one length, one text
Encode = Callable[[Sequence[str], int], Inputs]  # of texts and their most tokens
Result = TypeVar("Result")
SHORT, LONG = 3, 12  # words of the two texts of a probe
MOST_TOKENS, NEW_TOKENS = 16, 3  # of a probe, and of what a language model adds to it
# Of the largest output. Rounding alone makes at most 2e-6 of it in float32, padding that is seen at least 1e-2.
TOLERANCE, OF_HALVES = 1e-4, {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def ordinary_tokens(tokenizer: Any) -> list[int]:
    """Return tokens from all over a vocabulary that are not special."""
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
    """Find the largest batches in which a short and a long text are scored as they are alone; None for NaN.

    `dtype`: of the network's parameters, which says how much rounding may differ.
    """
    batch = encode(texts, MOST_TOKENS)
    lengths = batch["attention_mask"].sum(dim=1)
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
    """Tell whether outputs (B, ...) of a batch and of its texts one by one differ by rounding alone."""
    tolerance = OF_HALVES.get(dtype, TOLERANCE)
    return torch.allclose(together, alone, rtol=0, atol=tolerance * float(alone.abs().max()))


def in_groups(inputs: Inputs, run: Callable[[Inputs], Iterable[Result]], batching: Batching) -> list[Result]:
    """Run texts in batches without padding, of one length or of one text; give the results in order."""
    lengths = inputs["attention_mask"].sum(dim=1)
    groups = lengths if batching == "equal" else torch.arange(len(lengths), device=lengths.device)
    found: dict[int, Result] = {}
    for group in groups.unique():
        rows = (groups == group).nonzero()[:, 0]
        results = run({name: values[rows] for name, values in inputs.items()})
        found.update(zip(rows.tolist(), results, strict=True))
    return [found[row] for row in range(len(lengths))]
