"""`merganser merge`: its options, its progress, and what it says."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from merganser import registry
from merganser.checkpoints.writing import OutputFormat
from merganser.command_line.output import progress_bar
from merganser.errors import InputError
from merganser.progress import Progress
from tests.checkpoints.merge_table import stored
from tests.command_line.conftest import Done, Refused
from tests.merges import merge_checkpoints
from tests.small_models import SHAPES, write_models
from tests.support import wait_until
from tests.transformers_models import load, save_models, tiny

WITH_A_FIRST_PASS = [name for name in ("ties", "dare", "consensus") if registry.get(name).first_pass]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a BERT and two fine-tuned ones, as transformers does."""
    folder = tmp_path_factory.mktemp("saved")
    save_models(folder, "bert", tasks=2)
    return folder


def arguments(folder: Path, method: str, out: Path, *more: str) -> list[str]:
    """Return the arguments that merge the saved models."""
    models = [word for t in range(2) for word in ("--model", f"task{t}={folder}/task{t}")]
    return ["merge", method, "--base", str(folder / "base"), *models, "--out", str(out), "--device", "cpu", *more]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_merge_can_have_another_dtype_which_its_configuration_names(
    dtype: str, saved: Path, tmp_path: Path, done: Done
) -> None:
    done(tmp_path, *arguments(saved, "average", tmp_path / "merged", "--dtype", dtype))
    done(tmp_path, *arguments(saved, "average", tmp_path / "plain"))
    whole = stored(tmp_path / "plain")
    wanted = getattr(torch, dtype)
    for name, value in stored(tmp_path / "merged").items():
        assert torch.equal(value, whole[name].to(wanted)), name
    assert json.loads((tmp_path / "merged/config.json").read_text())["dtype"] == dtype
    assert load(tiny("bert"), tmp_path / "merged").dtype == wanted


def test_parts_per_task_are_added_in_the_dtype_that_was_asked_for(saved: Path, tmp_path: Path, done: Done) -> None:
    done(tmp_path, *arguments(saved, "individual", tmp_path / "merged", "--dtype", "bfloat16"))
    done(tmp_path, "reconstruct", "merged", "--task", "task1", "--out", "own.safetensors")
    own, theirs = load_file(tmp_path / "own.safetensors"), stored(saved / "task1")
    assert {value.dtype for value in own.values()} == {torch.bfloat16}
    for name, value in own.items():
        torch.testing.assert_close(value.float(), theirs[name], rtol=2**-7, atol=1e-3)


