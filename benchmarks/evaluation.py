"""Measure evaluations against loops written plainly: `python -m benchmarks.evaluation`.

Pictures are JPEGs of 500 x 375 pixels, for a ViT-B/32 of open_clip; texts have 20 to 60 words, for a BERT-base of
transformers. Both networks have random weights, which take as long as trained ones.

    start      importing the libraries
    inputs     what the network reads: decoded and resized, or tokenised, each time; or as the stage `prepare` left it
    forward    the network alone

The plain loops take the libraries' own transform, tokenizer and model; ours is what the stage `evaluate` runs. The
sides take turns in one process. With --device cuda both run there.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import RESULTS, as_table, described, machine, write_results
from benchmarks.models import make_models
from merganser.checkpoints.reading import open_checkpoint
from merganser.evaluation.evaluator import Evaluator, open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.models import Network, open_network

COUNT, BATCH, TIMES = 256, 64, 3
WIDTH, HEIGHT = 500, 375
CLASSES = [f"class {number}" for number in range(10)]
WORDS = 20, 60  # of a text, from and to
LENGTH = 64  # tokens of a text at most


@dataclass(frozen=True)
class Case:
    """One family on its data: the plain loop's two halves, and what ours reads and runs."""

    name: str
    unit: str
    inputs: Callable[[], list[Tensor | dict[str, Tensor]]]  # of the plain loop, batch by batch, made anew
    forward: Callable[[Any], Tensor]  # the plain loop's
    evaluator: Evaluator
    network: Network
    prepared: Prepared
    preparing_s: float


def main() -> None:
    """Measure each case; print a table of rates and one of shares, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help=f"examples ({COUNT})")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each side ({TIMES})")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    about = described(machine())
    print(f"{about}; {torch.get_num_threads()} threads; {device_name(options.device)}\n", flush=True)
    found = {}
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        for case in cases(Path(folder), options.count, options.device):
            found[case.name] = measure_case(case, options.count, options.times)
            print(report(case, found[case.name]), flush=True)
    write_results(options.json or RESULTS / "evaluation.json", found)


def device_name(device: str) -> str:
    """Name the GPU, or say that there is none in use."""
    return torch.cuda.get_device_name() if device == "cuda" else "on the CPU"


def cases(folder: Path, count: int, device: Any) -> Iterator[Case]:
    """Make each case: model and data on disk, and the data prepared."""
    from datasets import disable_progress_bars

    disable_progress_bars()
    yield pictures_case(folder / "pictures", count, device)
    yield texts_case(folder / "texts", count, device)


def pictures_case(folder: Path, count: int, device: Any) -> Case:
    """Classify pictures by open_clip's ViT-B/32 with class heads of prompts."""
    import open_clip
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
    from PIL import Image as Picture

    base, _ = make_models(folder / "models", tasks=0)
    rows: dict[str, list[Any]] = {
        "image": [{"bytes": jpeg(number), "path": None} for number in range(count)],
        "label": [number % len(CLASSES) for number in range(count)],
    }
    features = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    DatasetDict({"test": Dataset.from_dict(rows, features)}).save_to_disk(folder / "data")
    plain, _, transform = open_clip.create_model_and_transforms("ViT-B-32", device=device)
    plain.eval()
    head = torch.randn(len(CLASSES), 512, device=device)

    def inputs() -> list[Any]:
        images = [transform(Picture.open(io.BytesIO(row["bytes"])).convert("RGB")) for row in rows["image"]]
        return [torch.stack(images[start : start + BATCH]) for start in range(0, count, BATCH)]

    def forward(batch: Tensor) -> Tensor:
        with torch.inference_mode():
            return (plain.encode_image(batch.to(device), normalize=True) @ head.T).argmax(1).cpu()

    evaluator = open_evaluator("image_classification", {"templates": ["a photo of {}."]}, None)
    return finished("ViT-B/32, pictures", "images", inputs, forward, evaluator, "open_clip", base, folder, device)


