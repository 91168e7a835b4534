"""What a comparison that never ran will download is asked of its hub, and what it will write follows from that."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml

from dvcfleet.project import Expected
from merganser.config.params import Params
from merganser.flows.steps.expected import START_S, expect
from merganser.machine import bytes_a_second, flop_a_second
from tests.hub import Hub, serve
from tests.tiny import ROOT

TINY = yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text())
SIZES = {"models/base": 4000, "models/dark": 1000, "models/light": 1000, "datasets/dark": 300, "datasets/light": 500}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a base, two models and their data, and pointers to them in the current folder."""
    folders = {}
    for name, size in SIZES.items():
        folder = folders[name] = tmp_path / "hub" / name
        folder.mkdir(parents=True)
        (folder / ("model.safetensors" if "models" in name else "rows.parquet")).write_bytes(b"x" * size)
        pointer = tmp_path / f"{name.replace('/', '-')}.yaml"
        pointer.write_text(f"{{hub: {folder.name}, follow: main}}")
    with serve(folders) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.chdir(tmp_path)
        yield hub


def comparison(**sections: Any) -> Params:
    tasks = {
        name: {**TINY["tasks"]["dark"], "source": f"models-{name}.yaml"}
        | {"data": TINY["tasks"]["dark"]["data"] | {"source": f"datasets-{name}.yaml"}}
        for name in ("dark", "light")
    }
    base = TINY["base"] | {"source": "models-base.yaml"}
    return Params.model_validate({"base": base, "tasks": tasks, **sections})


def stages(params: Params) -> dict[str, tuple[str, ...]]:
    """The stages of a comparison that write models, or run them on examples, and what each reads from."""
    read: dict[str, tuple[str, ...]] = {"fetch_base": (), "measure": ()}
    for task in params.tasks:
        read |= {f"fetch@{task}": (), f"fetch_data@{task}": (), f"prepare@{task}": (f"fetch_data@{task}",)}
        read |= {f"extract@{task}": (f"fetch@{task}",), f"decompose@{task}": (f"extract@{task}",)}
    for method in params.methods:
        read[f"merge@{method}"] = ("fetch_base", *(f"extract@{task}" for task in params.tasks))
        read |= {f"evaluate@{method}-{task}": (f"merge@{method}", f"prepare@{task}") for task in params.tasks}
    read |= {f"join@{name}": () for name in params.joints}
    for name in params.differences:
        read[f"difference@{name}"] = ()
        read |= {f"extract_difference@{name}-{task}": (f"difference@{name}",) for task in params.tasks}
    return read


METHODS = {
    "ties": {"method": "ties", "reads": "deltas"},
    "emr": {"method": "emr", "reads": "deltas"},
    "individual": {"method": "individual", "reads": "deltas"},
}


def test_sizes_come_from_the_hub_and_from_the_table_of_stages(hub: Hub) -> None:
    params = comparison(
        methods=METHODS,
        decompose={"rank_fraction": 0.5},
        joints={"rows": {"side": "rows"}},
        differences={"ties": {"merged": "ties"}},
    )
    sources = [Path(f"{name.replace('/', '-')}.yaml") for name in SIZES]
    found = expect(params, stages(params))
    assert found.downloads == dict(zip(sources, SIZES.values(), strict=True))
    models = {f"{kind}@{task}": 1000 for kind in ("fetch", "extract") for task in ("dark", "light")}
    assert found.written == models | {
        "fetch_base": 4000,
        "fetch_data@dark": 300,
        "fetch_data@light": 500,
        "decompose@dark": 750,  # half of the vectors of both sides of matrices of N x N and N x 4 N
        "decompose@light": 750,
        "join@rows": 3500,
        "difference@ties": 4000,
        "extract_difference@ties-dark": 1000,
        "extract_difference@ties-light": 1000,
        "merge@ties": 4000,
        "merge@emr": 4250,  # two tasks' masks and scales
        "merge@individual": 6000,
    }


def test_deltas_are_in_float32_whatever_the_models_are_in(hub: Hub) -> None:
    said = {"base": '{"dtype": "bfloat16"}', "dark": '{"text_config": {"torch_dtype": "float16"}}'}
    for name, configuration in said.items():
        (hub.folders[f"models/{name}"] / "config.json").write_text(configuration)
    base, dark = (SIZES[f"models/{name}"] + len(configuration) for name, configuration in said.items())
    params = comparison(methods=METHODS, decompose={"rank_fraction": 0.5, "dtype": "float16"})
    found = expect(params, stages(params)).written
    assert (found["fetch_base"], found["fetch@dark"]) == (base, dark)
    assert (found["extract@dark"], found["extract@light"]) == (2 * dark, 1000)
    assert found["decompose@dark"] == 0.75 * dark
    assert found["merge@ties"] == base
    assert found["merge@individual"] == base + 2 * dark + 1000