def test_integers_keep_their_dtype_and_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", tasks=1)
    tasks, base = {"task0": models["task0"]}, models["base"]
    merge_checkpoints("average", {}, base, tasks, tmp_path / "out", device="cpu", output=OutputFormat("float16"))
    found = load_file(tmp_path / "out/model.safetensors")
    assert {name: found[name].dtype for name in found} == {"steps": torch.int64} | dict.fromkeys(SHAPES, torch.float16)
    large = load_file(base / "model.safetensors") | {"proj": torch.full(SHAPES["proj"], 1e5)}
    torch.save(large, tmp_path / "base.bin")
    torch.save(large, tmp_path / "task.bin")
    with pytest.raises(InputError, match=r"proj: has values beyond float16's largest.*--dtype bfloat16"):
        merge_checkpoints(
            *("average", {}, tmp_path / "base.bin", {"a": tmp_path / "task.bin"}, tmp_path / "no"),
            device="cpu",
            output=OutputFormat("float16"),
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("method", ["task_arithmetic", "ties"])
def test_a_merge_with_values_beyond_float32_is_refused(method: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", tasks=2)
    base, tasks = models["base"], {name: path for name, path in models.items() if name != "base"}
    with pytest.raises(InputError, match=r": the merge has values beyond float32's largest"):
        merge_checkpoints(method, {"scaling": 1e200}, base, tasks, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_except_keeps_what_it_names_as_in_the_base(saved: Path, tmp_path: Path, done: Done) -> None:
    kept = ["--except", "classifier.*", "--except", "*.bias"]
    done(tmp_path, *arguments(saved, "average", tmp_path / "merged", *kept))
    base, merged = stored(saved / "base"), stored(tmp_path / "merged")
    same = {name for name, value in base.items() if torch.equal(value, merged[name])}
    assert same == {name for name in base if name.startswith("classifier.") or name.endswith(".bias")}


def test_any_2d_takes_embeddings_for_matrices(saved: Path, tmp_path: Path, done: Done) -> None:
    name = "bert.embeddings.word_embeddings.weight"
    found = {}
    for rule in ("linear", "any_2d"):
        done(tmp_path, *arguments(saved, "tsv_m", tmp_path / rule, "--matrices", rule))
        found[rule] = stored(tmp_path / rule)[name]
    assert not torch.allclose(found["linear"], found["any_2d"], atol=1e-4)


def calls(method: str, models: dict[str, Path], out: Path) -> list[tuple[str, int, int]]:
    """Merge; return what the progress was told."""
    told: list[tuple[str, int, int]] = []
    progress: Progress = lambda *said: told.append(said)  # noqa: E731
    base = models.get("base")
    tasks = {name: path for name, path in models.items() if name != "base"}
    merge_checkpoints(method, {}, base, tasks, out, device="cpu", threads=2, progress=progress)
    return told


@pytest.mark.parametrize("method", ["average", "ties", "tsv_m", "individual"])
def test_each_pass_is_told_from_nothing_to_all_of_it(method: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    told = calls(method, models, tmp_path / "out")
    passes = list(dict.fromkeys(what for what, _, _ in told))
    first = [f"{method}: first pass"] if method in WITH_A_FIRST_PASS else []
    assert passes == [*first, f"{method}: merging"]
    merging = [(done, total) for what, done, total in told if what == passes[-1]]
    assert merging == sorted(merging)
    written = sum(value.nbytes for value in load_file(models["base"] / "model.safetensors").values())
    assert (merging[0], merging[-1]) == ((0, written), (written, written))


def test_the_mean_that_takes_the_bases_place_is_told_first(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    del models["base"]
    assert calls("average", models, tmp_path / "out")[0][0] == "mean of the models"


def test_the_bar_with_the_time_left_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = io.StringIO()
    with progress_bar(Console(file=text, force_terminal=True, width=100)) as progress:
        progress("ties: merging", 0, 1000)
        progress("ties: merging", 500, 1000)
    assert "ties: merging" in text.getvalue()
    assert "50%" in text.getvalue()
    assert ":--" in text.getvalue()


def test_off_a_terminal_a_line_now_and_then_says_what_is_done() -> None:
    text = io.StringIO()
    with progress_bar(Console(file=text, force_terminal=False), every_s=0.01) as progress:
        wait_until(lambda: "opening the models, after " in text.getvalue())
        progress("ties: merging", 500, 1000)
        wait_until(lambda: "ties: merging: 50%, after " in text.getvalue())
    with progress_bar(Console(file=text, force_terminal=False), every_s=600):
        said = text.getvalue()
    assert text.getvalue() == said  # nothing before the time, and nothing of the first after its end


def test_a_merge_off_a_terminal_prints_its_end_alone(saved: Path, tmp_path: Path, done: Done) -> None:
    assert done(tmp_path, *arguments(saved, "average", Path("merged"))) == "average of 2 models is in merged\n"


def test_reconstruct_writes_a_folder_or_an_adapter(saved: Path, tmp_path: Path, done: Done) -> None:
    done(tmp_path, *arguments(saved, "svd", tmp_path / "merged", "--only", "*query.weight"))
    assert "the model of task1 is in own" in done(tmp_path, "reconstruct", "merged", "--task", "task1", "--out", "own")
    load(tiny("bert"), tmp_path / "own")
    said = done(tmp_path, "reconstruct", "merged", "--task", "task1", "--as-adapter", "--out", "adapter")
    assert said == "the adapter of task1, for the model in merged, is in adapter\n"
    found = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert found == {"adapter_config.json", "adapter_model.safetensors"}


def test_reconstruct_without_a_task_is_for_merges_of_adapters(saved: Path, tmp_path: Path, refused: Refused) -> None:
    assert "--task: missing; name the task" in refused(tmp_path, "reconstruct", str(saved / "base"), "--out", "x")
    assert "has no merge.yaml" in refused(tmp_path, "reconstruct", str(saved / "base"), "--as-adapter", "--out", "x")
