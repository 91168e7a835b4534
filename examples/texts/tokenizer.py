"""The tokenizer of both suites: a token a word, and the special tokens of RoBERTa."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from texts.drawing import vocabulary

BEGIN, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
SPECIAL = {BEGIN: 0, PAD: 1, END: 2, UNKNOWN: 3}


def encoder_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer that puts a text, or a pair of texts, between RoBERTa's tokens."""
    tokenizer = _word_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} {END} $B {END}",
        special_tokens=[(BEGIN, SPECIAL[BEGIN]), (END, SPECIAL[END])],
    )
    return _fast(tokenizer, 48, bos_token=BEGIN, cls_token=BEGIN, eos_token=END, sep_token=END)


def causal_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer that adds nothing to a text: prompts begin with their first word."""
    return _fast(_word_level(), 64, eos_token=END, padding_side="left")


def _word_level() -> Tokenizer:
    words = {word: number for number, word in enumerate(vocabulary(), start=len(SPECIAL))}
    tokenizer = Tokenizer(models.WordLevel(SPECIAL | words, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _fast(tokenizer: Tokenizer, longest: int, **options: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, model_max_length=longest, **options
    )
