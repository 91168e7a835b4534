"""The stage `base`: SmolLM2-135M-Instruct out of its GGUF, in bfloat16, as transformers saves it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging


def write_base(file: Path, out: Path) -> None:
    """Write the model that a GGUF holds, dequantised, and its tokenizer to `out`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    config: Any = read.config
    del config.quantization_config
    model: Any = LlamaForCausalLM(config)  # a plain one: that which was read cannot be saved
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
