"""The kind of each parameter: a matrix (a linear map), a vector (any other merged parameter) or frozen.

It is decided once, when the deltas are extracted; later stages read it from the deltas' header. For parameters that do
not fit, messages say how to leave them out of the merge.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Literal

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec, parameter_of

Kind = Literal["matrix", "vector"]
MatrixRule = Literal["linear", "any_2d"]

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
CODES = frozenset({"I8", "U8", "I16", "U16", "I32", "U32"})  # of quantised weights: GPTQ, AWQ, bitsandbytes, MXFP4, MLX
NORMS = ("*norm*", "*.ln_*", "ln_*")  # in lower case, as all patterns here
EMBEDDINGS = (
    *("*embed*", "*position*", "*relative_attention_bias*"),
    *("*.wte.weight", "wte.weight", "*.wpe.weight", "wpe.weight"),  # GPT-2's
    *("shared.weight", "*.shared.weight"),  # T5's and BART's
)
# of language models and classifiers: their rows are tokens or classes, as an embedding's are
_HEADS = (
    *("lm_head.weight", "embed_out.weight", "lm_head.decoder.weight", "predictions.decoder.weight", "score.weight"),
    *("classifier.*", "classification_head.*", "qa_outputs.*", "vocab_projector.*", "generator_lm_head.weight"),
    "codebooks_head.weight",
)
HEADS = (*_HEADS, *(f"*.{name}" for name in _HEADS))
# of timm's image classifiers, if a task has its own: other models have maps of these names
IMAGE_HEADS = ("fc.*", "head.weight", "head.bias", "head.fc.*", "head_dist.*")
SPAN_HEADS = ("qa_outputs.*",)  # of models that find answers in texts
# what layers measured of their inputs, and no gradient reached: of batch normalisation
MEASURED = ("*running_mean", "*running_var", "*num_batches_tracked", "*moving_mean", "*moving_variance", "*moving_var")
QUERIES = ("*.query", "*.latents", "*.latent_query")  # learned inputs of an attention that pools, such as CoCa's
NOT_LINEAR = (*EMBEDDINGS, *HEADS, *NORMS, *QUERIES, "*bias")
LINEAR = (
    # maps from an embedding to a wider model: DeBERTa's, ALBERT's, ELECTRA's
    *("*.embed_proj.weight", "*.embedding_hidden_mapping_in.weight", "*embeddings_project.weight"),
    "*.rel_attn.[qkvor]",  # XLNet's, the heads a dimension of their own
)
# of three dimensions: a convolution's own name, also where it is weight-normalised, and the linear maps that share it
KERNELS = ("*weight", "*weight_v", "*weight.original1")
NO_KERNELS = (*EMBEDDINGS, "*bias")  # of four dimensions: a place in a picture has an embedding too (SAM's)
STACKS = ("*expert*", "*moe*", "*_linear.weight", "*_weight")
GATED = (("gate_up_proj", "down_proj"), ("fc1.weight", "fc2.weight"))  # an expert's maps, to twice its width and back
NO_STACKS = ("*conv*", "*a_log", *NOT_LINEAR, *LINEAR)


@dataclass(frozen=True)
class ParameterRules:
    """Which parameters are merged (name patterns) and which of them count as matrices.

    `heads`: patterns of each task's own, which are never merged. `flags`: both were given on the command line.
    `linear`: linear maps by their names, those of a stack each by itself, and convolution kernels.
    `any_2d`: every two-dimensional parameter, and no convolution or stack (what most public code does).
    """

    merged: Sequence[str] = ("*",)
    matrices: MatrixRule = "linear"
    heads: Sequence[str] = ()
    flags: bool = False


def is_head(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a parameter belongs to a task's head."""
    return any(fnmatchcase(parameter_of(name), pattern) for pattern in patterns)


def is_merged(name: str, dtype: str, rules: ParameterRules) -> bool:
    """Tell whether a parameter is merged; others, and all integers, stay the base's."""
    named = is_head(name, rules.merged) and not is_head(name, rules.heads)
    return dtype in FLOATS and named


def is_quantised(name: str, spec: Spec, rules: ParameterRules) -> bool:
    """Tell whether a tensor has quantised weights that would otherwise be merged.

    Indices, such as positions, have 64 bits or one dimension; masks are boolean.
    """
    return spec.dtype in CODES and len(spec.shape) > 1 and is_merged(name, "F32", rules)


def parameter_kind(name: str, shape: Sequence[int], rules: ParameterRules) -> Kind:
    """Tell whether a merged parameter, or one matrix of a stack, is a matrix or a vector."""
    in_stack = parameter_of(name) != name
    if rules.matrices == "any_2d":
        return "matrix" if len(shape) == 2 and not in_stack else "vector"
    if in_stack or (len(shape) == 4 and (_is_like(name, KERNELS) or not _is_like(name, NO_KERNELS))):
        return "matrix"
    if len(shape) == 2:
        linear = _is_like(name, LINEAR) or not _is_like(name, NOT_LINEAR)
    else:
        linear = len(shape) > 2 and (_is_like(name, LINEAR) or (_is_like(name, KERNELS) and not is_head(name, HEADS)))
    return "matrix" if linear else "vector"


