"""Twin-Merging and FREE-Merging from params.yaml to their scores, against the models they mix, each made by hand."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from merganser.at_run_time import running
from merganser.at_run_time.additions.router import (
    BUDGET,
    Router,
    check_scores,
    open_mixtures,
    read_router,
    shares,
    write_router,
)
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.evaluation.scoring import score_of
from merganser.models import open_network
from merganser.overlays import FILE, OverlayFile, task_model
from merganser.tasks import evaluate, extract_difference, merge, prepare, route
from merganser.tasks import surgery as operate
from tests.tasks.comparison import CONFIG, TASKS, inside, run_to_difference, write_params, write_sources
from tests.tasks.test_difference import change_params
from tests.tiny_clip import score_clip
from tests.tiny_transformers import write_model

METHODS: dict[str, dict[str, Any]] = {
    "sum": {"method": "task_arithmetic", "reads": "deltas", "scaling": 0.3},
    "twin": {"method": "twin", "reads": "routers/x", "rank_fraction": 1.0},
    "small": {"method": "twin", "reads": "routers/x"},
    "free": {"method": "free", "reads": "routers/base", "density": 0.1},
    "surgery": {"method": "surgery", "reads": "surgery/x"},
}
START = {"twin": "data/merged/sum", "free": "data/base"}  # the model whose features the router sees
both = pytest.mark.parametrize("entry", list(START))
PROMPTS = [["a dark image."], ["a light image."], ["a red image."]]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twin")
    write_params(folder, METHODS)
    of = {"of": "differences/x"}
    routers, surgery = {"x": of, "base": {"of": "deltas"}}, {"x": of | {"rank": 2, "steps": 5}}
    change_params(folder, differences={"x": {"merged": "sum"}}, routers=routers, surgery=surgery)
    write_sources(folder / "sources")
    with inside(folder):
        run_to_difference("sum")
        for task in TASKS:
            extract_difference.main(["x", task])
        for router in routers:
            route.main([router])
        operate.main(["x"])
        for entry in list(METHODS)[1:]:
            merge.main([entry])
        for entry in START:
            for task in TASKS:
                evaluate.main([entry, task])
    return folder


def parameters(folder: Path) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.names}


def mixed(carried: Path, weights: dict[str, float], entry: str = "twin", budget: int = BUDGET) -> dict[str, Tensor]:
    """Give what an example with these weights is scored by."""
    merged = carried / "data/merged" / entry
    overlays = OverlayFile(merged / FILE)
    row = torch.tensor([[weights.get(task, 0.0) for task in overlays.tasks]])
    (found,) = open_mixtures(open_checkpoint(merged), overlays, budget).models(row)
    return parameters(merged) | found


@pytest.mark.parametrize("entry", ["twin", "free"])
def test_parts_that_do_not_fit_into_memory_multiplied_out_are_mixed_to_the_same(entry: str, carried: Path) -> None:
    weights = {"dark": 0.25, "red": 0.75}
    found, expected = mixed(carried, weights, entry, budget=0), mixed(carried, weights, entry)
    merged = carried / "data/merged" / entry
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)
        by_hand = OverlayFile(merged / FILE).mixture(weights, name, tuple(found[name].shape))
        if by_hand is not None:
            torch.testing.assert_close(found[name], parameters(merged)[name] + by_hand, rtol=1e-5, atol=1e-6)


def test_parts_are_read_once_for_all_examples(carried: Path, tmp_path: Path) -> None:
    shutil.copytree(carried / "data/merged/twin", tmp_path, dirs_exist_ok=True)
    network: Any = open_network("open_clip", tmp_path)
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with running(network, tmp_path) as (runner, _):
        network.head(PROMPTS)
        expected = runner.logits({"pixels": images})
        (tmp_path / FILE).unlink()
        assert torch.equal(runner.logits({"pixels": images}), expected)


def test_many_mixtures_at_once_are_those_one_by_one(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = carried / "data/merged/twin"
    mixtures = open_mixtures(open_checkpoint(merged), OverlayFile(merged / FILE))
    weights = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    together = list(mixtures.models(weights))
    monkeypatch.setattr("merganser.at_run_time.additions.router.AT_ONCE", 2 * mixtures.size)
    for one, other in zip(mixtures.models(weights), together, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-6, atol=1e-7)


def test_one_task_alone_is_that_tasks_own_model_at_full_rank(carried: Path) -> None:
    own, found = parameters(carried / "data/checkpoints/red"), mixed(carried, {"red": 1.0})
    for name in (name for name in own if name.startswith("visual.")):
        torch.testing.assert_close(found[name], own[name], rtol=1e-4, atol=1e-5)


def test_equal_weights_give_the_average_at_any_scaling_of_the_shared_model(carried: Path) -> None:
    models = [parameters(carried / "data/checkpoints" / task) for task in TASKS]
    found = mixed(carried, dict.fromkeys(TASKS, 1 / 3))
    for name in (name for name in models[0] if name.startswith("visual.")):
        average = torch.stack([model[name].double() for model in models]).mean(dim=0)
        torch.testing.assert_close(found[name].double(), average, rtol=1e-4, atol=1e-5)


def test_no_weight_is_the_shared_model(carried: Path) -> None:
    shared, found = parameters(carried / "data/merged/sum"), mixed(carried, {})
    assert all(torch.equal(found[name], shared[name]) for name in shared)


def test_an_example_of_several_tasks_has_what_free_shares_once_and_of_each_expert_its_share(carried: Path) -> None:
    base, unified = (parameters(carried / "data" / path) for path in ("base", "merged/free/unified.safetensors"))
    own = {task: dict(task_model(carried / "data/merged/free", task)) for task in TASKS}
    weights = dict(zip(TASKS, (0.5, 0.2, 0.3), strict=True))
    found = mixed(carried, weights, "free")
    for name, shared in unified.items():
        experts = {task: own[task][name].double() - base[name] - shared for task in TASKS}
        expected = base[name].double() + shared + sum(weights[task] * expert for task, expert in experts.items())
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert any(expert.abs().max() > 0.1 for expert in experts.values())


@both
def test_each_image_is_scored_by_the_mixture_that_the_router_gives_it(entry: str, carried: Path) -> None:
    merged = carried / "data/merged" / entry
    network = open_network("open_clip", merged)
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with running(network, merged) as (runner, _):
        head = network.head(PROMPTS)  # type: ignore[attr-defined]
        found = runner.logits({"pixels": images})
        alone = torch.cat([runner.logits({"pixels": image[None]}) for image in images])
    torch.testing.assert_close(alone, found)
    shared = open_network("open_clip", carried / START[entry])
    shared.load(parameters(carried / START[entry]).items())
    router = read_router(merged)
    given = shares(router.probabilities(shared.features({"pixels": images})))
    for number, row in enumerate(given.tolist()):
        shared.load(mixed(carried, dict(zip(router.tasks, row, strict=True)), entry).items())
        expected = shared.features({"pixels": images[number : number + 1]}) @ head.T
        torch.testing.assert_close(found[number : number + 1], expected, rtol=1e-4, atol=1e-4)


@both
def test_scores_say_what_is_known_what_is_routed_and_how_often_the_router_is_right(entry: str, carried: Path) -> None:
    for task in TASKS:
        score = json.loads((carried / f"data/metrics/{entry}/{task}.json").read_text())
        assert {"value", "known", "router"} <= score.keys()
        assert 0 <= score["router"] <= 1


@both
def test_a_router_that_is_always_right_scores_as_if_the_task_were_known(
    entry: str, carried: Path, tmp_path: Path
) -> None:
    merged = carried / "data/merged" / entry
    for path in merged.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "router.safetensors").unlink()
    tasks = tuple(sorted(TASKS))
    write_router(tmp_path, Router(tasks, torch.zeros(3, 16), 1e3 * torch.eye(3)[tasks.index("red")]))
    network = open_network("open_clip", merged)
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    with running(network, tmp_path) as (runner, seen):
        network.head(PROMPTS)  # type: ignore[attr-defined]
        found = runner.logits({"pixels": images})
    assert seen is not None
    assert seen.accuracy("red") == 1
    assert seen.accuracy("dark") == 0
    network.load(task_model(merged, "red"))
    network.head(PROMPTS)  # type: ignore[attr-defined]
    torch.testing.assert_close(found, network.logits({"pixels": images}), rtol=1e-5, atol=1e-5)


def test_with_the_tasks_label_the_model_is_run_as_its_own_checkpoint_says(carried: Path, tmp_path: Path) -> None:
    for name in ("base", "companions", "datasets", "heads", "merged/twin"):
        shutil.copytree(carried / "data" / name, tmp_path / "data" / name)
    shutil.copyfile(carried / "params.yaml", tmp_path / "params.yaml")
    said = CONFIG | {"preprocess_cfg": {"mean": [0.1, 0.5, 0.9], "std": [0.1, 0.2, 0.4]}}
    (tmp_path / "data/companions/red/open_clip_config.json").write_text(json.dumps(said))
    with inside(tmp_path):
        prepare.main(["red"])
        evaluate.main(["twin", "red"])
    before, found = (json.loads((each / "data/metrics/twin/red.json").read_text()) for each in (carried, tmp_path))
    data = carried / "sources/red-data"
    (tmp_path / "own").mkdir()
    (tmp_path / "own/open_clip_config.json").write_text(json.dumps(said))
    own = score_clip(tmp_path / "own", task_model(carried / "data/merged/twin", "red"), data)
    assert {key: found[key] for key in ("value", "router")} == {key: before[key] for key in ("value", "router")}
    assert found["known"] == score_of("accuracy", own)["value"] != before["known"]


def test_the_rate_counts_the_parts_and_the_router(carried: Path) -> None:
    folder, rates = carried / "data/merged", {}
    for entry in ("twin", "small", "free"):
        rates[entry] = json.loads((carried / f"data/profiles/merge/{entry}.json").read_text())["amr"]
    values = sum(value.numel() for name, value in parameters(folder / "twin").items() if name.startswith("visual."))
    for entry in START:
        stored = sum((folder / entry / name).stat().st_size for name in (FILE, "router.safetensors"))
        assert rates[entry] == pytest.approx(stored / 3 / (4 * values))
    assert rates["small"] < rates["twin"]
    profile = json.loads((carried / "data/profiles/merge/twin.json").read_text())
    assert profile["routers"] == {"forwards": 3 * 6, "backwards": 0}


@pytest.mark.parametrize("entry", ["twin", "free", "surgery"])
def test_the_lines_of_the_card_load_and_run_the_merge(entry: str, carried: Path, capsys: Any) -> None:
    folder = carried / "data/merged" / entry
    card = (folder / "README.md").read_text()
    lines = card.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in lines.splitlines() if line]) <= 11
    Image.fromarray(np.full((20, 20, 3), 90, dtype=np.uint8)).save(folder / "picture.png")
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(lines, "card", "exec"), {})
    finally:
        os.chdir(before)
        (folder / "picture.png").unlink()
    assert capsys.readouterr().out.startswith("tensor([")
    assert "Each task's class head is given" in card


def test_a_network_that_writes_text_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "gpt2")
    with pytest.raises(InputError, match=r"routers\.x, a: routing works only for tasks with classes or numbers"):
        check_scores(open_network("causal", tmp_path), "routers.x, a")
