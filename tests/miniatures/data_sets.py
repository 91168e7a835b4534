"""Data sets as their repositories on the hub are laid out: configurations, splits, columns, classes; a few rows.

Texts and pictures are random. Each class stands in each split whose labels are there.
"""

import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Picture

OWN_CLASSES = 2
ROWS = 16  # of a split, or one a class if that is more
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "dark", "light", "of", "image"]
SECRET = ("test", "test_matched", "test_mismatched")  # of GLUE, whose labels there are -1


@dataclass(frozen=True)
class Pictures:
    """A data set of pictures in parquet; `label` is "names" for a column with class names, else the type of its values.

    `others`: columns that no task reads. `tar`: in WebDataset's archives instead, whose columns are named by endings.
    """

    classes: int
    templates: int  # of prompts, in FusionBench
    splits: tuple[str, ...] = ("train", "test")
    config: str = "default"
    label: str = "names"
    others: tuple[str, ...] = ()
    tar: bool = False


@dataclass(frozen=True)
class Texts:
    """A configuration of texts; no classes: scores from 0 to 5."""

    columns: tuple[str, ...]
    classes: int
    splits: tuple[str, ...] = ("train", "validation", "test")


PICTURES = {
    "tanganke/sun397": Pictures(397, 2),
    "tanganke/stanford_cars": Pictures(196, 8),
    "tanganke/resisc45": Pictures(45, 18),
    "tanganke/eurosat": Pictures(10, 3),
    "tanganke/gtsrb": Pictures(43, 3),
    "tanganke/dtd": Pictures(47, 8),
    "tanganke/stl10": Pictures(10, 2),
    "tanganke/cifar10": Pictures(10, 18),
    "tanganke/cifar100": Pictures(100, 18),
    "tanganke/emnist_letters": Pictures(26, 1),
    "tanganke/emnist_mnist": Pictures(10, 1),
    "tanganke/kmnist": Pictures(10, 1),
    "ufldl-stanford/svhn": Pictures(10, 1, ("train", "test", "extra"), config="cropped_digits"),
    "ylecun/mnist": Pictures(10, 1, config="mnist"),
    "dpdl-benchmark/oxford_flowers102": Pictures(102, 1, ("train", "validation", "test")),
    "timm/oxford-iiit-pet": Pictures(37, 1, others=("image_id", "label_cat_dog")),
    "ethz/food101": Pictures(101, 1, ("train", "validation")),
    "zalando-datasets/fashion_mnist": Pictures(10, 2, config="fashion_mnist"),
    "nateraw/rendered-sst2": Pictures(2, 1, ("train", "validation", "test")),
    "1aurent/PatchCamelyon": Pictures(2, 1, ("train", "valid", "test"), label="bool"),
    "clip-benchmark/wds_fer2013": Pictures(7, 6, tar=True),
}
PAIR = ("sentence1", "sentence2")
MATCHED = ("matched", "mismatched")
TEXTS = {
    "nyu-mll/glue": {
        "cola": Texts(("sentence",), 2),
        "mnli": Texts(
            ("premise", "hypothesis"),
            3,
            ("train", *(f"{part}_{m}" for part in ("validation", "test") for m in MATCHED)),
        ),
        "mrpc": Texts(PAIR, 2),
        "qnli": Texts(("question", "sentence"), 2),
        "qqp": Texts(("question1", "question2"), 2),
        "rte": Texts(PAIR, 2),
        "sst2": Texts(("sentence",), 2),
        "stsb": Texts(PAIR, 0),
    }
}


def write_own(folder: Path) -> None:
    """Write a data set of one's own as `datasets` saves it: pairs of texts, a class, and an answer in words."""
    features = Features(
        {
            **dict.fromkeys(("text", "pair", "answer"), Value("string")),
            "label": ClassLabel(names=[f"answer {number}" for number in range(OWN_CLASSES)]),
        }
    )
    draw, made = np.random.default_rng(0), {}
    for split in ("train", "validation", "test"):
        rows = {name: [" ".join(draw.choice(WORDS, 5)) for _ in range(ROWS)] for name in ("text", "pair")}
        labels = [number % OWN_CLASSES for number in range(ROWS)]
        rows |= {"answer": [WORDS[label] for label in labels], "label": labels}
        made[split] = Dataset.from_dict(rows, features=features)
    DatasetDict(made).save_to_disk(folder)


