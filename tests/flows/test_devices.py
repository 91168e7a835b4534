"""A declared GPU: refused by name before any work where the stages that compute on it are given none."""

import json
import re
from pathlib import Path

import pytest
import yaml

from merganser.errors import InputError
from merganser.flows.commands.cli import app
from merganser.flows.comparison import MERGANSER
from merganser.flows.steps.devices import changes_for
from tests.dvcfleet.toy import Toy
from tests.gpu import HERE
from tests.tasks.comparison import inside, write_params
from tests.tiny import merganser

STATISTIC = {"kind": "fisher", "examples": 4}
LEARNED = {"learner": "adamerging", "of": "deltas", "steps": 2}


def declare(folder: Path, merge: str, evaluation: str, entries: str = "cpu") -> None:
    """Write a params.yaml with devices; `entries` is that of one statistic and of one that is learned, of two."""
    write_params(folder)
    content = yaml.safe_load((folder / "params.yaml").read_text())
    content["merge"] = {"device": merge}
    content["evaluation"]["device"] = evaluation
    content["statistics"] = {"sure": STATISTIC | {"device": entries}, "sure-light": STATISTIC}
    content["learned"] = {"ours": LEARNED, "ours-too": LEARNED | {"device": entries}}
    (folder / "params.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        ("merge@ties", "merge"),
        ("evaluate@ties-dark", "evaluation"),
        ("search@ties", "evaluation"),
        ("route@twin", "evaluation"),
        ("surgery@ties", "evaluation"),
        ("study_rank@dark-fractions", "evaluation"),
        ("point@ties-0123456789ab", "evaluation"),
        ("step@ties-0123456789ab", "evaluation"),
        ("statistics@sure-dark", "statistics.sure"),
        ("learn@ours-too", "learned.ours-too"),
    ],
)
def test_stages_that_compute_on_a_gpu_and_ask_for_none_are_refused(tmp_path: Path, stage: str, place: str) -> None:
    kind = stage.partition("@")[0]
    declare(tmp_path, "cuda", "cuda", "cuda")
    said = re.escape(f"{place}.device is cuda, and the stage {stage} is given no GPU; ")
    with inside(tmp_path):
        with pytest.raises(InputError, match=rf"{said}.* `{kind}: {{resources: {{gpus: 1}}}}`"):
            MERGANSER.check_gpus({stage: 0})
        MERGANSER.check_gpus({stage: 1})


def test_stages_that_ask_for_a_gpu_or_need_none_may_run(tmp_path: Path) -> None:
    declare(tmp_path, "cuda", "cpu", "cuda")
    asked = {"merge@ties": 1, "evaluate@ties-dark": 0, "extract@dark": 0, "search@ties": 0}
    with inside(tmp_path):
        MERGANSER.check_gpus(asked | {"statistics@sure-light-dark": 0, "learn@ours": 0})


def test_another_device_changes_only_the_sections_that_declare_another(tmp_path: Path) -> None:
    declare(tmp_path, "cuda", "cpu", "cuda")
    declared = [f"{place}.device" for place in ("merge", "statistics.sure", "learned.ours-too")]
    others = [f"{place}.device" for place in ("evaluation", "statistics.sure-light", "learned.ours")]
    assert changes_for("cpu", tmp_path / "params.yaml") == dict.fromkeys(declared, ("cuda", "cpu"))
    assert changes_for("cuda", tmp_path / "params.yaml") == dict.fromkeys(others, ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("content", "place", "tolerance"),
    [
        ({"value": 0.93, "count": 1000, "device": "cuda"}, ("value",), 0.002),  # two examples
        ({"value": -15.0, "count": 10**6}, ("value",), 0.0015),  # 1e-4 of it
        ({"stderr": 0.1, "count": 10}, ("stderr",), 0.2),
        ({"stderr": None, "count": 1}, ("stderr",), 0),
        ({"value": 0.93, "count": 1000}, ("count",), 0),
        ({"metric": "accuracy", "count": 1000}, ("metric",), 0),
        ({"value": 0.93, "count": 1000, "device": "cuda"}, ("device",), None),
        ({"ties": {"mean": 0.9}, "count": {"mean": 0.9}}, ("count", "mean"), None),  # of metrics.json; an entry's name
    ],
)
def test_a_score_may_move_by_two_examples_on_another_device(
    content: dict[str, object], place: tuple[str, ...], tolerance: float | None
) -> None:
    assert MERGANSER.tolerance("data/metrics/ties/dark.json", content, place) == tolerance


def lineage(folder: Path, *args: str) -> str:
    """Verify the lineage of a comparison by the command line, which refuses it; return what it says."""
    with pytest.raises(InputError) as refused:
        app(["lineage", "verify", "--repo", str(folder), *args], standalone_mode=False)
    return str(refused.value)


@pytest.mark.parametrize("option", ["--device=cpu", "--profile=gpu"])
def test_options_of_a_rerun_are_refused_without_one(tmp_path: Path, option: str) -> None:
    assert "--profile and --device are for --rerun" in lineage(tmp_path, option)


@pytest.mark.drill
def test_a_rerun_that_finds_no_gpu_names_the_rerun_without_one(
    tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (
        "stages: {merge: {cmd: echo > out, params: [merge], outs: [out], meta: {dvcfleet: {resources: {gpus: 1}}}}}"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    made = Toy(tmp_path / "toy", stages, {"params.yaml": "merge: {device: cuda}\n"})
    assert made.run()[0] == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = lineage(made.path, "--rerun")
    assert "stage merge: asks for 1 GPUs; this machine has 0" in said
    assert "--rerun --device cpu" in said


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="needs a GPU")
def test_what_ran_on_a_gpu_is_reproduced_there_by_its_bytes_and_on_the_cpu_by_its_scores(tiny_copy: Path) -> None:
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    params["merge"]["device"] = params["evaluation"]["device"] = "cuda"
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    gpu = {"resources": {"gpus": 1}}
    (tiny_copy / "profiles.yaml").write_text(yaml.safe_dump({"gpu": {"stages": {"merge": gpu, "evaluate": gpu}}}))
    merganser(tiny_copy, "run", "--profile", "gpu", "evaluate@ties-dark")
    assert json.loads((tiny_copy / "data/metrics/ties/dark.json").read_text())["device"] == "cuda"
    for how in ("--profile=gpu", "--device=cpu"):
        done = merganser(tiny_copy, "lineage", "verify", "ties/dark", "--rerun", how, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("nothing has changed: "), done.stdout
