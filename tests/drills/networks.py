"""Compare a tiny model of every type that a family builds: saved, loaded, scored in a batch and one by one."""

import os
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoImageProcessor
from transformers.models.auto import modeling_auto
from transformers.models.auto.image_processing_auto import (
    IMAGE_PROCESSOR_MAPPING_NAMES,
    get_image_processor_class_from_name,
)
from transformers.utils import logging

from merganser.checkpoints.reading import open_checkpoint
from merganser.models import get_family, open_network
from merganser.models.naming import computed_parameters
from tests.every_class import KINDS, build
from tests.tiny_transformers import TOKENS, noise, tokenizer

# what a family builds, by KINDS
HEADS = {"causal": "causal", "seq2seq": "seq2seq", "encoder": "classifier", "vision": "vision"}
OF_TOKENS = ("reader", "token_classifier")
HEADS |= {family: family for family in OF_TOKENS}
SAMPLE = ("causal mixtral", "causal rwkv", "encoder fnet", "seq2seq marian", "causal gpt2 with a head", "vision vit")
SAMPLE = (*SAMPLE, "reader deberta-v2", "token_classifier fnet")
TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat", "no red cat sat"]
OPTIONS = ["yes", "no the red"]
LARGEST = 1e-5  # of the largest output: rounding alone makes at most 2e-6
CLASSES, NEW = 3, 6


@dataclass(frozen=True)
class Found:
    """In which batches a network scores, and how far each result is from what it should be, of the largest."""

    batching: str
    errors: dict[str, float]


def drill(folder: Path, sample: bool) -> None:
    """Compare every type, one a core at a time; print a line for each, then counts."""
    names = [name for name in types() if not sample or name in SAMPLE]
    batchings, failed = Counter[str](), list[str]()
    for name, (found, said) in zip(names, map(said_of, names) if sample else in_processes(names), strict=True):
        print(said, flush=True)
        if found is None or max(found.errors.values()) > LARGEST:
            failed.append(name)
        else:
            batchings[f"{name.split()[0]}, {found.batching}"] += 1
    print(summary(batchings, len(names)), flush=True)
    assert not failed, f"{len(failed)} types: {', '.join(failed)}"


def in_processes(names: Sequence[str]) -> Iterator["tuple[Found | None, str]"]:
    """Compare types in as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(said_of, names)


def types() -> Iterator[str]:
    """List each family's types, then those that have a classifier too."""
    for family in HEADS:
        yield from (f"{family} {each}" for each in sorted(get_family(family).MODEL_TYPES))
    classifiers = getattr(modeling_auto, f"MODEL_FOR_{KINDS['classifier']}_MAPPING_NAMES")
    for family in ("causal", "seq2seq"):
        headed = sorted(get_family(family).MODEL_TYPES & classifiers.keys())
        yield from (f"{family} {each} with a head" for each in headed)


def summary(batchings: Counter[str], tried: int) -> str:
    """Count the types by family and batches, and name those that no family builds."""
    lines = [f"{count} of {family_and_batches}" for family_and_batches, count in sorted(batchings.items())]
    for family in HEADS:
        reasons = getattr(get_family(family), "UNSUPPORTED", {})
        lines += [f"{family} leaves out {name}: it {reason}" for name, reason in reasons.items()]
    return "\n".join([f"{batchings.total()} of {tried} networks score alike in batches and alone", *lines])


def said_of(name: str) -> tuple[Found | None, str]:
    """Compare a type; return what was found and a line that says so, or the traceback."""
    logging.disable_progress_bar()
    with TemporaryDirectory() as folder:
        try:
            found = compared(name, Path(folder) / "model")
        except Exception:  # the other types are tried all the same
            return None, f"{name} FAILED\n{traceback.format_exc()}"
    worst = max(found.errors, key=lambda what: found.errors[what])
    return found, f"{name}: {found.batching}, at most {found.errors[worst]:.1g} ({worst})"


def compared(name: str, folder: Path) -> Found:
    """Save a tiny model of a type, load it as the family does, and compare it with the model and with one input."""
    if name.startswith("vision "):
        return compared_pictures(name.split()[1], folder)
    if name.startswith(OF_TOKENS):
        return compared_tokens(*name.split(), folder)
    family, model_type, headed = (*name.split()[:2], name.endswith("head") or name.startswith("encoder"))
    model = written(family, model_type, headed, folder)
    checkpoint = open_checkpoint(folder)
    get_family(family).check(folder, checkpoint)
    network: Any = open_network(family, folder, outputs=CLASSES if headed else None)
    state = {each: checkpoint.read(each) for each in checkpoint.names}
    network.load(state.items())
    batch, single = network.encode(TEXTS, 30), [network.encode([text], 30) for text in TEXTS]
    alone = torch.cat([network.logits(each) for each in single])
    errors = {
        "the model saved": distance(model_logits(model, network, family, single[0]), alone[:1]),
        "logits": distance(network.logits(batch), alone),
        "features": distance(network.features(batch), torch.cat([network.features(each) for each in single])),
        "given parameters": distance(network.forward(state, batch).detach(), alone),
    }
    if not headed:
        # for types such as qwen2 transformers builds another tokenizer than was saved, without these words
        options = [each for each in OPTIONS if network.tokenizer(each, add_special_tokens=False).input_ids]
        if options:
            ranks = torch.cat([network.rank(each, options) for each in single])
            errors["ranks"] = distance(network.rank(batch, options), ranks)
        texts = [text for each in single for text in network.generate(each, NEW)]
        errors["generations"] = float(network.generate(batch, NEW) != texts)
    return Found(network.batching, errors)