def write_data_set(hub: str, folder: Path) -> None:
    """Write a data set's repository."""
    folder.mkdir(parents=True)
    if hub in TEXTS:
        written = {config: _write_texts(folder, config, texts) for config, texts in TEXTS[hub].items()}
    elif PICTURES[hub].tar:
        _write_archives(folder, PICTURES[hub])
        return
    else:
        written = {PICTURES[hub].config: _write_pictures(folder, PICTURES[hub])}
    configs = [
        {"config_name": config, "data_files": [{"split": split, "path": f"{path}-*"} for split, path in paths.items()]}
        for config, paths in written.items()
    ]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")


def _write_texts(folder: Path, config: str, texts: Texts) -> dict[str, str]:
    """Write one configuration; return where each split is."""
    draw = np.random.default_rng(len(config))
    label = ClassLabel(names=[f"answer {number}" for number in range(texts.classes)]) if texts.classes else None
    columns = {name: Value("string") for name in texts.columns}
    features = Features({**columns, "label": label or Value("float32"), "idx": Value("int32")})
    paths = {}
    for split in texts.splits:
        secret = split in SECRET
        labels = [number % texts.classes if label else round(5 * draw.random(), 2) for number in range(ROWS)]
        rows = {name: [" ".join(draw.choice(WORDS, 5)) for _ in range(ROWS)] for name in texts.columns}
        rows |= {"label": [-1 if secret else each for each in labels], "idx": list(range(ROWS))}
        paths[split] = f"{config}/{split}"
        _write_shards(Dataset.from_dict(rows, features=features), folder / paths[split], 1)
    return paths


def _write_pictures(folder: Path, pictures: Pictures) -> dict[str, str]:
    """Write a data set of pictures, its training split in two shards; return where each split is."""
    names = ClassLabel(names=[f"class {number}" for number in range(pictures.classes)])
    label = names if pictures.label == "names" else Value(pictures.label)
    others = {name: Value("string") for name in pictures.others}
    features = Features({"image": Image(), "label": label, **others})
    place = "data" if pictures.config == "default" else pictures.config
    paths = {split: f"{place}/{split}" for split in pictures.splits}
    for split, path in paths.items():
        labels = [number % pictures.classes for number in range(max(ROWS, pictures.classes))]
        if pictures.label == "bool":
            labels = [bool(number) for number in labels]
        rows = {"image": _drawn(len(labels)), "label": labels} | {name: ["x"] * len(labels) for name in others}
        _write_shards(Dataset.from_dict(rows, features=features), folder / path, 2 if split == "train" else 1)
    return paths


def _write_shards(rows: Dataset, path: Path, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    for number in range(count):
        shard = rows.shard(count, number, contiguous=True)
        shard.to_parquet(path.with_name(f"{path.name}-{number:05}-of-{count:05}.parquet"))


def _write_archives(folder: Path, pictures: Pictures) -> None:
    """Write each split as an archive of `s0000000.jpg` and `s0000000.cls`, as clip-benchmark does."""
    for split in pictures.splits:
        (folder / split).mkdir()
        with tarfile.open(folder / split / "0.tar", "w") as archive:
            for number, picture in enumerate(_drawn(ROWS)):
                _add(archive, f"s{number:07}.cls", str(number % pictures.classes).encode())
                _add(archive, f"s{number:07}.jpg", _encoded(picture))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _encoded(picture: Any) -> bytes:
    written = io.BytesIO()
    picture.save(written, "JPEG")
    return written.getvalue()


@cache
def _drawn(count: int) -> list[Any]:
    """Draw pictures of noise, of a size that a processor has to change."""
    draw = np.random.default_rng(count)
    return [Picture.fromarray(draw.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(count)]
