"""The stages around difference vectors, a mean for a base, and the tasks' text embeddings."""

import json
import shutil
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import yaml

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.config.sections import Entry
from merganser.errors import InputError
from merganser.tasks import describe, difference, extract, extract_difference, fetch, merge, prepare
from merganser.tasks.opening import open_source
from tests.merges import merge_checkpoints
from tests.tasks.comparison import TASKS, inside, write_params, write_sources
from tests.tiny_clip import CLASSES

METHODS: dict[str, dict[str, Any]] = {
    "average": {"method": "average", "reads": "deltas"},
    "ties": {"method": "ties", "reads": "differences/x", "density": 0.5},
    "tsv_m": {"method": "tsv_m", "reads": "differences/x"},
    "dts_d": {"method": "dts_d", "reads": "differences/x", "rank_fraction": 0.5},
}


OWN = {"source": "data/checkpoints", "family": "open_clip"}
NO_STUDIES = {"tasks": {"subsets": 1, "methods": {}}, "rank": {"fractions": []}}


def change_params(folder: Path, **sections: Any) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    (folder / "params.yaml").write_text(yaml.safe_dump(params | sections, sort_keys=False))


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Carry a comparison as far as difference vectors from the average and their merges."""
    folder = tmp_path_factory.mktemp("differences")
    write_params(folder, METHODS)
    change_params(folder, differences={"x": {"merged": "average"}})
    write_sources(folder / "sources")
    with inside(folder):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            extract.main([task])
        merge.main(["average"])
        difference.main(["x"])
        for task in TASKS:
            extract_difference.main(["x", task])
        for entry in list(METHODS)[1:]:
            merge.main([entry])
    return folder


@pytest.mark.parametrize("entry", ["ties", "tsv_m", "dts_d"])
def test_an_entry_on_differences_is_the_merge_that_starts_from_theirs(
    entry: str, carried: Path, tmp_path: Path
) -> None:
    """Made on the fly in the pipeline, decomposed on disk without it: the same factors."""
    values = {key: value for key, value in METHODS[entry].items() if key not in ("method", "reads")}
    models = {task: carried / "data/checkpoints" / task for task in TASKS}
    base, rules = carried / "data/base", ParameterRules(("visual.*",), "linear")
    values["merged"] = "average"
    merge_checkpoints(entry, values, base, models, tmp_path / "out", rules=rules, device="cpu")
    for file in (tmp_path / "out").glob("*.safetensors"):
        assert (carried / "data/merged" / entry / file.name).read_bytes() == file.read_bytes(), file.name


def test_difference_vectors_are_beside_the_whole_model_they_start_from(carried: Path) -> None:
    folder = carried / "data/differences/x"
    assert sorted(path.name for path in folder.iterdir()) == ["base", *(f"{task}.safetensors" for task in TASKS)]
    for path in (carried / "data/merged/average").glob("[!R]*"):  # all but its card, README.md
        assert (folder / "base" / path.name).read_bytes() == path.read_bytes()


def test_names_that_are_not_declared_are_refused(carried: Path) -> None:
    with inside(carried):
        with pytest.raises(InputError, match='no "y" under differences'):
            difference.main(["y"])
        with pytest.raises(InputError, match='no "y" under differences'):
            extract_difference.main(["y", "dark"])
        with pytest.raises(InputError, match=r'no "drak" under tasks.*did you mean "dark"'):
            extract_difference.main(["x", "drak"])
        with pytest.raises(InputError, match="expected two names, got nothing"):
            extract_difference.main([])


def test_a_base_from_the_tasks_own_models_is_their_mean(carried: Path, tmp_path: Path) -> None:
    write_params(tmp_path)
    change_params(tmp_path, base=OWN, studies=NO_STUDIES)
    (tmp_path / "sources").symlink_to(carried / "sources")
    with inside(tmp_path):
        for task in TASKS:
            fetch.main(["task", task])
        fetch.main(["base"])
    mean = open_checkpoint(tmp_path / "data/base")
    models = [open_checkpoint(tmp_path / "data/checkpoints" / task) for task in TASKS]
    for name in mean.names:
        expected = torch.stack([model.read(name).double() for model in models]).mean(0)
        assert torch.equal(mean.read(name), expected.to(mean.read(name).dtype))
    description = json.loads((tmp_path / "data/base/source.json").read_text())
    assert description["kind"] == "mean"
    assert description["mean_of"] == sorted(TASKS)
    assert {"model.safetensors", "open_clip_config.json"} <= description["files"].keys()


def test_a_task_that_is_not_declared_has_no_part_in_the_mean(carried: Path, tmp_path: Path) -> None:
    write_params(tmp_path)
    params = yaml.safe_load((tmp_path / "params.yaml").read_text())
    change_params(tmp_path, base=OWN, studies=NO_STUDIES, tasks={"dark": params["tasks"]["dark"]})
    for task, value in (("dark", 1.0), ("left_over", 5.0)):
        (tmp_path / "data/checkpoints" / task).mkdir(parents=True)
        save_tensors(tmp_path / "data/checkpoints" / task / "model.safetensors", {"w": torch.full((2,), value)})
    with inside(tmp_path):
        fetch.main(["base"])
    assert open_checkpoint(tmp_path / "data/base").read("w").tolist() == [1.0, 1.0]


def test_tasks_are_described_by_the_mean_embedding_of_their_class_names(carried: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(carried, tmp_path / "copy"))
    methods = {"unseen": {"method": "dts_unseen", "reads": "embeddings/of_x"}}
    change_params(folder, embeddings={"of_x": {"of": "differences/x"}}, methods=METHODS | methods)
    with inside(folder):
        for task in TASKS:
            fetch.main(["data", task])
            prepare.main([task])
        describe.main(["of_x"])
        embeddings = open_checkpoint(Path("data/embeddings/of_x/texts/red.safetensors"))
        model = open_clip.create_model("local-dir:data/base").eval()
        with torch.inference_mode():
            expected = model.encode_text(open_clip.get_tokenizer("local-dir:data/base")(CLASSES), normalize=True)
        torch.testing.assert_close(embeddings.read("embedding"), expected.mean(0))
        before = Path("data/embeddings/of_x/texts/red.safetensors").read_bytes()
        describe.main(["of_x"])
        assert Path("data/embeddings/of_x/texts/red.safetensors").read_bytes() == before
        linked = Path("data/embeddings/of_x/read/red.safetensors")
        assert linked.read_bytes() == Path("data/differences/x/red.safetensors").read_bytes()
        unseen = open_source(Entry(method="dts_unseen", reads="embeddings/of_x"), "differences/x", list(TASKS), 0)
        plain = open_source(Entry(method="dts_d", reads="differences/x"), "differences/x", list(TASKS), 0)
        assert list(unseen.table.embeddings) == sorted(TASKS)
        assert not plain.table.embeddings
        merge.main(["unseen"])
        assert Path("data/merged/unseen/overlays.safetensors").is_file()
