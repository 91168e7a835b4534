"""Models as their repositories on the hub have them: file names, parameters' names, heads, buffers; two layers.

A base and what was fine-tuned from it are written by transformers and PEFT themselves, then brought to the names and
files that the repository has.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import RobertaForMaskedLM

from merganser.checkpoints.writing import save_tensors
from tests.tiny_clip import clip_parameters
from tests.tiny_transformers import random_model, write_model
from tests.transformers_models import tuned

RANK = 2
OTHER_FORMATS = ("flax_model.msgpack", "tf_model.h5", "training_args.bin")  # beside the weights; never read
CLIP_ADAPTED = r"vision_model\..*\.(q_proj|k_proj|v_proj|out_proj)"
T5_ADAPTED = ["q", "v"]
POSITIONS = 32
LONGER = 4
LLAMA = "llama, untied"


@dataclass(frozen=True)
class Models:
    """How the base of a suite and a task's model are written, given a folder; a task's with its seed and outputs."""

    write_base: Callable[[Path], None]
    write_tuned: Callable[[Path, int, int], None]


def write_clip(folder: Path) -> None:
    """Write openai/clip-vit-*: torch weights with the buffers of old versions, and what other libraries read."""
    state = write_model(folder, "clip").state_dict()
    (folder / "model.safetensors").unlink()
    for tower in ("text_model", "vision_model"):
        count = len(state[f"{tower}.embeddings.position_embedding.weight"])
        state[f"{tower}.embeddings.position_ids"] = torch.arange(count)[None]
    torch.save(state, folder / "pytorch_model.bin")
    _write_other_formats(folder)


def write_clip_tower(folder: Path, seed: int, outputs: int) -> None:
    """Write tanganke/clip-vit-*_TASK: the vision tower alone, with its prefix."""
    model = tuned(random_model("clip"), seed)
    tower = {name: value for name, value in model.state_dict().items() if name.startswith("vision_model.")}
    folder.mkdir(parents=True)
    save_tensors(folder / "model.safetensors", _contiguous(tower))
    model.config.vision_config.save_pretrained(folder)


def write_clip_adapter(folder: Path, seed: int, outputs: int) -> None:
    """Write hoffman-lab/KnOTS-ViT-*: an adapter of the vision tower's queries, keys, values and outputs."""
    _write_adapter(folder, "clip", CLIP_ADAPTED, seed)


def write_open_clip(folder: Path) -> None:
    """Write timm/vit_base_patch32_clip_224.openai."""
    save_tensors(folder / "open_clip_model.safetensors", clip_parameters(folder))


def write_open_clip_encoder(folder: Path, seed: int, outputs: int) -> None:
    """Write crisostomi/ViT-B-32-TASK: an image encoder's state in torch's format, without the text transformer."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        f"model.{name}": value + 0.02 * torch.randn(value.shape, generator=generator)
        for name, value in clip_parameters(folder).items()
        if not name.startswith("transformer.")
    }
    (folder / "open_clip_config.json").unlink()
    torch.save(state, folder / "pytorch_model.bin")


def write_tall_masks(folder: Path, seed: int, outputs: int) -> None:
    """Write single_task/ViT-*/TASKVal of nik-dim/tall_masks: an image encoder's state in torch's format."""
    write_open_clip_encoder(folder, seed, outputs)
    (folder / "pytorch_model.bin").rename(folder / "nonlinear_finetuned.pt")


def write_gpt2(folder: Path) -> None:
    """Write gpt2: names without `transformer.`, the attention's masks among them, no head."""
    state = write_model(folder, "gpt2").state_dict()
    short = {name.removeprefix("transformer."): value for name, value in state.items() if name != "lm_head.weight"}
    mask = torch.ones(POSITIONS, POSITIONS).tril()[None, None]
    short |= {f"h.{number}.attn.bias": mask.clone() for number in range(2)}
    save_tensors(folder / "model.safetensors", _contiguous(short))
    _write_other_formats(folder)


def write_roberta(folder: Path) -> None:
    """Write roberta-base: a masked language model, with the pooler that no classifier has."""
    classifier = write_model(folder, "roberta")
    torch.manual_seed(1)
    model = RobertaForMaskedLM(classifier.config)
    model.roberta.load_state_dict(classifier.roberta.state_dict())
    model.config.architectures = ["RobertaForMaskedLM"]
    model.save_pretrained(folder)
    width = model.config.hidden_size
    pooler = {"roberta.pooler.dense.weight": torch.randn(width, width), "roberta.pooler.dense.bias": torch.randn(width)}
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith("lm_head.decoder.")}
    ids = {"roberta.embeddings.position_ids": torch.arange(POSITIONS)[None]}
    save_tensors(folder / "model.safetensors", _contiguous(kept | pooler | ids))
    _write_other_formats(folder)


def write_roberta_classifier(folder: Path, seed: int, outputs: int) -> None:
    """Write TASK/roberta-base_lr1e-05 of vanillaOVO/roberta_base_glue_ckpts: a classifier in torch's format."""
    model = _write_classifier(folder, "roberta", seed, outputs)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(b"what nobody reads")


def write_gpt2_classifier(folder: Path, seed: int, outputs: int) -> None:
    """Write tanganke/gpt2_TASK: a classifier of the last word's state."""
    _write_classifier(folder, "gpt2", seed, outputs)


def write_flan_t5(folder: Path) -> None:
    """Write google/flan-t5-base."""
    write_model(folder, "flan-t5")
    _write_other_formats(folder)


def write_flan_t5_tuned(folder: Path, seed: int, outputs: int) -> None:
    """Write tanganke/flan-t5-base_glue-TASK."""
    write_model(folder, "flan-t5")
    tuned(random_model("flan-t5"), seed).save_pretrained(folder)


