"""Ask a server of completions as lm-eval does, with the same tokens as a model in this process would get.

Part of the extra `merganser[lm]`, which is imported here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.models.utils import has_bos_prefix, postprocess_generated_text, resolve_max_length
from transformers import AutoConfig, AutoTokenizer

from merganser.errors import InputError
from merganser.evaluation.serving import WHERE, ModelServer

RETRIES = 3
TIMEOUT_S = 24 * 3600  # of a question with all that wait before it; a server that is gone is noticed at once
HEADER = {"Content-Type": "application/json"}  # in place of a key of OpenAI's that the environment may hold


class Completions(LocalCompletionsAPI):
    """lm-eval's client for one server; `together`: the number of questions in flight.

    Prompts are token ids if the server accepts them, else texts. The tokenizer in the model's folder turns texts
    into tokens and chats into texts.
    """

    def __init__(self, server: ModelServer, folder: Path, together: int) -> None:
        super().__init__(
            model=server.model,
            base_url=server.url,
            tokenizer=str(folder),
            tokenizer_backend="huggingface",
            batch_size=1,
            num_concurrent=max(2, together),  # one at a time it would ask through a proxy
            max_retries=RETRIES,
            timeout=TIMEOUT_S,
            max_length=resolve_max_length(AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)),
            header=HEADER,
        )
        self.server, self.token = server, self.tokenizer.encode("a", add_special_tokens=False)[-1]
        self.tokenized_requests = server.takes_tokens(self.token)
        self.bos = self.tokenizer.bos_token
        self.adds_bos = self.bos is not None and self.tokenizer.encode("")[:1] == [self.tokenizer.bos_token_id]

    def tok_encode(self, string: Any, left_truncate_len: int | None = None, **_: Any) -> Any:
        """Return the tokens of a text, or of several, with the tokenizer's special tokens unless the text has them."""
        if not isinstance(string, str):
            return [self.tok_encode(each) for each in string]
        tokens = self.tokenizer.encode(string, add_special_tokens=not has_bos_prefix(string, self.bos))
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        """Return a chat as text by the model's template."""
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def create_message(self, messages: Any, generate: bool = False) -> Any:
        """Return the prompt; a text comes without the first token that the server adds."""
        text = super().create_message(messages, generate)
        return text.removeprefix(self.bos) if isinstance(text, str) and self.adds_bos else text

    def check_likelihoods(self) -> None:
        """Raise InputError if the server does not return the likelihood of a prompt's tokens."""
        if not (self.tokenized_requests and self.server.gives_likelihoods(self.token)):
            reason = "this server does not give the log-probabilities of a prompt's tokens (`echo` with `logprobs`)"
            asked = "multiple_choice and loglikelihood tasks need them"
            raise InputError(f"{WHERE}: {reason}; {asked}: take a server that does, or ask by generate_until")

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return generated texts, cut at the stop text, which some servers include."""
        written = super().generate_until(requests, disable_tqdm)
        stops = [request.args[1].get("until") for request in requests]
        return [postprocess_generated_text(text, stop, None) for text, stop in zip(written, stops, strict=True)]