def is_linear(name: str, shape: Sequence[int]) -> bool:
    """Tell by its name whether a parameter is a linear map or a kernel; `any_2d` also takes embeddings as matrices.

    >>> is_linear("h.0.mlp.c_fc.weight", (768, 3072)), is_linear("wte.weight", (50257, 768))
    (True, False)
    """
    return parameter_kind(name, shape, ParameterRules()) == "matrix"


def bias_of(weight: str) -> str:
    """Return the name of the bias of a linear map's weight."""
    return f"{weight.removesuffix('weight')}bias"


def is_measured(name: str) -> bool:
    """Tell by its name whether a parameter is a batch-normalisation statistic (mean, variance, count) and no weight."""
    return _is_like(name, MEASURED)


def is_stack(name: str, spec: Spec) -> bool:
    """Tell whether a parameter is a stack of linear maps, such as a layer's experts, and no convolution."""
    if spec.dtype not in FLOATS or len(spec.shape) != 3 or min(spec.shape[1:]) < 2 or _is_like(name, NO_STACKS):
        return False
    return _is_like(name, STACKS) or (spec.shape[0] > 1 and not _is_like(name, KERNELS))


def applied_as_stored(specs: Mapping[str, Spec]) -> set[str]:
    """Name the stacks of gated experts stored as in x out, by their shapes.

    >>> specs = {"up.gate_up_proj": Spec("F32", (2, 16, 24)), "up.down_proj": Spec("F32", (2, 12, 16))}
    >>> sorted(applied_as_stored(specs))
    ['up.down_proj', 'up.gate_up_proj']
    """
    names = set()
    for first, second in GATED:
        for name in (name for name in specs if name.endswith(first)):
            back = name.removesuffix(first) + second
            up, down = (specs[each].shape[1:] if each in specs else () for each in (name, back))
            if len(up) == len(down) == 2 and up[0] == down[1] and up[1] == 2 * down[0]:
                names |= {name, back}
    return names


def is_norm(name: str) -> bool:
    """Tell by its name whether a parameter belongs to a normalisation."""
    return _is_like(name, NORMS)


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def as_matrix(tensor: Tensor) -> Tensor:
    """View a linear map as M x N: a convolution kernel becomes out x (in * height * width)."""
    return tensor.reshape(tensor.shape[0], -1)


def delta_shape(shape: Sequence[int], kind: Kind) -> tuple[int, ...]:
    """Return the shape of a parameter's delta in a method: (M, N) for a matrix, its own for a vector."""
    return (shape[0], prod(shape[1:])) if kind == "matrix" else tuple(shape)


def added(weights: Tensor, delta: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Add a delta to a base's parameter in float32, with one rounding to a dtype, by default the base's."""
    wide, own = weights.to(torch.float32), delta.to(weights.device).reshape(weights.shape)
    in_place = wide is not weights and own.dtype == wide.dtype
    return (wide.add_(own) if in_place else wide + own).to(dtype or weights.dtype)


PATTERNS_SHOWN = 4  # patterns, at most


def without(unfit: Collection[str], names: Collection[str], rules: ParameterRules, by_name: bool = False) -> str:
    """Explain how to merge without some parameters: by the common prefix of all others, or by their names.

    `names`: all that would be merged; `by_name`: parameters to name in any case. The words are those of
    params.yaml, or of the command line.
    """
    unfit, names = (dict.fromkeys(map(parameter_of, each)) for each in (unfit, names))
    left = {_first(name) for name in unfit}
    heads = [name for name in names if _first(name) in left and is_head(name, HEADS)]  # left out whole
    kept = {_first(name) for name in names if name not in {*unfit, *heads}}
    apart = len(kept) == 1 and not kept & left  # as a head of any name is
    heads_of = (_head_patterns(name) or [f"{_first(name)}.*"] * apart for name in unfit)
    own = ", ".join(dict.fromkeys(f'"{pattern}"' for patterns in heads_of for pattern in patterns))
    each = f"if each task has its own head, base.heads: [{own}], else " if own and not rules.flags else ""
    if apart and not by_name:
        pattern = f"{kept.pop()}.*"
        written = f"--only '{pattern}'" if rules.flags else f'parameters.merged: ["{pattern}"]'
        return f"{each}merge without it: {written}"
    if not rules.flags:
        return f"{each}leave it out of parameters.merged"
    patterns = list(dict.fromkeys(name if _first(name) in kept | {name} else f"{_first(name)}.*" for name in unfit))
    more = f" and {len(patterns) - PATTERNS_SHOWN} more" if len(patterns) > PATTERNS_SHOWN else ""
    shown = " ".join(f"--except '{pattern}'" for pattern in patterns[:PATTERNS_SHOWN])
    return f"merge without it: {shown}{more}"


def _head_patterns(name: str) -> list[str]:
    if is_head(name, HEADS):
        return [f"{_first(name)}.*"]
    return [pattern for pattern in IMAGE_HEADS if fnmatchcase(name, pattern)]


def _first(name: str) -> str:
    return name.split(".")[0]
