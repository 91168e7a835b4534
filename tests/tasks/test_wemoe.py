"""WEMoE from params.yaml to its scores: routers learned inside the network, one example apart from another."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from merganser.at_run_time import running
from merganser.at_run_time.additions.block_routers import FILE as BLOCK_ROUTERS
from merganser.at_run_time.additions.block_routers import read_block_routers, write_block_routers
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.inputs.learned import read_learned
from merganser.models import open_network
from merganser.overlays import FILE, task_model
from merganser.tasks import evaluate, learn, merge, prepare_validation
from tests.tasks.comparison import TASKS, inside
from tests.tasks.test_learn import READ, change, content, merged, trace

STEPS = {"learner": "wemoe", "of": "deltas", "steps": 6, "every": 3, "batch_size": 4, "lr": 0.02}
LEARNED: dict[str, dict[str, Any]] = {"moe": STEPS, "none": {**STEPS, "steps": 0}}
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"method": "wemoe", "reads": f"learned/{name}"} for name in LEARNED},
    "sum": {"method": "task_arithmetic", "reads": "deltas", "scaling": 0.3},
}
PROMPTS = [["a dark image."], ["a light image."], ["a red image."]]
NEAR = 5e-7  # in features of unit length: an example alone and in a batch


@pytest.fixture(scope="module")
def carried(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wemoe")
    shutil.copyfile(comparison / "params.yaml", folder / "params.yaml")
    for name in (*READ, "prepared"):
        shutil.copytree(comparison / "data" / name, folder / "data" / name)
    with inside(folder):
        change(learned=LEARNED, methods=METHODS)
        for task in TASKS:
            prepare_validation.main([f"{task}-split"])
        for name in LEARNED:
            learn.main([name])
        for name in METHODS:
            merge.main([name])
        for task in TASKS:
            evaluate.main([f"moe-{task}"])
    return folder


@pytest.fixture
def inside_it(carried: Path) -> Iterator[Path]:
    with inside(carried):
        yield Path()


def pictures(count: int = 5) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def features(entry: str, *batches: Tensor) -> Tensor:
    """Give the unit features of pictures, routed, batch by batch."""
    folder = Path("data/merged") / entry
    network = open_network("open_clip", folder)
    with running(network, folder):
        return torch.cat([network.features({"pixels": batch}) for batch in batches])


def plain(model: dict[str, Tensor]) -> Tensor:
    network = open_network("open_clip", Path("data/base"))
    network.load(model.items())
    return network.features({"pixels": pictures()})


def test_before_the_first_step_it_is_task_arithmetic(inside_it: Path) -> None:
    folder = Path("data/merged/sum")
    expected = plain({name: open_checkpoint(folder).read(name) for name in open_checkpoint(folder).names})
    torch.testing.assert_close(features("none", pictures()), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(plain(merged(torch.full((1, 3), 0.3))), expected, rtol=0, atol=2e-6)
    assert (features("moe", pictures()) - expected).abs().max() > 1e-3


def test_routers_that_give_everything_to_one_task_give_what_the_task_has_with_its_label(
    inside_it: Path, tmp_path: Path
) -> None:
    folder = Path("data/merged/moe").absolute()
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / BLOCK_ROUTERS).unlink()
    tasks, values = tuple(sorted(TASKS)), {}
    for block, router in read_block_routers(folder, tasks).items():
        one = (torch.arange(3) == tasks.index("red")).float()
        values |= {f"{block}/{k}": v for k, v in router._replace(out=0 * router.out, out_bias=one)._asdict().items()}
    write_block_routers(tmp_path, values, tasks)
    network = open_network("open_clip", folder)
    with running(network, tmp_path) as (_, counts):
        found = network.features({"pixels": pictures()})
    assert counts is not None
    assert (counts.accuracy("red"), counts.accuracy("dark")) == (1, 0)
    torch.testing.assert_close(found, plain(dict(task_model(folder, "red"))), rtol=0, atol=2e-6)


def test_an_images_features_do_not_depend_on_its_batch(inside_it: Path) -> None:
    images = pictures()
    together, alone = features("moe", images), features("moe", *images.split(1))
    assert (together - alone).abs().max() < NEAR
    assert (together - features("moe", images.flip(0)).flip(0)).abs().max() < NEAR


def test_entropy_falls_and_the_best_is_kept(inside_it: Path) -> None:
    found = trace("moe")
    checks = {check["step"]: check["loss"] for check in found["checks"]}
    assert list(checks) == [0, 3, 6]
    assert checks[found["best_step"]] == min(checks.values()) < 0.95 * checks[0]
    assert trace("none")["checks"][0]["loss"] == checks[0]
    assert found["backwards"] == 6 * 3 * 4


def test_learning_in_two_parts_gives_the_same_bytes(carried: Path, tmp_path: Path) -> None:
    shutil.copytree(carried, tmp_path / "copy")
    with inside(tmp_path / "copy"):
        whole = content("moe")
        shutil.rmtree("data/learned/moe")
        for steps in (3, 6):
            change(learned={"moe": {**STEPS, "steps": steps}}, methods={"moe": METHODS["moe"]})
            learn.main(["moe"])
        assert content("moe") == whole


def test_scores_say_what_is_known_and_how_the_routers_chose(inside_it: Path) -> None:
    for task in TASKS:
        score = json.loads(Path(f"data/metrics/moe/{task}.json").read_text())
        assert {"value", "known", "router"} <= score.keys()
        assert 0 <= score["router"] <= 1


def test_each_seeds_routers_are_learned_and_evaluated(carried: Path, tmp_path: Path) -> None:
    shutil.copytree(carried, tmp_path / "copy")
    with inside(tmp_path / "copy"):
        change(learned={"moe": STEPS}, methods={"moe": METHODS["moe"]})
        first = json.loads(Path("data/metrics/moe/red.json").read_text())
        change(seed=[0, 5])
        for stage, name in ((learn, "moe"), (merge, "moe"), (evaluate, "moe-red")):
            stage.main([name])
        score = json.loads(Path("data/metrics/moe/red.json").read_text())
        assert len(score["seeds"]) == 2
        assert score["seeds"][0] == pytest.approx(first["value"])
        assert score["value"] == pytest.approx(sum(score["seeds"]) / 2)
        other = read_block_routers(Path("data/merged/moe/seeds/5"), tuple(sorted(TASKS)))
        mine = read_block_routers(Path("data/merged/moe"), tuple(sorted(TASKS)))
        assert all((mine[block].hidden - router.hidden).abs().max() > 1e-3 for block, router in other.items())


def test_the_rate_counts_the_vectors_of_the_mlps_and_the_routers(inside_it: Path) -> None:
    folder, base = Path("data/merged/moe"), open_checkpoint(Path("data/base"))
    profile = json.loads(Path("data/profiles/merge/moe.json").read_text())
    stored = sum((folder / name).stat().st_size for name in (FILE, BLOCK_ROUTERS))
    shapes = {name: base.spec(name).shape for name in base.names if name.startswith("visual.")}
    values = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    assert profile["amr"] == pytest.approx(stored / 3 / (4 * sum(values.values())))
    in_mlps = sum(count for name, count in values.items() if ".mlp." in name)
    routers = sum(x.numel() for x in read_learned(Path("data/learned/moe/result"), sorted(TASKS)).values.values())
    assert stored == pytest.approx(4 * (3 * in_mlps + routers), rel=0.05)
    assert profile["learned"] == trace("moe")


def test_the_lines_of_the_card_load_and_run_the_merge(inside_it: Path, capsys: Any) -> None:
    folder = Path("data/merged/moe").absolute()
    card = (folder / "README.md").read_text()
    assert "`block_routers.safetensors`" in card
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


def test_routers_of_other_tasks_are_refused(inside_it: Path) -> None:
    with pytest.raises(InputError, match=r"block_routers\.safetensors: its tasks are not those of overlays"):
        read_block_routers(Path("data/merged/moe"), ("a", "b", "c"))