def write_flan_t5_adapter(folder: Path, seed: int, outputs: int) -> None:
    """Write tanganke/flan-t5-base_glue-TASK_lora-16."""
    _write_adapter(folder, "flan-t5", T5_ADAPTED, seed, "SEQ_2_SEQ_LM")


def write_deberta(folder: Path) -> None:
    """Write microsoft/deberta-v3-base: torch's format alone, with the heads of its pretraining and no classifier's."""
    model = write_model(folder, "deberta-v3")
    (folder / "model.safetensors").unlink()
    width = model.config.hidden_size
    state = {name: value for name, value in model.state_dict().items() if name.startswith("deberta.")}
    for head in ("lm_predictions.lm_head", "mask_predictions"):
        state |= {f"{head}.dense.weight": torch.randn(width, width), f"{head}.dense.bias": torch.randn(width)}
        state |= {f"{head}.LayerNorm.weight": torch.randn(width), f"{head}.LayerNorm.bias": torch.randn(width)}
    state |= {"lm_predictions.lm_head.bias": torch.randn(model.config.vocab_size)}
    state |= {
        "mask_predictions.classifier.weight": torch.randn(1, width),
        "mask_predictions.classifier.bias": torch.ones(1),
    }
    torch.save(state, folder / "pytorch_model.bin")
    _write_other_formats(folder)


def write_deberta_classifier(folder: Path, seed: int, outputs: int) -> None:
    """Write a classifier of one's own, as `save_pretrained` does."""
    _write_classifier(folder, "deberta-v3", seed, outputs)


def write_t5(folder: Path) -> None:
    """Write google-t5/t5-base."""
    write_model(folder, "t5")
    _write_other_formats(folder)


def write_t5_tuned(folder: Path, seed: int, outputs: int) -> None:
    """Write a full fine-tune of one's own, as `save_pretrained` does."""
    write_model(folder, "t5")
    tuned(random_model("t5"), seed).save_pretrained(folder)


def write_t5_classifier(folder: Path, seed: int, outputs: int) -> None:
    """Write an encoder-decoder with a head, fine-tuned from the base, as `save_pretrained` does."""
    model = write_model(folder, "t5", outputs)
    model.transformer.load_state_dict(random_model("t5").state_dict(), strict=False)
    tuned(model, seed).save_pretrained(folder)


def write_long_gpt2(folder: Path) -> None:
    """Write gpt2-medium: as gpt2, with more places, for it writes texts."""
    write_gpt2(folder)
    state, count = load_file(folder / "model.safetensors"), POSITIONS * LONGER
    mask = torch.ones(count, count).tril()[None, None]
    longer = {name: mask.clone() for name in state if name.endswith(".attn.bias")}
    longer["wpe.weight"] = state["wpe.weight"].repeat(LONGER, 1)
    save_tensors(folder / "model.safetensors", state | longer)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_positions": count}))


def write_gpt2_adapter(folder: Path, seed: int, outputs: int) -> None:
    """Write an adapter of one's own of attention's fused map, which GPT-2 has as in x out."""
    _write_adapter(folder, "gpt2", ["c_attn"], seed, "CAUSAL_LM")


def write_llama(folder: Path) -> None:
    """Write meta-llama/Llama-3.1-8B, which has no padding token."""
    write_model(folder, LLAMA)
    for name, key in (("config.json", "pad_token_id"), ("tokenizer_config.json", "pad_token")):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), key: None}))


def write_llama_adapter(folder: Path, seed: int, outputs: int) -> None:
    """Write an adapter of one's own with a head, as PEFT does of a model for classification."""
    _write_adapter(folder, LLAMA, ["q_proj", "v_proj"], seed, "SEQ_CLS", outputs)


CLIP = Models(write_clip, write_clip_tower)
CLIP_ADAPTERS = Models(write_clip, write_clip_adapter)
OPEN_CLIP = Models(write_open_clip, write_open_clip_encoder)
TALL_MASKS = Models(write_open_clip, write_tall_masks)
GPT2 = Models(write_gpt2, write_gpt2_classifier)
ROBERTA = Models(write_roberta, write_roberta_classifier)
FLAN_T5 = Models(write_flan_t5, write_flan_t5_tuned)
FLAN_T5_ADAPTERS = Models(write_flan_t5, write_flan_t5_adapter)
DEBERTA = Models(write_deberta, write_deberta_classifier)
T5 = Models(write_t5, write_t5_tuned)
T5_CLASSIFIERS = Models(write_t5, write_t5_classifier)
GPT2_ADAPTERS = Models(write_long_gpt2, write_gpt2_adapter)
LLAMA_ADAPTERS = Models(write_llama, write_llama_adapter)


def _write_classifier(folder: Path, kind: str, seed: int, outputs: int) -> Any:
    """Write a classifier fine-tuned from the base; return it."""
    model = write_model(folder, kind, outputs)
    model.base_model.load_state_dict(random_model(kind).base_model.state_dict())
    tuned(model, seed).save_pretrained(folder)
    return model


def _write_adapter(
    folder: Path, kind: str, modules: Any, seed: int, task_type: str | None = None, outputs: int | None = None
) -> None:
    from peft import LoraConfig, get_peft_model

    model = random_model(kind, outputs)
    if outputs is not None:
        model.base_model.load_state_dict(random_model(kind).base_model.state_dict())
    adapted = get_peft_model(model, LoraConfig(r=RANK, target_modules=modules, task_type=task_type))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(folder)


def _contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in state.items()}


def _write_other_formats(folder: Path) -> None:
    for name in OTHER_FORMATS[:2]:
        (folder / name).write_bytes(b"the same weights in another format")
