"""A tiny random Llama whose tokens are bytes: as those of real models, they make any text, and servers stop in them."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
BEGIN, END = "<s>", "</s>"


def write_byte_model(folder: Path, seed: int = 0) -> None:
    """Write the model, its tokenizer and its template for chats, as transformers saves them."""
    vocabulary = {
        name: number for number, name in enumerate([BEGIN, END, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token=BEGIN, eos_token=END, pad_token=END)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
