"""Recalibrated statistics against PyTorch's own `update_bn` in float64, and a comparison with them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from torch.optim.swa_utils import update_bn

from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.learning.recalibration import mixed_batches, recalibrated
from merganser.models import Network, open_network
from merganser.statistics.sampling import Sample, draw
from merganser.tasks import (
    difference,
    evaluate,
    extract,
    extract_difference,
    fetch,
    learn,
    merge,
    prepare,
    prepare_validation,
)
from merganser.tasks.stages import STAGES, ComparisonSizes
from tests.tasks.comparison import inside
from tests.tasks.test_timm import TASKS, write_comparison
from tests.timm_models import TimmModel, random_timm
from tests.tiny_clip import write_data_set
from tests.tiny_transformers import state_of

PARAMS = """
differences: {from_average: {merged: average}}
learned: {bn: {learner: recalibrate, of: differences/from_average, examples: 10, batch_size: 4}}
methods:
  average: {}
  recalibrated: {method: recalibrate, reads: learned/bn}
validation: {split: validation}
"""


@pytest.fixture(scope="module", params=["timm/resnet", "timm/efficientnet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stages of a comparison with an average, and the same recalibrated."""
    path: Path = tmp_path_factory.mktemp("recalibrated")
    write_comparison(path, request.param)
    for seed, task in enumerate(TASKS):
        write_data_set(path / f"{task}-data", {"validation": 13 + seed, "test": 12}, size=40)
    params = yaml.safe_load((path / "params.yaml").read_text()) | yaml.safe_load(PARAMS)
    (path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with inside(path):
        complete_file(Path("params.yaml"))
        check_sources(load_params(), Path(), lambda path: False)
        fetch.main(["base"])
        for task in TASKS:
            for what in ("task", "data"):
                fetch.main([what, task])
            extract.main([task])
            prepare.main([task])
            prepare_validation.main([f"{task}-split"])
        merge.main(["average"])
        difference.main(["from_average"])
        for task in TASKS:
            extract_difference.main(["from_average", task])
        learn.main(["bn"])
        merge.main(["recalibrated"])
        for task in TASKS:
            evaluate.main(["recalibrated", task])
    return path


def samples_of(folder: Path) -> list[Sample]:
    return [draw(Prepared(folder / "data/validation" / task), 10, 0, task) for task in sorted(TASKS)]


def in_float64(folder: Path) -> tuple[Any, list[Tensor]]:
    """Load the average as timm does, and normalise the batches of pictures, both in float64."""
    network: Any = open_network("timm", folder / "data/merged/average", outputs=3)
    batches = [network._normalised(batch).double() for batch in mixed_batches(network, samples_of(folder), 4)]
    model, _ = TimmModel.from_pretrained(folder / "data/merged/average")
    return model.model.double(), batches


def test_statistics_are_those_of_pytorchs_update_bn_and_weights_stay(folder: Path) -> None:
    model, batches = in_float64(folder)
    assert [len(batch) for batch in batches] == [8, 6, 6]  # 10 pictures of each of two tasks
    for part in model.modules():  # dropout stays off
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    update_bn(batches, model)
    expected = model.state_dict()
    average, found = (state_of(folder / "data/merged" / entry) for entry in ("average", "recalibrated"))
    assert found.keys() == average.keys()
    changed = {name for name in found if not torch.equal(found[name], average[name])}
    assert changed == {name for name in found if name.endswith(("running_mean", "running_var"))}
    for name in changed:
        scale = expected[name].abs().max()
        torch.testing.assert_close(found[name].double() / scale, expected[name] / scale, rtol=0, atol=2e-5)


def test_the_network_is_as_it_was_and_gives_the_same_statistics_again(folder: Path) -> None:
    network: Any = open_network("timm", folder / "data/merged/average", outputs=3)
    state = state_of(folder / "data/merged/average")
    head = {name: torch.zeros(network.module.state_dict()[name].shape) for name in network.module.state_dict()
            if name not in state}  # fmt: skip
    network.load((state | head).items())
    first = recalibrated(network, samples_of(folder), 4)
    assert not any(part.training for part in network.module.modules())
    assert {getattr(part, "momentum", 0.1) for part in network.module.modules()} == {0.1}
    network.load((state | head).items())
    again = recalibrated(network, samples_of(folder), 4)
    assert all(torch.equal(again[name], value) for name, value in first.items())
    written = state_of(folder / "data/merged/recalibrated")
    assert all(torch.equal(written[name], value) for name, value in first.items())


def test_every_picture_is_in_one_batch_with_a_like_share_of_each_task(folder: Path) -> None:
    samples = [draw(Prepared(folder / "data/validation" / task), 99, 3, task) for task in sorted(TASKS)]
    network: Network = open_network("timm", folder / "data/base", outputs=3)
    batches = [batch["pixels"] for batch in mixed_batches(network, samples, 5)]
    assert [len(batch) for batch in batches] == [5 + 5, 4 + 5, 4 + 4]
    seen = sorted(picture.numpy().tobytes() for batch in batches for picture in batch)
    own = [sample.prepared.rows(["pixels"], sample.numbers)["pixels"] for sample in samples]
    assert seen == sorted(picture.numpy().tobytes() for pictures in own for picture in pictures)


def test_a_task_with_few_pictures_makes_no_larger_batches_of_the_others(folder: Path) -> None:
    first, second = (draw(Prepared(folder / "data/validation" / task), 99, 3, task) for task in sorted(TASKS))
    network: Network = open_network("timm", folder / "data/base", outputs=3)
    few = replace(first, numbers=first.numbers[:2])
    batches = [len(batch["pixels"]) for batch in mixed_batches(network, [few, second], 5)]
    assert batches == [1 + 5, 1 + 5, 4]  # 2 and 14 pictures, at most 5 of each task


def test_the_trace_counts_pictures_and_scores_are_those_of_the_new_statistics(folder: Path) -> None:
    trace = json.loads((folder / "data/learned/bn/result/trace.json").read_text())
    assert (trace["forwards"], trace["backwards"]) == (20, 0)
    known = ComparisonSizes(load_params(folder / "params.yaml"), {}, {}, 50, dict.fromkeys(TASKS, 12), {})
    assert STAGES["learn"].tokens(known, "bn") == 20 * 50
    for task in TASKS:
        score = json.loads((folder / f"data/metrics/recalibrated/{task}.json").read_text())
        assert score["count"] == 12
        assert np.isfinite(score["value"])


def test_a_model_without_batch_normalisation_is_refused_before_any_work(tmp_path: Path) -> None:
    write_comparison(tmp_path, "timm/vit")
    params = yaml.safe_load((tmp_path / "params.yaml").read_text()) | yaml.safe_load(PARAMS)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with inside(tmp_path):
        complete_file(Path("params.yaml"))
        said = r"learned\.bn\.learner: recalibrate needs batch normalisation, and no merged parameter"
        with pytest.raises(InputError, match=said):
            check_sources(load_params(), Path(), lambda path: False)
    random_timm("timm/vit").save_pretrained(tmp_path / "model")
    network = open_network("timm", tmp_path / "model", outputs=3)
    with pytest.raises(InputError, match="VisionTransformer has no batch normalisation to recalibrate"):
        recalibrated(network, [], 4)


def test_one_picture_that_a_channel_has_one_value_of_is_refused(folder: Path) -> None:
    network = open_network("timm", folder / "data/base", outputs=3)
    alone = [Sample(each.task, 0, each.prepared, each.numbers[:1]) for each in samples_of(folder)[:1]]
    with pytest.raises(InputError, match="batch normalisation cannot be recalibrated: Expected more than 1 value"):
        recalibrated(network, alone, 1)


@pytest.mark.parametrize("about", [{"of": "deltas"}, {}])
def test_what_is_recalibrated_is_a_merge(about: dict[str, str], tmp_path: Path) -> None:
    write_comparison(tmp_path, "timm/resnet")
    params = yaml.safe_load((tmp_path / "params.yaml").read_text()) | yaml.safe_load(PARAMS)
    params["learned"] = {"bn": {"learner": "recalibrate", **about}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with inside(tmp_path), pytest.raises(InputError, match=r"learned\.bn\.of: "):
        completed_params()


def completed_params() -> Params:
    complete_file(Path("params.yaml"))
    return load_params()
