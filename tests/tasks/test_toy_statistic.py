"""A kind of statistic, a module that nothing else names, and a method that reads it."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from merganser import methods, registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.merging.method import REGISTERED
from merganser.statistics import get_kind, kinds
from merganser.tasks import merge, prepare_validation, statistics
from tests.tasks.comparison import TASKS, inside

KIND = '''
"""The mean of the absolute inputs of each linear map, for each entry of its rows."""
import torch

from merganser.inputs.factors import parameter_file_name
from merganser.inputs.statistics import StatisticsIndex
from merganser.statistics import write_statistic


def measure(setting, folder):
    sample, (network, deltas) = setting.load(setting.deltas), (setting.setup.network, setting.deltas)
    sums = {}

    def take(name, rows):
        sums[name] = sums.get(name, 0) + rows.abs().sum(0)

    with torch.inference_mode(), network.watch(take):
        for inputs in sample.batches(network, 8):
            network.features(inputs)
    shapes = {name: deltas.shape(name) for name, kind in deltas.kinds.items() if kind == "matrix"}
    matrices = [name for name in sums if name in shapes and shapes[name][1] == len(sums[name])]
    (folder / "sizes").mkdir(exist_ok=True)
    for name in matrices:
        write_statistic(folder / "sizes", name, sums[name].expand(shapes[name]).contiguous(), setting.origin)
    files = {name: parameter_file_name(name) for name in matrices}
    return StatisticsIndex(len(sample), len(sample), 0, {"sizes": files}), len(files)
'''
METHOD = '''
"""The mean of the deltas, weighted entry by entry by the sizes of the inputs."""
from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method


@method(family="statistics", formula="m", paper="none", law="equal inputs give the average", statistics=("sizes",))
def by_size(layer: LayerDeltas):
    """Weigh each task's delta by the sizes of its inputs."""
    if "sizes" not in layer.statistics.measured:
        return layer.deltas.mean(0)
    sizes = layer.statistics["sizes"]
    return (sizes * layer.deltas).sum(0) / sizes.sum(0)
'''


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Iterator[Path]:
    """Work in a comparison of one entry, where the packages of methods and of kinds look into a further folder."""
    added = {methods: ("by_size", METHOD), kinds: ("sizes", KIND)}
    for package, (name, text) in added.items():
        place = tmp_path / package.__name__
        place.mkdir()
        (place / f"{name}.py").write_text(text)
        package.__path__.append(str(place))
    made = Path(shutil.copytree(comparison, tmp_path / "comparison"))
    params = yaml.safe_load((made / "params.yaml").read_text())
    entries = {"weighed": {"method": "by_size", "reads": "statistics/x"}}
    more = {"statistics": {"x": {"kind": "sizes", "examples": 4}}, "methods": entries, "studies": {}}
    (made / "params.yaml").write_text(yaml.safe_dump(params | more))
    try:
        with inside(made):
            yield made
    finally:
        REGISTERED.pop("by_size", None)
        for package, (name, _) in added.items():
            package.__path__.pop()
            sys.modules.pop(f"{package.__name__}.{name}", None)


@pytest.mark.usefixtures("folder")
def test_a_kind_of_statistic_is_a_module_and_a_method_reads_it() -> None:
    for task in TASKS:
        prepare_validation.main([f"{task}-split"])
        statistics.main([f"x-{task}"])
    merge.main(["weighed"])
    assert registry.get("by_size").needs == ["deltas", "sizes"]
    base, merged = (open_checkpoint(Path("data", name)) for name in ("base", "merged/weighed"))
    moved = [name for name in merged.names if not torch.equal(base.read(name), merged.read(name))]
    assert "visual.transformer.resblocks.0.mlp.c_fc.weight" in moved


def test_what_it_lacks_is_refused_by_name(folder: Path) -> None:
    path = folder / "params.yaml"
    path.write_text(path.read_text().replace("kind: sizes", "kind: sizes\n    base: true"))
    with pytest.raises(InputError, match=r"statistics\.x\.base: only kind: fisher measures the base model too"):
        load_params(path)
    path.write_text(path.read_text().replace("kind: sizes", "kind: sises"))
    with pytest.raises(InputError, match="'sises' is not a kind of statistic; known: fisher, gram, sizes; did"):
        load_params(path)
    with pytest.raises(InputError, match="is not a kind of statistic"):
        get_kind("sises")


@pytest.mark.usefixtures("folder")
def test_what_it_says_that_it_wrote_is_there_in_float32_and_nothing_else(tmp_path: Path) -> None:
    """Finished files are kept between runs: one that the module did not write again would be another measurement's."""
    prepare_validation.main(["dark-split"])
    file, written = tmp_path / kinds.__name__ / "sizes.py", Path("data/statistics/x/dark/sizes")
    statistics.main(["x-dark"])
    first = {path.name: path.read_bytes() for path in written.iterdir()}
    file.write_text(KIND.replace(".contiguous()", ".double().contiguous()"))
    sys.modules.pop(f"{kinds.__name__}.sizes")
    (written / "left.safetensors").touch()
    statistics.main(["x-dark"])
    assert {path.name: path.read_bytes() for path in written.iterdir()} == first
    file.write_text(KIND.replace("for name in matrices}", 'for name in [*matrices, "other"]}'))
    sys.modules.pop(f"{kinds.__name__}.sizes")
    with pytest.raises(InputError, match=r"kinds/sizes\.py: its index has sizes of other, which it did not write"):
        statistics.main(["x-dark"])
