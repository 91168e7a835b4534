"""Comparisons of classifiers of sounds, from params.yaml to their scores, against transformers."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from datasets import Audio, ClassLabel, Value, load_from_disk
from torch import Tensor
from transformers import (
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForAudioClassification,
    WhisperForConditionalGeneration,
)

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.config.columns import columns_by_name, columns_by_type
from merganser.config.drafting import draft
from merganser.config.headers import check_sources
from merganser.config.inferring import kind_advice
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.inputs.factors import parameter_file_name
from merganser.inputs.statistics import unpack_triangle
from merganser.merging.cards import library_of
from merganser.tasks import (
    evaluate,
    extract,
    fetch,
    merge,
    prepare,
)
from tests.tasks.comparison import inside, run_declared
from tests.tiny_sounds import CLASSES, CONFIGS, extractor, logits_of, random_model, sounds, write_data_set

TASKS = {"low": 14, "high": 15}  # sounds of each test split
SECTIONS: dict[str, dict[str, Any]] = {
    "statistics": {"gram": {"kind": "gram", "examples": 8}, "fisher": {"kind": "fisher", "examples": 2}},
    "differences": {"x": {"merged": "average"}},
    "routers": {"x": {"of": "differences/x"}},
    "surgery": {"x": {"of": "differences/x", "rank": 4, "steps": 20, "lr": 0.01}},
    "learned": {
        "adamerging": {"learner": "adamerging", "of": "deltas", "steps": 2, "every": 1, "batch_size": 4, "lr": 0.02}
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "base": {"method": "base", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "tsv_m": {"method": "tsv_m", "reads": "svd"},
    "regmean": {"method": "regmean", "reads": "statistics/gram"},
    "fisher": {"method": "fisher", "reads": "statistics/fisher"},
    "adamerging": {"method": "adamerging", "reads": "learned/adamerging"},
    "individual": {"method": "individual", "reads": "deltas"},
    "twin": {"method": "twin", "reads": "routers/x"},
    "surgery": {"method": "surgery", "reads": "surgery/x"},
}
WHOLE = ("average", "tsv_m", "regmean", "fisher", "adamerging")  # a model is all that these make


def write_sources(folder: Path, kind: str) -> None:
    """Write a trunk without a head, and what was fine-tuned from it: heads of their own, and each its own sounds."""
    base = random_model(kind)
    trunk = base.base_model if kind != "whisper" else base.encoder
    if kind == "whisper":
        whole = WhisperForConditionalGeneration(CONFIGS[kind]())
        whole.model.encoder.load_state_dict(trunk.state_dict())
    else:
        whole = AutoModel.from_config(base.config)
        whole.load_state_dict(trunk.state_dict())
    whole.save_pretrained(folder / "base")
    extractor(kind).save_pretrained(folder / "base")
    for seed, (task, count) in enumerate(TASKS.items()):
        model = random_model(kind, seed=seed + 1)
        own = model.base_model if kind != "whisper" else model.encoder
        own.load_state_dict(trunk.state_dict())
        torch.manual_seed(seed)
        model.config.id2label = dict(enumerate(CLASSES))
        with torch.no_grad():
            for name, value in own.named_parameters():
                if "embed_positions" not in name:
                    value.add_(0.1 * torch.randn_like(value))
            model.classifier.bias.sub_(logits_of(model, kind, sounds(8)).mean(dim=0))
        model.save_pretrained(folder / task)
        extractor(kind).save_pretrained(folder / task)
        write_data_set(folder / f"{task}-data", {"validation": 6, "test": count})


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stages on tasks of which params.yaml says no more than where models and data lie."""
    folder = tmp_path_factory.mktemp("audio")
    write_sources(folder / "sources", "wav2vec2")
    shutil.copyfile(comparison / "mlflow.db", folder / "mlflow.db")  # without runs
    run_declared(folder, TASKS, SECTIONS | {"methods": METHODS}, with_report=True)
    return folder


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    with inside(made):
        yield made


def found_by(model: Any, task: str, split: str = "test") -> list[int]:
    """Classify the sounds of a task's split by a plain loop over transformers."""
    reader, found = AutoFeatureExtractor.from_pretrained(f"sources/{task}"), []
    for row in load_from_disk(f"sources/{task}-data")[split].cast_column("audio", Audio(decode=False)):
        sound, rate = soundfile.read(io.BytesIO(row["audio"]["bytes"]))
        with torch.inference_mode():
            found.append(int(model.eval()(**reader(sound, sampling_rate=rate, return_tensors="pt")).logits.argmax()))
    return found


def test_family_kind_and_heads_follow_from_the_files(folder: Path) -> None:
    params = load_params()
    assert (params.base.family, params.base.heads) == ("audio", ["classifier.*", "projector.*"])
    assert {task.kind for task in params.tasks.values()} == {"audio_classification"}


@pytest.mark.parametrize("task", TASKS)
def test_models_and_merges_score_as_transformers_itself_does(folder: Path, task: str) -> None:
    labels, said = list(load_from_disk(f"sources/{task}-data")["test"]["label"]), set()
    for entry in ("individual", *WHOLE):
        model = AutoModelForAudioClassification.from_pretrained(f"sources/{task}")
        if entry != "individual":
            merged = open_checkpoint(Path(f"data/merged/{entry}"))
            model.wav2vec2.load_state_dict({name: merged.read(name) for name in merged.names})
        found = found_by(model, task)
        score = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
        assert (score["value"], score["count"]) == (np.mean(np.array(found) == labels), TASKS[task])
        results = read_results(Path(f"data/examples/{entry}/{task}.safetensors"))
        assert np.asarray(results.prediction).tolist() == found
        said.add(tuple(found))
        assert entry != "individual" or len(set(found)) > 1
    assert len(said) > 1


