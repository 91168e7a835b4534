"""Continue texts greedily, and score given continuations. Shape legend: B texts, L tokens, V words."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import GenerationConfig, LogitsProcessorList

from merganser.checkpoints.own_settings import GENERATED_TOKENS, GENERATION
from merganser.errors import quoting
from merganser.models import Inputs, defined
from merganser.models.naming import Naming
from merganser.models.texts import NEW_TOKENS, TextModule, in_groups, ordinary_tokens, ready

BEFORE = "a"  # a word before an answer


class Writer(TextModule, ABC):
    """A network that writes text greedily."""

    _settings: GenerationConfig

    def __init__(self, module: Any, folder: Path, naming: Naming, side: Literal["left", "right"] = "right") -> None:
        """Take a module as it was built, with the tokenizer and the special tokens of its folder."""
        super().__init__(module, folder, naming, side)
        self._settings = greedy(folder, module.config)

    def room(self, tokens: int) -> int | None:
        """Return how many tokens the network can generate after a text of so many; None: any number."""
        return self.positions

    @torch.inference_mode()
    def generate(self, inputs: Inputs, max_new_tokens: int) -> list[str]:
        """Continue or answer each text; only new tokens are returned."""

        def write(batch: Inputs) -> list[str]:
            here = ready(batch, self.device)
            tokens = self._generated(here, lambda _, scores: defined(scores), max_new_tokens=max_new_tokens)
            texts: list[str] = self.tokenizer.batch_decode(self._new(tokens, here), skip_special_tokens=True)
            return texts

        if self.batching in ("padded", None):
            return write(inputs)
        return in_groups(inputs, write, self.batching)

    @torch.inference_mode()
    def rank(self, inputs: Inputs, options: Sequence[str]) -> Tensor:
        """Return the log-likelihood of each option after each text (B, options)."""
        return self._batched(lambda batch: self._ranked(ready(batch, self.device), options), inputs)

    def _new(self, tokens: Tensor, batch: Inputs) -> Tensor:
        """Return the tokens that the network added to a batch's."""
        return tokens

    @abstractmethod
    def _ranked(self, batch: Inputs, options: Sequence[str]) -> Tensor:
        """Return the log-likelihood of each option after each text on the device (B, options)."""

    def _probed(self, inputs: Inputs) -> Tensor:
        """Return a batch's logits, and those of an answer's first tokens with the same token after each."""
        token = torch.tensor([ordinary_tokens(self.tokenizer)[0]], device=self.device)

        def choose(_: Tensor, scores: Tensor) -> Tensor:
            return torch.full_like(scores, float("-inf")).index_fill(1, token, 0)

        told = {"output_logits": True, "return_dict_in_generate": True, "max_new_tokens": NEW_TOKENS}
        answer = self._generated(ready(inputs, self.device), choose, **told)
        return torch.cat([self._run(inputs), *answer.logits], dim=1)

    def _generated(self, batch: Inputs, process: Callable[[Tensor, Tensor], Tensor], **told: Any) -> Any:
        """Continue texts (B, L), with each step's scores processed; a decoder's answer begins with its inputs."""
        settings, processors = GenerationConfig(**self._settings.to_dict() | told), LogitsProcessorList([process])
        return self.module.generate(**batch, generation_config=settings, logits_processor=processors)


def greedy(folder: Path, config: Any) -> GenerationConfig:
    """Return the settings of greedy decoding, with the special tokens in a folder."""
    with quoting(f"{folder / GENERATION}: transformers cannot read it"):
        named: Any = config
        if (folder / GENERATION).is_file():
            named = GenerationConfig.from_pretrained(folder, local_files_only=True)
        tokens = {name: getattr(named, name, None) for name in GENERATED_TOKENS}
        return GenerationConfig(**tokens, pad_token_id=config.pad_token_id, do_sample=False, num_beams=1)


def answer_tokens(tokenizer: Any, answer: str) -> list[int]:
    """Return the tokens of an answer that follows a prompt.

    A tokenizer that adds a space before every text, as Llama 2's, would add a second one to an answer that starts
    with a space.
    """
    alone: list[int] = tokenizer(answer, add_special_tokens=False).input_ids
    if not answer.startswith(" "):
        return alone
    before, both = tokenizer([BEFORE, BEFORE + answer], add_special_tokens=False).input_ids
    return both[len(before) :] if both[: len(before)] == before else alone


def log_likelihood(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-likelihood (B,) of tokens (B, L) by the logits (B, L, V) at their places."""
    each = log_softmax(logits.float(), dim=-1).gather(-1, tokens.unsqueeze(-1))
    return each.squeeze(-1).sum(dim=-1)