def texts_case(folder: Path, count: int, device: Any) -> Case:
    """Classify texts by a BERT-base of transformers."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    generator = np.random.default_rng(0)
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *(f"w{n}" for n in range(20_000))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.model_max_length = LENGTH
    config = BertConfig(vocab_size=len(vocabulary))
    config.num_labels = len(CLASSES)
    plain = BertForSequenceClassification(config).eval()
    plain.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    plain.to(device)
    texts = [
        " ".join(f"w{word}" for word in generator.integers(20_000, size=generator.integers(*WORDS)))
        for _ in range(count)
    ]
    features = Features({"text": Value("string"), "label": ClassLabel(names=CLASSES)})
    rows = {"text": texts, "label": [number % len(CLASSES) for number in range(count)]}
    DatasetDict({"test": Dataset.from_dict(rows, features)}).save_to_disk(folder / "data")

    def inputs() -> list[Any]:
        groups = [texts[start : start + BATCH] for start in range(0, count, BATCH)]
        return [dict(tokenizer(group, padding=True, truncation=True, return_tensors="pt")) for group in groups]

    def forward(batch: dict[str, Tensor]) -> Tensor:
        with torch.inference_mode():
            return plain(**{name: value.to(device) for name, value in batch.items()}).logits.argmax(1).cpu()

    evaluator = open_evaluator("text_classification", {"max_length": LENGTH}, None)
    return finished("BERT-base, texts", "texts", inputs, forward, evaluator, "encoder", folder / "base", folder, device)


def finished(
    name: str,
    unit: str,
    inputs: Callable[[], list[Any]],
    forward: Callable[[Any], Tensor],
    evaluator: Evaluator,
    family: str,
    base: Path,
    folder: Path,
    device: Any,
) -> Case:
    """Prepare the data as the stage does, and load the network as `evaluate` does."""
    outputs = evaluator.outputs(evaluator.classes(folder / "data"))
    network = open_network(family, base, outputs=outputs, device=device)
    (folder / "prepared").mkdir()
    began = time.perf_counter()
    evaluator.prepare(folder / "data", "test", network, folder / "prepared")
    preparing = time.perf_counter() - began
    checkpoint = open_checkpoint(base)
    network.load((each, checkpoint.read(each)) for each in checkpoint.names)
    return Case(name, unit, inputs, forward, evaluator, network, Prepared(folder / "prepared"), preparing)


def jpeg(number: int) -> bytes:
    """Draw a picture with gradients and grain, as a JPEG."""
    from PIL import Image as Picture

    generator = np.random.default_rng(number)
    x, y = np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT)[:, None]
    waves = [np.sin(generator.uniform(2, 20) * (x + generator.uniform() * y)) for _ in range(3)]
    grain = generator.normal(0, 12, (HEIGHT, WIDTH, 3))
    drawn = (np.stack(waves, 2) * 80 + 128 + grain).clip(0, 255).astype(np.uint8)
    written = io.BytesIO()
    Picture.fromarray(drawn).save(written, "JPEG", quality=90)
    return written.getvalue()


def measure_case(case: Case, count: int, times: int) -> dict[str, Any]:
    """Measure both sides in turn: seconds of each part, the median of all rounds."""
    batches = case.inputs()
    for batch in batches[:1]:
        case.forward(batch)  # the first call of each side finds its kernels
    case.evaluator.results(case.network, case.prepared, BATCH)
    rounds: dict[str, list[float]] = {name: [] for name in ("plain_inputs", "plain_forward", "ours_inputs", "ours")}
    for _ in range(times):
        rounds["plain_inputs"].append(seconds(case.inputs))
        rounds["plain_forward"].append(seconds(lambda: [case.forward(batch) for batch in batches]))
        rounds["ours_inputs"].append(seconds(lambda: read_all(case.prepared)))
        rounds["ours"].append(seconds(lambda: case.evaluator.results(case.network, case.prepared, BATCH)))
    medians = {name: median(values) for name, values in rounds.items()}
    return medians | {"preparing": case.preparing_s, "count": count, "start": start_s(case)}


def read_all(prepared: Prepared) -> None:
    """Read all arrays batch by batch."""
    for _ in prepared.batches(prepared.about["arrays"], BATCH):
        pass


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of some work."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def start_s(case: Case) -> float:
    """Return the wall time of a process that imports what an evaluation needs, and builds its network."""
    import subprocess

    family = type(case.network).__module__.rpartition(".")[2]
    program = f"import merganser.evaluation.evaluator, merganser.models.families.{family}"
    return seconds(lambda: subprocess.run([sys.executable, "-c", program], check=True))


def report(case: Case, found: Mapping[str, float]) -> str:
    """Write a case's rates and shares as Markdown."""
    rate = {name: found["count"] / found[name] for name in ("plain_inputs", "plain_forward", "ours_inputs", "ours")}
    loop = found["count"] / (found["plain_inputs"] + found["plain_forward"])
    heads = (case.name, f"inputs, {case.unit}/s", f"forward, {case.unit}/s", f"whole loop, {case.unit}/s")
    forward = found["count"] / max(found["ours"] - found["ours_inputs"], 1e-9)
    table = [
        ["plain loop", f"{rate['plain_inputs']:.0f}", f"{rate['plain_forward']:.1f}", f"{loop:.1f}"],
        ["ours, prepared", f"{rate['ours_inputs']:.0f}", f"{forward:.1f}", f"{rate['ours']:.1f}"],
        [
            "ours / plain",
            f"{rate['ours_inputs'] / rate['plain_inputs']:.1f}",
            f"{forward / rate['plain_forward']:.2f}",
            f"{rate['ours'] / loop:.2f}",
        ],
    ]
    whole = found["start"] + found["plain_inputs"] + found["plain_forward"]
    shares = {name: 100 * found[name] / whole for name in ("start", "plain_inputs", "plain_forward")}
    said = ", ".join(f"{name.removeprefix('plain_')} {share:.0f} %" for name, share in shares.items())
    return (
        f"{as_table(heads, table)}\n\nOne plain evaluation of {found['count']:.0f} {case.unit}: {said}. "
        f"Ours with prepared inputs runs at {rate['ours'] / rate['plain_forward']:.2f} of the plain forward rate; "
        f"preparing took {found['preparing']:.1f} s, once a task.\n"
    )


if __name__ == "__main__":
    main()