def test_of_a_hub_that_does_not_answer_nothing_is_expected(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    del hub.folders["models/base"]
    params = comparison(methods=METHODS)
    found = expect(params, stages(params))
    assert found.downloads[Path("models-dark.yaml")] == 1000
    assert Path("models-base.yaml") not in found.downloads
    assert not any(name.startswith("merge") for name in found.written)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert expect(params, stages(params)) == Expected()


def test_times_follow_from_the_size_of_the_base_and_the_examples_that_footers_count(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in {"dark": 1000, "light": 3000}.items():
        table = pyarrow.table({"image": [b"."] * count, "label": [0] * count})
        folder = hub.folders[f"datasets/{name}"]
        (folder / "rows.parquet").unlink()
        pyarrow.parquet.write_table(table, folder / "test-00000-of-00001.parquet", row_group_size=100)
    base = hub.folders["models/base"]
    (base / "config.json").write_text('{"vision_config": {"image_size": 224, "patch_size": 32}}')
    with (base / "model.safetensors").open("wb") as file:
        file.truncate(4 * 8_500_000)
    params = comparison(methods=METHODS, evaluation={"split": "test"})
    read = stages(params)
    found = expect(params, read).seconds
    flops = {name: 2 * 8.5e6 * 50 * count for name, count in {"dark": 1000, "light": 3000}.items()}
    for task, each in flops.items():
        moved = 4 * 8_500_000 / bytes_a_second()
        assert found[f"evaluate@ties-{task}"] == pytest.approx(START_S + moved + each / flop_a_second("cpu"), rel=0.01)
    decomposed = 2 * 8.5e6 * (64 / 12 * 8.5e6) ** (1 / 3) / flop_a_second("cpu")
    assert found["decompose@dark"] == pytest.approx(START_S + 4 * decomposed, rel=0.01)
    assert found["measure"] == pytest.approx(START_S + 11 * 2 * decomposed, rel=0.01)
    assert sum(name.startswith("evaluate@") for name in found) == 6
    assert not any(name.startswith("prepare@") for name in found)
    on_gpu = comparison(methods=METHODS, evaluation={"split": "test", "device": "cuda"})
    there = expect(on_gpu, read).seconds
    assert there["merge@ties"] == pytest.approx(found["merge@ties"])
    assert ("evaluate@ties-light" in there) == torch.cuda.is_available()
    # Of a group those of its members count, each by its own name of the split.
    group = "a: {hub: light, follow: main}, b: {hub: light, follow: main, splits: {test: other}}"
    group += ", c: {hub: dark, follow: main, splits: {other: test}}"
    Path("datasets-light.yaml").write_text(f"group: {{{group}}}")
    shutil.copy(*(hub.folders["datasets/light"] / f"{name}-00000-of-00001.parquet" for name in ("test", "other")))
    assert expect(params, read).seconds["evaluate@ties-light"] == pytest.approx(
        2 * found["evaluate@ties-light"], rel=0.1
    )
    Path("datasets-light.yaml").write_text("{hub: light, follow: main}")
    # Examples that nobody can count are not reckoned with.
    (hub.folders["datasets/light"] / "test-00000-of-00001.parquet").write_bytes(b"spoilt")
    again = expect(params, read).seconds
    assert "evaluate@ties-dark" in again
    assert "evaluate@ties-light" not in again


def test_of_models_on_this_disk_the_weights_count_and_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = comparison(methods=METHODS)
    places = [Path(params.base.source), *(Path(task.source) for task in params.tasks.values())]
    sources = {place: Path(str(place).removesuffix(".yaml")) for place in places}
    for folder in sources.values():
        folder.mkdir()
        for name, size in {"model.safetensors": 1000, "pytorch_model.bin": 1000, "optimizer.pt": 9000}.items():
            (folder / name).write_bytes(b"x" * size)
    local = params.model_dump(exclude_unset=True)
    local["base"]["source"] = str(sources[places[0]])
    for task in local["tasks"].values():
        task["source"] = str(sources[Path(task["source"])])
    found = expect(Params.model_validate(local), stages(params))
    assert not found.downloads
    assert (found.written["fetch_base"], found.written["extract@dark"]) == (1000, 1000)
    assert found.seconds["merge@ties"] == pytest.approx(START_S, rel=0.1)
