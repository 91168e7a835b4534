"""Stages on a declared GPU; a merge on a pretended one where there is none."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from merganser import registry
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.inputs.deltas import open_deltas
from merganser.studies.merges import merge_results
from merganser.tasks import evaluate, merge
from merganser.tasks.scoring import open_tasks
from merganser.tasks.stages import DATA
from tests.gpu import MEMORY, every_gpu, pretended, pretended_gpu, real_gpu
from tests.tasks.comparison import TASKS, inside

Gpu = Callable[[], AbstractContextManager[None]]


def declare(folder: Path, section: str, **choices: str) -> None:
    content = yaml.safe_load((folder / "params.yaml").read_text())
    content[section] = content.get(section, {}) | choices
    (folder / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


@every_gpu
def test_a_merge_runs_on_the_declared_gpu_and_says_so(comparison: Path, tmp_path: Path, gpu: Gpu) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "copy"))
    declare(folder, "merge", device="cuda")
    cpu = load_file(folder / "data/merged/average/model.safetensors")
    assert json.loads((folder / "data/profiles/merge/average.json").read_text())["device"] == "cpu"
    with inside(folder), gpu():
        merge.main(["average"])
    found = load_file(folder / "data/merged/average/model.safetensors")
    for name, value in cpu.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert json.loads((folder / "data/profiles/merge/average.json").read_text())["device"].startswith("cuda (")


@real_gpu[0]
@real_gpu[1]
def test_an_evaluation_runs_on_the_declared_gpu_and_says_so(comparison: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "copy"))
    file, examples = (folder / f"data/{name}" for name in ("metrics/sum/red.json", "examples/sum/red.safetensors"))
    before, predicted = json.loads(file.read_text()), load_file(examples)["prediction"]
    assert before["device"] == "cpu"
    declare(folder, "evaluation", device="cuda")
    with inside(folder):
        evaluate.main(["sum", "red"])
    assert json.loads(file.read_text()) == before | {"device": "cuda"}
    assert torch.equal(load_file(examples)["prediction"], predicted)


@pretended_gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_merges_of_studies_and_searches_are_made_on_the_device_of_evaluations(
    comparison: Path, tmp_path: Path, device: str
) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "copy"))
    declare(folder, "evaluation", device=device)
    average = registry.get("average")
    with inside(folder), pretended():
        setup = open_tasks(load_params(), DATA / "test", ())
        source = open_deltas(DATA / "deltas", list(TASKS))
        MEMORY.reset()
        before = MEMORY.used
        assert not list(merge_results(average, average.validate("average", {}), source, setup, tmp_path / "out"))
        assert (MEMORY.peak > before) == (device == "cuda")
    cpu = load_file(comparison / "data/merged/average/model.safetensors")
    for name, value in load_file(tmp_path / "out/model.safetensors").items():
        torch.testing.assert_close(value, cpu[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("section", ["merge", "evaluation"])
def test_a_gpu_that_is_not_there_is_refused_and_nothing_is_lost(
    comparison: Path, tmp_path: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "copy"))
    declare(folder, section, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = {path: path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()}
    with inside(folder), pytest.raises(InputError, match=rf"^{section}\.device: cuda, and this stage sees no"):
        merge.main(["average"]) if section == "merge" else evaluate.main(["average", "red"])
    assert {path: path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()} == before
