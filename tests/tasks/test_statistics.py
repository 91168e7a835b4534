"""The stage of statistics, what a kill leaves of it, and the merges that read it."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.config.points import SCORES, Points
from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas
from merganser.inputs.statistics import open_statistics
from merganser.outputs import read_json
from merganser.tasks import merge, prepare_validation, statistics
from merganser.tasks.stages import POINTS
from tests import PYTHONPATH
from tests.support import python
from tests.tasks.comparison import TASKS, inside, measure_points, write_params
from tests.tasks.test_difference import change_params

ROOT = Path(__file__).resolve().parents[2]
STATISTICS: dict[str, dict[str, Any]] = {
    "gram": {"kind": "gram", "examples": 4},
    "fisher": {"kind": "fisher", "examples": 4, "base": True},
}
METHODS: dict[str, dict[str, Any]] = {
    "average": {"method": "average", "reads": "deltas"},
    "regmean": {"method": "regmean", "reads": "statistics/gram"},
    "fisher": {"method": "fisher", "reads": "statistics/fisher"},
    "gradient_matching": {"method": "gradient_matching", "reads": "statistics/fisher"},
}
# the stage, one parameter a pass, killed from within as it writes its fifth file
KILLED = """
import os, signal, sys
from pathlib import Path
from merganser.config.loading import load_params
from merganser.inputs import factors
from merganser import statistics as written
from merganser.statistics.kinds import fisher, gram
from merganser.tasks import statistics
whole, count = written.write_statistic, []
def write(*args):
    count.append(1)
    if len(count) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    whole(*args)