def compared_tokens(family: str, model_type: str, folder: Path) -> Found:
    """Do so with a type that scores each token of a text."""
    model = written(family, model_type, False, folder)
    checkpoint = open_checkpoint(folder)
    get_family(family).check(folder, checkpoint)
    network: Any = open_network(family, folder, outputs=outputs_of(family))
    state = {each: checkpoint.read(each) for each in checkpoint.names}
    network.load(state.items())
    batch, single = network.encode(TEXTS, 30), [network.encode([text], 30) for text in TEXTS]
    alone = [network.logits(each)[0] for each in single]
    with torch.inference_mode():
        found = model(**single[0])
        theirs = (
            found.logits if family == "token_classifier" else torch.stack([found.start_logits, found.end_logits], 2)
        )
    shown = batch["attention_mask"].bool()
    errors = {
        "the model saved": distance(alone[0][None], theirs),
        "logits": distance(network.logits(batch)[shown], torch.cat(alone)),
        "features": distance(network.features(batch), torch.cat([network.features(each) for each in single])),
        "given parameters": distance(network.forward(state, batch).detach()[shown], torch.cat(alone)),
    }
    assert not network.logits(batch)[~shown].any()
    return Found(network.batching, errors)


def compared_pictures(model_type: str, folder: Path) -> Found:
    """Do so with a type that reads pictures."""
    names = getattr(modeling_auto, f"MODEL_FOR_{KINDS['vision']}_MAPPING_NAMES")[model_type]
    model, size = written_classifier(names if isinstance(names, str) else names[0], model_type, folder)
    checkpoint = open_checkpoint(folder)
    get_family("vision").check(folder, checkpoint)
    network: Any = open_network("vision", folder, outputs=CLASSES)
    state = {each: checkpoint.read(each) for each in checkpoint.names}
    network.load(state.items())
    pictures = noise(len(TEXTS), (size + 9, size + 4))
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")(pictures, return_tensors="pt").pixel_values
    batch = {"pixels": network.pixels(pictures)}
    single = [{"pixels": each[None]} for each in batch["pixels"]]
    alone = torch.cat([network.logits(each) for each in single])
    with torch.inference_mode():
        theirs = model(pixels[:1]).logits
    errors = {
        "the model saved": distance(theirs, alone[:1]),
        "logits": distance(network.logits(batch), alone),
        "given parameters": distance(network.forward(state, batch).detach(), alone),
    }
    if len(network._heads) == 1:
        features = torch.cat([network.features(each) for each in single])
        errors["features"] = distance(network.features(batch), features)
    return Found("batches", errors)


def written_classifier(name: str, model_type: str, folder: Path) -> tuple[Any, int]:
    """Write an image classifier of a class, and the image processor of its type; return it and its pictures' side."""
    model = build(name)
    model.config.num_labels = CLASSES
    torch.manual_seed(0)
    model = type(model)(model.config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder)
    size = getattr(getattr(model.config, "vision_config", model.config), "image_size", 64)
    side = size if isinstance(size, int) else size["height"] if isinstance(size, dict) else size[0]
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {"pil": "ViTImageProcessorPil"}
    whole = {"height": side, "width": side}
    processor = get_image_processor_class_from_name(names["pil"])
    square = next(one for one in (whole, {"shortest_edge": side}) if accepts(processor, one, whole))
    processor(size=square, crop_size=whole).save_pretrained(folder)
    return model, side


def accepts(processor: Any, size: dict[str, int], crop: dict[str, int]) -> bool:
    """Tell whether an image processor takes a size that is given so."""
    try:
        processor(size=size, crop_size=crop)(noise(1, (20, 20)), return_tensors="pt")
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, of the largest expected value."""
    assert found.shape == expected.shape
    assert expected.isfinite().all()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


def outputs_of(family: str) -> int:
    """Return how many outputs a family's head has: of a reader two, a token's scores as an answer's first and last."""
    return 2 if family == "reader" else CLASSES


def written(family: str, model_type: str, headed: bool, folder: Path) -> Any:
    """Write a model of a type and a tokenizer of a few words; return the model."""
    mapping = getattr(modeling_auto, f"MODEL_FOR_{KINDS['classifier' if headed else HEADS[family]]}_MAPPING_NAMES")
    names: str | Sequence[str] = mapping[model_type]
    model = build(names if isinstance(names, str) else names[0])
    for part in (model.config, *(getattr(model.config, each, None) for each in model.config.sub_configs)):
        for each, token in TOKENS.items() if part is not None else ():
            setattr(part, each, token)
    if family == "seq2seq":
        model.config.decoder_start_token_id = 0
    model.config.num_labels = outputs_of(family)
    torch.manual_seed(0)
    model = type(model)(model.config).eval()
    if family == "seq2seq" and not headed:
        model.generation_config.decoder_start_token_id = 0
    computed = computed_parameters(model)
    with torch.no_grad():
        for each, value in model.named_parameters():
            if each not in computed:
                value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder)
    tokenizer(ends=family != "causal").save_pretrained(folder)
    return model


@torch.inference_mode()
def model_logits(model: Any, network: Any, family: str, inputs: dict[str, Tensor]) -> Tensor:
    """Return what the model itself says of a text."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        return model(**inputs).logits
    if family == "seq2seq":
        return model(**inputs, decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[:, 0]
    return model(input_ids=inputs["input_ids"]).logits[:, -1]
