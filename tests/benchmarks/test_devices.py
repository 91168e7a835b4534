from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.devices import chosen, copied, differences, digest
from merganser.limits import read_yaml

LOCK = {
    "merge@ties": {"outs": [{"path": "data/merged/ties"}, {"path": "data/profiles/merge/ties.json"}]},
    "merge@average": {"outs": [{"path": "data/merged/average"}]},
    "extract@dark": {"outs": [{"path": "data/deltas/dark"}]},
}


def test_a_kind_means_all_its_stages_and_times_are_no_output() -> None:
    assert chosen(LOCK, ["merge"]) == {"merge@ties": ["data/merged/ties"], "merge@average": ["data/merged/average"]}
    assert list(chosen(LOCK, ["merge@average"])) == ["merge@average"]


@pytest.mark.parametrize("name", ["merge@dare", "extract", "nothing"])
def test_a_stage_that_did_not_run_or_needs_no_gpu_is_refused(name: str) -> None:
    with pytest.raises(SystemExit, match=f"^{name}: no stage"):
        chosen(LOCK, [name])


def test_a_copy_declares_the_device_everywhere_and_what_it_writes_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/kept.txt").write_text("kept")
    Path("params.yaml").write_text(
        "merge: {device: cpu}\nevaluation: {split: test}\nstatistics: {gram: {kind: gram}}\n"
    )
    copy = copied(tmp_path / "cuda", "cuda")
    there = read_yaml(copy / "params.yaml")
    assert [there["merge"]["device"], there["evaluation"]["device"], there["statistics"]["gram"]["device"]] == 3 * [
        "cuda"
    ]
    (copy / "data/kept.txt").unlink()
    assert Path("data/kept.txt").read_text() == "kept"


def test_outputs_are_compared_by_their_numbers_and_named_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("one", 3.0), ("other", 3.3)):
        (tmp_path / name / "out").mkdir(parents=True)
        save_file({"a": torch.tensor([value, 4.0])}, tmp_path / name / "out/model.safetensors")
        (tmp_path / name / "score.json").write_text(f'{{"value": {value}}}')
    one, other = tmp_path / "one", tmp_path / "other"
    found = differences(one, other, ["out", "score.json"])
    assert found["relative"] == pytest.approx(0.06, rel=1e-6)
    assert (found["score"], found["score_gpu"]) == (3.0, 3.3)
    digests = []
    for side in (one, other, one):
        monkeypatch.chdir(side)
        digests.append(digest(["out"]))
    assert digests[0] == digests[2] != digests[1]