fisher.write_statistic = gram.write_statistic = write
statistics.measure(load_params(Path("params.yaml")), sys.argv[1], "dark", budget=1)
"""


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison with statistics, and merges of them."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("statistics") / "comparison"))
    write_params(folder, METHODS)
    studies = {"tasks": {"subsets": 2, "methods": {"regmean": METHODS["regmean"]}}, "rank": {"fractions": []}}
    change_params(folder, statistics=STATISTICS, studies=studies)
    with inside(folder):
        for task in TASKS:
            prepare_validation.main([f"{task}-split"])
            for name in STATISTICS:
                statistics.main([f"{name}-{task}"])
        for entry in METHODS:
            merge.main([entry])
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def layers(folder: Path, name: str) -> dict[str, LayerDeltas]:
    source = open_statistics(folder / "data/statistics" / name, list(TASKS))
    return {layer.name: layer for layer in source if isinstance(layer, LayerDeltas)}


def test_every_matrix_has_its_inputs_and_every_parameter_its_information(made: Path) -> None:
    of_inputs, information = layers(made, "gram"), layers(made, "fisher")
    assert set(of_inputs) == set(information)
    for name, layer in of_inputs.items():
        gram, side = layer.statistics.measured.get("gram"), layer.statistics.side
        assert (gram is not None) == (layer.kind == "matrix"), name
        assert side == ("rows" if name == "visual.proj" else "columns")
        if gram is not None:
            assert gram.shape == (3, *[layer.shape[0 if side == "rows" else 1]] * 2)
            assert torch.equal(gram, gram.mT)
    for layer in information.values():
        for measured in (layer.statistics["fisher"], layer.statistics["base_fisher"]):
            assert measured is not None
            assert measured.shape == layer.deltas.shape
            assert (measured >= 0).all()
            assert measured.any()


def test_the_deltas_lie_beside_as_links(made: Path) -> None:
    for task in TASKS:
        assert (made / f"data/statistics/gram/{task}.safetensors").samefile(made / f"data/deltas/{task}.safetensors")


def test_each_merge_is_another_and_near_the_average(made: Path) -> None:
    models = {entry: open_checkpoint(made / "data/merged" / entry) for entry in METHODS}
    for name in ("visual.proj", "visual.conv1.weight", "visual.transformer.resblocks.0.attn.in_proj_weight"):
        average = models["average"].read(name)
        apart = {entry: float((model.read(name) - average).norm()) for entry, model in models.items()}
        assert apart.pop("average") == 0
        assert all(0 < each < 2 * float(average.norm()) for each in apart.values())
        assert len(set(apart.values())) == len(apart)
    torch.testing.assert_close(
        models["regmean"].read("visual.ln_post.bias"), models["average"].read("visual.ln_post.bias")
    )


def test_the_merges_profiles_say_what_they_cost(made: Path) -> None:
    both = {"forwards": 3 * 2 * 4, "backwards": 3 * 2 * 4}  # tasks, models and examples
    inputs = {"forwards": 3 * 4, "backwards": 0}
    for entry, cost in {"average": None, "regmean": inputs, "fisher": both, "gradient_matching": both}.items():
        profile = json.loads((made / f"data/profiles/merge/{entry}.json").read_text())
        assert profile.get("statistics") == cost


def test_a_second_start_measures_nothing_and_keeps_every_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(folder / "data/statistics")
    for name, count in (("gram", 6), ("fisher", 2 * len(layers(folder, "fisher")))):
        statistics.main([name, "dark"])
        assert capsys.readouterr().out == f"dark: 0 files of {name} measured on 4 examples, {count} were there\n"
    assert content(folder / "data/statistics") == before


@pytest.mark.parametrize(("name", "at"), [("gram", 5), pytest.param("fisher", 20, marks=pytest.mark.drill)])
def test_a_killed_stage_goes_on_to_the_same_bytes(
    name: str, at: int, folder: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "data/statistics" / name
    shutil.rmtree(out / "dark")
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([*python(), "-c", KILLED, name, str(at)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    statistics.main([name, "dark"])
    assert f", {at - 1} were there" in capsys.readouterr().out
    assert content(out) == content(made / "data/statistics" / name)


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({"statistics": {**STATISTICS, "gram": {"kind": "gram", "examples": 5}}}, True),
        ({"seed": 1}, True),
        ({"evaluation": {"split": "test", "batch_size": 7}}, False),
    ],
)
def test_what_they_come_from_decides_whether_they_are_measured_again(
    change: dict[str, Any], measured: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_params(folder, **change)
    statistics.main(["gram", "dark"])
    assert (": 0 files" not in capsys.readouterr().out) is measured


def test_what_is_of_another_kind_leaves_the_folder(folder: Path) -> None:
    own = {"kind": "fisher", "examples": 4}
    change_params(folder, statistics={"fisher": own}, methods={"average": METHODS["average"]}, studies={})
    before = content(folder / "data/statistics/fisher/dark/fisher")
    statistics.main(["fisher", "dark"])
    assert {path.name for path in (folder / "data/statistics/fisher/dark").iterdir()} == {"fisher", "index.json"}
    assert content(folder / "data/statistics/fisher/dark/fisher") == before


def test_a_study_reads_the_statistics_of_its_subsets(folder: Path) -> None:
    measure_points()
    subsets = Points(load_params()).task_study("regmean")
    assert TASKS in subsets
    for subset, place in subsets.items():
        assert set(read_json(POINTS / place.folder / SCORES)["scores"]) == set(subset)


def test_statistics_of_another_architecture_are_named(folder: Path) -> None:
    path = folder / "data/statistics/gram/red/gram/visual.proj.safetensors"
    save_tensors(path, {"gram": torch.zeros(10)}, '{"fingerprint": "x"}')
    with pytest.raises(InputError, match=r"gram of visual\.proj has shape \[10\].* of another architecture"):
        merge.main(["regmean"])


@pytest.mark.parametrize("kind", ["gram", "fisher"])
def test_a_task_has_no_say_over_a_map_that_none_of_its_examples_reach_and_lacks_no_other_statistic(
    folder: Path, kind: str
) -> None:
    path = folder / f"data/statistics/{kind}/red/index.json"
    index = read_json(path)
    assert index.get("unreached") == ([] if kind == "gram" else None)
    del index["files"][kind]["visual.proj"]
    index["sides"].pop("visual.proj", None)
    path.unlink()
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match=rf"red: no {kind} of visual\.proj, which .* has; measure it again"):
        merge.main([{"gram": "regmean"}.get(kind, kind)])
    if kind == "gram":
        path.write_text(json.dumps(index | {"unreached": ["visual.proj"]}))
        found = layers(folder, "gram")["visual.proj"].statistics["gram"]
        assert [bool(gram.any()) for gram in found] == [task != "red" for task in sorted(TASKS)]
        merge.main(["regmean"])


def test_statistics_that_are_missing_are_named(folder: Path) -> None:
    shutil.rmtree(folder / "data/statistics/gram/red")
    with pytest.raises(InputError, match=r"red/index\.json: no statistics; run the stage statistics first"):
        merge.main(["regmean"])


def test_a_statistic_that_is_not_declared_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"merganser.tasks.statistics: expected two names, got grams-dark"):
        statistics.main(["grams-dark"])


def test_a_comparison_with_statistics_is_right(made: Path) -> None:
    assert load_params(made / "params.yaml").statistics["fisher"].measured == ("fisher", "base_fisher")
