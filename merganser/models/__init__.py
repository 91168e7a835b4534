"""Model families: how to build a network from its configuration, give it a model's parameters and run it.

A family is a module of `merganser/models/families/` with what the protocol `Family` lists, found by its file name;
params.yaml names it as `base.family`. What it may do beyond a `Network` are protocols of their own (`TakesImages`,
`ClassifiesImages`, `NamesInputs`, `TakesSounds`, `TakesTexts`, `EmbedsTexts`, `ChangesFeatures`, `Generates`; of its
blocks a base class, `linear_maps.WithBlocks`), asked for by `isinstance`.
Shape legend: B examples, C classes, D features, N rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, get_type_hints, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module

from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.errors import InputError, did_you_mean
from merganser.inputs.layers import Side
from merganser.models import families
from merganser.plugins import FAMILIES, constants, load, module_names, own_configurations

DeviceName = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16", "float16"]
Change = Callable[[Tensor], Tensor]
Extra = Callable[[str, Tensor], Tensor | None]
Blend = Callable[[str, Tensor, Tensor], Extra]
Inputs = Mapping[str, Tensor]


class Network(Protocol):
    """An architecture, built once, that loads the parameters of one model after another.

    Parameters have the checkpoint's names everywhere; the family maps them to its module's own names.
    """

    module: Module
    device: torch.device

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters of a model; raise InputError naming a missing, unknown or misshapen one."""

    def logits(self, inputs: Inputs) -> Tensor:
        """Return the class logits, for inference: (B, C)."""

    def features(self, inputs: Inputs) -> Tensor:
        """Return the head's inputs, for inference: (B, D)."""

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Return the class logits (B, C) with these parameters instead of the loaded ones; differentiable."""

    def linear_maps(self) -> Mapping[str, Side]:
        """Return the names of linear maps' weights W, sorted, each with the side of its inputs x.

        It is `columns` for x W^T, as in torch's Linear and in convolutions, and `rows` for x W.
        """

    def parts(self) -> Collection[str]:
        """Name the loaded tensors that are parts of the module's parameters, such as an expert's: no linear maps."""

    def watch(self, extra: Extra) -> AbstractContextManager[object]:
        """In the block, call `extra` with each linear map's name and input rows (N, in) when it is applied.

        Its result is added to the map's output (N, out), unless it is None, and except for convolutions.
        """


@runtime_checkable
class TakesImages(Protocol):
    """A network whose inputs are `pixels`, uint8 (B, 3, H, W)."""

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3) by the family's own transform."""


@runtime_checkable
class ClassifiesImages(Protocol):
    """A network of pictures whose logits come from a head of the task's own."""

    def head_parameters(self) -> Collection[str]:
        """Name the loaded parameters of the head."""


@runtime_checkable
class NamesInputs(Protocol):
    """A network whose inputs are neither pictures nor texts; statistics and learners read them by name."""

    def inputs(self) -> list[str]:
        """Name the prepared arrays that it reads."""


@runtime_checkable
class TakesSounds(NamesInputs, Protocol):
    """A network whose inputs are its feature extractor's output for sounds."""

    def sampling_rate(self) -> int:
        """Return the number of samples per second."""

    def encode_sounds(self, sounds: Sequence[Any], longest: int) -> dict[str, Tensor]:
        """Return the inputs of sounds, float32 (samples,) each, padded like a sound of `longest` samples."""


@runtime_checkable
class TakesTexts(Protocol):
    """A network whose inputs are its tokenizer's output for texts."""

    tokenizer: Any

    def encode(self, texts: Sequence[str] | Sequence[tuple[str, str]], max_length: int) -> dict[str, Tensor]:
        """Tokenise texts, or pairs of texts, padded to the longest; longer ones are cut to `max_length` tokens."""


