"""Whether a network scores a text in a batch as it does alone, and smaller batches for one that does not.

FNet mixes all tokens and RWKV reads them one after another: neither looks at an attention mask, so that padding changes
their outputs. It is measured on the network itself, once it has parameters, and not listed by name.
Shape legend: B texts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Batching = Literal["padded", "equal", "single"]  # texts of any length, of one length, one text
Result = TypeVar("Result")
SHORT, LONG = 3, 12  # words of the two texts of a probe
MOST_TOKENS, NEW_TOKENS = 16, 3  # of a probe, and of what a language model adds to it
# Of the largest output. Rounding alone makes at most 1e-6 of it in float32, padding that is seen at least 1e-2.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def probes(tokenizer: Any) -> list[str]:
    """Write a short and a long text of a tokenizer's own words.

    >>> from tests.tiny_transformers import tokenizer
    >>> probes(tokenizer())
    ['the cat sat', 'the cat sat on yes red light image']
    """
    step = max(1, len(tokenizer) // LONG)
    words = [token for token in range(0, len(tokenizer), step) if token not in tokenizer.all_special_ids]
    return [str(tokenizer.decode(words[:count], skip_special_tokens=True)) for count in (SHORT, LONG)]


def measured(
    score: Callable[[Inputs], Tensor], encode: Callable[[list[str]], Inputs], tokenizer: Any
) -> Batching | None:
    """Find the largest batches whose texts are scored as they are one by one; None if no output is finite."""
    short, long = probes(tokenizer)
    words = short.split()
    for batching, texts in (("padded", [short, long]), ("equal", [short, " ".join(reversed(words))])):
        batch = encode(texts)
        lengths = batch["attention_mask"].sum(dim=1).unique()
        alone = torch.cat([score(encode([text])) for text in texts])
        if not alone.isfinite().all():
            return None
        if len(lengths) == (2 if batching == "padded" else 1) and is_alike(score(batch), alone):
            return batching
    return "single"


def is_alike(together: Tensor, alone: Tensor) -> bool:
    """Tell whether outputs (B, ...) of a batch and of its texts one by one differ by rounding alone."""
    largest = float(alone.abs().max())
    return torch.allclose(together, alone, rtol=0, atol=TOLERANCE[alone.dtype] * largest)


def in_groups(inputs: Inputs, run: Callable[[Inputs], Sequence[Result]], batching: Batching) -> list[Result]:
    """Run texts in batches without padding, of one length or of one text; give the results in order."""
    lengths = inputs["attention_mask"].sum(dim=1)
    groups = lengths if batching == "equal" else torch.arange(len(lengths), device=lengths.device)
    found: dict[int, Result] = {}
    for group in groups.unique():
        rows = (groups == group).nonzero()[:, 0]
        results = run({name: values[rows] for name, values in inputs.items()})
        found.update(zip(rows.tolist(), results, strict=True))
    return [found[row] for row in range(len(lengths))]
