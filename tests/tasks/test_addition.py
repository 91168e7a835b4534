"""What is put into a network at evaluation, added in a method's file and a module that nothing else names."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from merganser import methods, registry
from merganser.at_run_time import additions, running
from merganser.errors import InputError
from merganser.merging.method import REGISTERED
from merganser.models import open_network
from merganser.standalone.reconstruct import opened_parts
from merganser.tasks import evaluate, merge
from tests.tasks.comparison import TASKS, inside

METHOD = '''
"""The sum of the deltas, whose features a network turns the other way at evaluation."""
from merganser.at_run_time.additions import toy_turn
from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method
from merganser.operators.sums import scaled_sum


@method(
    family="learned",
    formula="-h",
    paper="none",
    law="turned twice nothing changes",
    at_run_time=toy_turn,
)
def toy(layer: LayerDeltas, *, factor: float = -1.0):
    """Add the deltas; multiply the features by a factor at evaluation."""
    return scaled_sum(layer.deltas, 1.0)
'''
ADDITION = '''
"""A factor on the features."""
import json
from contextlib import contextmanager

from merganser.at_run_time import Running
from merganser.overlays import task_model

FILE = "toy_turn.json"
HOLDS = "what features are multiplied by"
TRAINED = None
TASK_GIVEN = True


def write(folder, values, source, read):
    (folder / FILE).write_text(json.dumps(values["factor"]))


@contextmanager
def put_in(network, merged, task, head):
    factor = json.loads((merged / FILE).read_text())
    network.load(head.put_on(task_model(merged, task)))
    with network.changing(lambda features: factor * features):
        yield Running(network, None)
'''
PROMPTS = [["a dark image."], ["a light image."], ["a red image."]]


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Iterator[Path]:
    """Work in a comparison of its two entries, where the packages of methods and of additions look into a module."""
    added = {methods: ("toy", METHOD), additions: ("toy_turn", ADDITION)}
    for package, (name, text) in added.items():
        place = tmp_path / package.__name__
        place.mkdir()
        (place / f"{name}.py").write_text(text)
        package.__path__.append(str(place))
    for name in ("base", "deltas", "heads", "prepared", "sources"):
        shutil.copytree(comparison / "data" / name, tmp_path / "data" / name)
    params = yaml.safe_load((comparison / "params.yaml").read_text())
    entries = {"turned": {"method": "toy", "reads": "deltas"}}
    entries["sum"] = {"method": "task_arithmetic", "reads": "deltas", "scaling": 1.0}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params | {"methods": entries, "studies": {}}))
    try:
        with inside(tmp_path):
            yield tmp_path
    finally:
        REGISTERED.pop("toy", None)
        for package, (name, _) in added.items():
            package.__path__.pop()
            sys.modules.pop(f"{package.__name__}.{name}", None)


def test_a_method_and_its_addition_are_merged_evaluated_counted_and_carded(folder: Path) -> None:
    for entry in ("turned", "sum"):
        merge.main([entry])
    for task in TASKS:
        evaluate.main(["turned", task])
        assert json.loads(Path(f"data/metrics/turned/{task}.json").read_text())["count"] > 0
    turned, plain = (Path("data/merged") / entry for entry in ("turned", "sum"))
    assert (turned / "toy_turn.json").read_text() == "-1.0"
    assert (turned / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    images = {"pixels": torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)}
    scores = []
    for merged in (turned, plain):
        network = open_network("open_clip", merged)
        with running(network, merged, "red") as (runner, counts):
            network.head(PROMPTS)  # type: ignore[attr-defined]
            scores.append(runner.logits(images))
        assert counts is None
    assert torch.equal(scores[0], -scores[1])
    rates = [json.loads(Path(f"data/profiles/merge/{entry}.json").read_text())["amr"] for entry in ("turned", "sum")]
    assert rates[0] > rates[1] == 0
    card = (turned / "README.md").read_text()
    assert "- `toy_turn.json`: what features are multiplied by" in card
    assert f'running(network, folder, task="{TASKS[0]}")' in card
    assert "## Use" not in (plain / "README.md").read_text()
    assert not registry.get("toy").one_model
    with pytest.raises(InputError, match=r"toy_turn\.json has for red what features are multiplied by"):
        opened_parts(turned, "red")