@runtime_checkable
class EmbedsTexts(Protocol):
    """A network that embeds texts in the space of its features, so that texts can form a class head.

    Its family's `open_network` is annotated to return it, which `has_ability` reads.
    """

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the loaded model's unit embedding of each text (N, D)."""

    def head(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Build the class head (C, D) from each class's prompts; `logits` uses it until the next one."""


@runtime_checkable
class ChangesFeatures(Protocol):
    """A network with a head after its features, which are one vector per example."""

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """In the block, give the head the result of `change` on the features (..., D)."""


@runtime_checkable
class ScoresWords(Protocol):
    """A network that scores every token of a text: its logits are (B, L, C), with zeros for padding."""

    def encode_words(self, texts: Sequence[Sequence[str]], max_length: int) -> tuple[dict[str, Tensor], Tensor]:
        """Tokenise texts that are split into words; longer ones are cut to `max_length` tokens.

        Also returns the place of each word's first token (B, W): -1 for a word without one, and beyond the last
        word.
        """


@runtime_checkable
class FindsAnswers(Protocol):
    """A network that scores each token of a question's context as the answer's first and last: (B, L, 2)."""

    def encode_windows(
        self, questions: Sequence[str], contexts: Sequence[str], max_length: int, stride: int
    ) -> tuple[dict[str, Tensor], Tensor, list[int]]:
        """Tokenise each question with its context, a long one in windows that share `stride` tokens.

        Also returns each token's characters in the context (F, L, 2), from the first to before the second, -1
        for other tokens; and the question of each of F windows.
        """


@runtime_checkable
class EncodesSentences(Protocol):
    """A network whose logits for a text are its embedding."""

    def sentence_embeddings(self, inputs: Inputs) -> Tensor:
        """Embed texts, for inference: (B, D)."""


@runtime_checkable
class Generates(Protocol):
    """A network that writes text."""

    def room(self, tokens: int) -> int | None:
        """Return how many tokens the network can generate after a text of so many; None: any number."""

    def generate(self, inputs: Inputs, max_new_tokens: int) -> list[str]:
        """Continue each input greedily."""

    def rank(self, inputs: Inputs, options: Sequence[str]) -> Tensor:
        """Return the log-likelihood of each option as the continuation of each input (B, options)."""


class Family(Protocol):
    """The functions and constants of a family's module.

    All constants but MODEL_TYPES are literals, to be read without importing the module (`plugins.constants`). Four
    more are optional: `CONFIG`, the file of its own configuration instead of config.json or next to it; `MERGED`,
    patterns of the parameters that are merged by default, instead of all; `UNSUPPORTED`, model types that
    transformers would build and the family does not, each with the reason; and `TRUNKS_OF`, the family to prefer
    for a trunk that both support.
    """

    MODEL_TYPES: Collection[str]  # of configurations of transformers, which it builds
    LIBRARY: str  # that loads such a model, for the card of a merge
    PIPELINES: Mapping[str, str]  # what a model is for, in the words of model hubs, by how its architecture's name ends

    def open_network(
        self, folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
    ) -> Network:
        """Build the architecture in a folder's configuration, without weights."""

    def check(self, folder: Path, checkpoint: Checkpoint) -> Collection[str] | None:
        """Refuse a checkpoint of another family, by its configuration and headers alone.

        Returns the parameters, by the network's names, that a base may lack and this one does, because each
        task has its own; None if no head is a task's own.
        """


def family_names() -> list[str]:
    """List the families, by their files."""
    return module_names(families.__path__)


def get_family(name: str) -> Family:
    """Return a family's module; raise InputError with the nearest name if there is none."""
    if name not in family_names():
        known = f"known: {', '.join(family_names())}"
        raise InputError(f"base.family: {name!r} is not a model family; {known}{did_you_mean(name, family_names())}")
    family: Family = load(FAMILIES, name, Family)
    if computed := sorted({"LIBRARY", "PIPELINES"} - constants(FAMILIES, name).keys()):
        said = f"{' and '.join(computed)} is read without importing the module, so write it out"
        raise InputError(f"merganser/models/families/{name}.py: {said}")
    return family


def families_with(ability: type) -> list[str]:
    """List the families whose networks have an ability, which is one of the protocols here."""
    return [name for name in family_names() if has_ability(name, ability)]


@cache
def has_ability(family: str, ability: type) -> bool:
    """Tell whether a family's networks have an ability, by the annotation of its `open_network`."""
    made = get_type_hints(get_family(family).open_network)["return"]
    methods = [name for name, value in vars(ability).items() if isfunction(value) and not name.startswith("_")]
    return any(all(hasattr(network, name) for name in methods) for network in get_args(made) or (made,))


def text_family_of(folder: Path) -> str:
    """Return the family that embeds texts with the model in a folder; raise InputError if none does."""
    checkpoint, reasons = open_checkpoint(folder), []
    # those of transformers first: they compare names
    for name in sorted(families_with(EmbedsTexts), key=own_configurations().__contains__):
        try:
            get_family(name).check(folder, checkpoint)
        except InputError as error:
            reasons.append(f"no {name}: {error}")
        else:
            return name
    raise InputError(
        f"{folder}: class names are embedded by the base's text encoder, and this model's family does not have "
        "one; give a base with a text encoder, with its configuration next to its weights\n" + "\n".join(reasons)
    )


def open_network(
    family: str,
    folder: Path,
    *,
    outputs: int | None = None,
    device: DeviceName = "cpu",
    precision: Precision = "float32",
) -> Network:
    """Build the architecture in a folder's configuration; raise InputError for an unknown family.

    `outputs`: the classes of a task's own head, 1 for regression; None for the language model or the dual encoder.
    """
    network = get_family(family).open_network(folder, outputs=outputs, device=device, precision=precision)
    network.logits = _checking(network.logits, outputs, family)  # type: ignore[assignment, method-assign]
    return network


def defined(outputs: Tensor) -> Tensor:
    """Return outputs (..., C); raise InputError for a row without a finite largest value. Others may be -inf."""
    if not outputs.amax(dim=-1).isfinite().all():
        reason = "the model's outputs are not finite (NaN or infinite), so no score can be computed"
        raise InputError(f"{reason}; set evaluation.precision to float32, or change or remove the entry")
    return outputs


def _checking(logits: Callable[[Inputs], Tensor], outputs: int | None, family: str) -> Callable[[Inputs], Tensor]:
    """Return a network's `logits` that raises InputError for scores that are not finite, or of another head's shape.

    `outputs`: the size of the task's own head; None for a network built without one.
    """

    def checked(inputs: Inputs) -> Tensor:
        scores = logits(inputs)
        if scores.dim() < 2 or outputs not in (None, scores.shape[-1]):
            expected = f"(examples, {'classes' if outputs is None else outputs})"
            raise InputError(
                f"merganser/models/families/{family}.py: logits has the shape {tuple(scores.shape)}, "
                f"not {expected}: correct it"
            )
        return defined(scores)

    return checked


def usable_device(device: DeviceName, place: str) -> DeviceName:
    """Return an available device; raise InputError naming the place in params.yaml that declares a missing GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        remedy = "run it where torch.cuda.is_available() says True, or set it to cpu"
        raise InputError(f"{place}: cuda, and this stage sees no usable GPU; {remedy}")
    return device


def embed_classes(family: str, base: Path, classes: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """Return the mean of the unit text embeddings of each task's class names (D,), by the model in a folder."""
    checkpoint, network = open_checkpoint(base), open_network(family, base)
    if not isinstance(network, EmbedsTexts):
        raise InputError(f"base.family: {family} embeds no texts, but the tasks' class names need it")
    network.load((name, checkpoint.read(name)) for name in checkpoint.names)
    return {task: network.embed(names).mean(dim=0) for task, names in classes.items()}
