"""Golden comparisons: tiny ones that together run the stages, methods, families, kinds of task and forms of input.

Each is a params.yaml in this folder, with models and data that are drawn with the same bytes each time.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from torch import Tensor

from tests.tasks import test_audio, test_sentences, test_timm, test_token_stages
from tests.tasks.test_language_models import GROUP, ROWS, adapted
from tests.tasks.test_texts import write_sources as write_encoders
from tests.tasks.test_vocabulary import OWN
from tests.tiny import make_models
from tests.tiny_clip import write_data_set
from tests.tiny_transformers import random_model, tokenizer, write_model
from tests.worded_models import save
from tools.golden.run import SKIPPED

HERE = Path(__file__).parent
PICTURES = {"dark": 9, "light": 10, "held": 8}  # examples of each data set's test split


def _image(folder: Path) -> None:
    make_models(folder / "hub")
    _pictures(folder, {name: {"validation": 6, "test": count} for name, count in PICTURES.items()})
    shutil.copyfile(HERE / "figures.yaml", folder / "published.yaml")


def _dual(kind: str, dtype: torch.dtype) -> Callable[[Path], None]:
    """Return what writes a dual encoder of transformers and two models fine-tuned from it."""

    def write(folder: Path) -> None:
        write_model(folder / "hub/base", kind, dtype=dtype)
        for seed, task in enumerate(("dark", "light")):
            _move(random_model(kind, dtype=dtype), seed).save_pretrained(folder / "hub" / task)
        _pictures(folder, {"dark": {"test": 9}, "light": {"test": 10}})

    return write


def _sources(write_them: Callable[..., None], *of: str) -> Callable[[Path], None]:
    """Return what writes into a folder what a test of stages reads."""
    return lambda folder: write_them(folder / "sources", *of)


def _vision(folder: Path) -> None:
    """Write an image classifier with batch normalisation, and two that are fine-tuned from it."""
    kind = "ResNetForImageClassification"
    write_model(folder / "hub/base", kind, 3)
    for seed, task in enumerate(("dark", "light")):
        _move(random_model(kind, 3), seed).save_pretrained(folder / "hub" / task)
    _pictures(folder, {"dark": {"validation": 6, "test": 9}, "light": {"validation": 6, "test": 10}})


def _causal(folder: Path) -> None:
    """Write a decoder, LoRA adapters of it, and data of each kind of task for it."""
    sources = folder / "sources"
    write_model(sources / "base", "llama, tied")
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(sources / "data")
    for name, rows in GROUP.items():
        DatasetDict({"test": Dataset.from_list(rows)}).save_to_disk(sources / name)
    for seed, task in enumerate(("chosen", "ranked", "written", "spare")):
        adapted(sources / "base", seed).save_pretrained(str(sources / task))


def _seq2seq(folder: Path) -> None:
    sources = folder / "sources"
    write_model(sources / "base", "t5")
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(sources / "data")
    for seed, task in enumerate(("first", "second")):
        _move(random_model("t5"), seed).save_pretrained(sources / task)
        tokenizer().save_pretrained(sources / task)


def _vocabulary(folder: Path) -> None:
    for task, words in OWN.items():
        save(folder / "sources" / task, "untied", words, task, "words")
    DatasetDict({"test": Dataset.from_dict({"text": ["c"] * 4, "label": [0, 1] * 2})}).save_to_disk(
        folder / "sources/data"
    )


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "clip": _dual("clip", torch.float16),
    "siglip": _dual("siglip", torch.bfloat16),
    "vision": _vision,
    "timm": _sources(test_timm.write_comparison, "timm/resnet"),
    "audio": _sources(test_audio.write_sources, "wav2vec2"),
    "encoder": _sources(write_encoders),
    "reader": _sources(test_token_stages.write_sources, "reader"),
    "token_classifier": _sources(test_token_stages.write_sources, "token_classifier"),
    "sentence_encoder": _sources(test_sentences.write_sources),
    "causal": _causal,
    "seq2seq": _seq2seq,
    "vocabulary": _vocabulary,
    "image": _image,
    "choices": _image,
}
# Kinds of stage that do not run: nobody compares what they write, or another golden comparison has them.
LEFT_OUT = ("record", "report")
MEASURES = ("measure", "measure_merged")
LEFT_OUT_OF = {
    "choices": ("evaluate", *MEASURES),
    **dict.fromkeys(("timm", "audio", "reader", "token_classifier", "sentence_encoder"), MEASURES),
}


def write(name: str, folder: Path) -> None:
    """Write what a golden comparison reads."""
    MAKERS[name](folder)
    (folder / SKIPPED).write_text(json.dumps([*LEFT_OUT, *LEFT_OUT_OF.get(name, ())]))


def _move(model: Any, seed: int) -> Any:
    """Move a model's weights a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(_drawn(value, generator))
    return model


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    return 0.02 * torch.randn(like.shape, generator=generator).to(like.dtype)


def _pictures(folder: Path, splits: Mapping[str, Mapping[str, int]]) -> None:
    for name, counts in splits.items():
        write_data_set(folder / "datasets" / name, dict(counts))