def test_gram_matrices_are_those_of_the_frames_of_each_sound_alone(folder: Path) -> None:
    part, name = (
        "encoder.layers.0.feed_forward.intermediate_dense",
        "encoder.layers.0.feed_forward.intermediate_dense.weight",
    )
    model, rows = AutoModelForAudioClassification.from_pretrained("sources/low"), list[Tensor]()
    model.wav2vec2.get_submodule(part).register_forward_pre_hook(lambda _, args: rows.append(args[0].flatten(0, 1)))
    found_by(model, "low", "validation")
    seen = torch.cat(rows).double()
    file = SafetensorsFile(Path("data/statistics/gram/low/gram") / parameter_file_name(name))
    found = unpack_triangle(file.read("gram"), torch.empty(16, 16))
    torch.testing.assert_close(found.double(), seen.T @ seen / len(seen), rtol=1e-4, atol=1e-5)


def test_what_is_added_at_run_time_is_scored_too(folder: Path) -> None:
    trace = json.loads(Path("data/surgery/x/trace.json").read_text())
    for task in TASKS:
        losses = {int(step): loss for step, loss in trace[task]["losses"].items()}
        assert losses[trace[task]["best_step"]] < losses[0]
        for entry in ("twin", "surgery"):
            assert json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())["count"] == TASKS[task]


def test_the_report_has_every_entry_and_cards_say_what_the_models_are_for(folder: Path) -> None:
    rows = {row["entry"]: row for row in csv.DictReader(Path("report/results.csv").read_text().splitlines())}
    assert set(rows) == set(METHODS)
    assert all(rows[entry][task] for entry in METHODS for task in TASKS)
    assert library_of(Path("sources/low"), None) == library_of(Path("sources/low"), "audio")
    assert library_of(Path("sources/low"), None) == ("transformers", "audio-classification")


@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_a_draft_from_models_and_data_alone_is_complete(kind: str, tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", kind)
    places = {name: str(tmp_path / "sources" / name) for name in ("base", *TASKS)}
    with inside(tmp_path):
        found = yaml.safe_load(draft(places, {task: f"{places[task]}-data" for task in TASKS}, tmp_path).text)
        assert (found["base"]["family"], found["base"]["heads"]) == ("audio", ["classifier.*", "projector.*"])
        assert {task["kind"] for task in found["tasks"].values()} == {"audio_classification"}
        Path("params.yaml").write_text(yaml.safe_dump(found))
        complete_file(Path("params.yaml"))
        if kind == "whisper":
            with pytest.raises(
                InputError, match=r"model\.decoder\.embed_positions\.weight .*; fetch the whole model, or leave it"
            ):
                check_sources(load_params(), Path(), lambda path: False)
            merged = {"merged": ["model.encoder.*"], "matrices": "linear"}
            Path("params.yaml").write_text(
                yaml.safe_dump(yaml.safe_load(Path("params.yaml").read_text()) | {"parameters": merged})
            )
        check_sources(load_params(), Path(), lambda path: False)


def test_the_encoder_of_a_whole_whisper_is_merged(tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", "whisper")
    tasks = {task: {"source": f"sources/{task}", "data": {"source": f"sources/{task}-data"}} for task in TASKS}
    params = {"base": {"source": "sources/base", "heads": ["classifier.*", "projector.*"]}, "tasks": tasks}
    params |= {"parameters": {"merged": ["model.encoder.*"], "matrices": "linear"}, "methods": {"average": {}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with inside(tmp_path):
        complete_file(Path("params.yaml"))
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            fetch.main(["data", task])
            prepare.main([task])
            extract.main([task])
        merge.main(["average"])
        for task in TASKS:
            evaluate.main(["average", task])
            model, merged = (
                AutoModelForAudioClassification.from_pretrained(f"sources/{task}"),
                open_checkpoint(Path("data/merged/average")),
            )
            own = {name: merged.read(f"model.encoder.{name}") for name in model.encoder.state_dict()}
            model.encoder.load_state_dict(own)
            results = read_results(Path(f"data/examples/average/{task}.safetensors"))
            assert np.asarray(results.prediction).tolist() == found_by(model, task)


def test_columns_of_sounds_are_found_by_their_type_and_named_in_advice(tmp_path: Path) -> None:
    features = {"clip": Audio(), "word": ClassLabel(names=CLASSES), "speaker": Value("int64")}
    assert columns_by_type(features) == {"audio": "clip", "label": "word"}
    assert columns_by_name({**features, "label": Value("int64")})["audio"] == "clip"
    write_data_set(tmp_path / "data", {"test": 2})
    renamed = load_from_disk(tmp_path / "data").rename_columns({"audio": "clip", "label": "word"})
    renamed.save_to_disk(tmp_path / "renamed")
    said = kind_advice({"source": "renamed"}, "audio", tmp_path / "renamed")
    assert said == "the data has the columns clip, word; set data.columns, as in columns: {audio: clip, label: word}"
