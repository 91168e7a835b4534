"""`import merganser`: what the functions give, and that it is what the command line and the stages give."""

import inspect
import json
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

import merganser
from merganser import api, registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.command_line.app import main
from merganser.standalone.results import load_results
from tests.small_models import write_models
from tests.support import python
from tests.tiny import environment

MODELS = {"a": "task0", "b": "task1/model.safetensors"}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_models(tmp_path, tasks=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", ["ties", "emr"])
def test_a_merge_writes_what_the_command_line_writes(
    method: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = merganser.merge(method, "base", MODELS, out="here", only=["*.weight"], dtype="bfloat16", device="cpu", seed=3)
    named = [word for name, path in MODELS.items() for word in ("--model", f"{name}={path}")]
    more = ["--only", "*.weight", "--dtype", "bfloat16", "--device", "cpu", "--set", "seed=3", "--out", "there"]
    monkeypatch.setattr(sys, "argv", ["merganser", "merge", method, "--base", "base", *named, *more])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert out == Path("here")
    assert contents(out) == contents(Path("there"))


def test_a_merge_in_memory_is_that_on_disk(models: Path) -> None:
    paths = {name: models / path for name, path in MODELS.items()}
    found = merganser.merge("tsv_m", models / "base", paths, scaling=0.7, device="cpu")
    written = open_checkpoint(merganser.merge("tsv_m", "base", MODELS, out="out", scaling=0.7, device="cpu"))
    assert list(found) == list(written.names)
    for name, value in found.items():
        assert torch.equal(value, written.read(name)), name


def test_a_merge_without_a_base_starts_from_the_mean(models: Path) -> None:
    found = merganser.merge("base", None, MODELS, device="cpu")
    for name, value in found.items():
        tuned = [open_checkpoint(Path(path)).read(name).double() for path in MODELS.values()]
        torch.testing.assert_close(value.double(), torch.stack(tuned).mean(0), rtol=0, atol=1e-6)


def test_a_model_that_adds_nothing_is_a_warning(models: Path) -> None:
    shutil.copytree("base", "same")
    with pytest.warns(UserWarning, match=r"^a: warning: equal to the base") as said:
        merganser.merge("average", "base", {"a": "same"}, device="cpu")
    assert {each.filename for each in said} == {__file__}


def test_mistakes_are_refused_by_name_and_nothing_is_left(models: Path) -> None:
    (models / "there").mkdir()
    (models / "there/file").touch()
    before = sorted(models.rglob("*"))
    for said, method, given, options in (
        ('unknown method "tise".*did you mean "ties"', "tise", MODELS, {}),
        ("densty", "ties", MODELS, {"densty": 0.1}),
        ("emr: has a part for each task, which a state dict cannot hold; name a new folder by out=", "emr", MODELS, {}),
        ("there: exists already", "ties", MODELS, {"out": "there"}),
        ("nowhere: no such checkpoint", "ties", {"a": "nowhere"}, {"out": "new"}),
        ("merge: models", "ties", {}, {}),
        (r"merge: models.*a b", "ties", {"a b": "task0"}, {}),
        ("merge: matrices: ", "ties", MODELS, {"matrices": "all"}),
    ):
        with pytest.raises(merganser.InputError, match=said):
            merganser.merge(method, "base", given, **options)
    assert sorted(models.rglob("*")) == before


def test_no_parameter_of_a_method_is_hidden_by_one_of_merge() -> None:
    own = set(inspect.signature(api.merge).parameters) - {"parameters"} | {"merged", "seed"}
    for name in registry.names():
        assert own.isdisjoint(registry.get(name).parameters.model_fields), name


def test_methods_are_described_as_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["merganser", "methods", "--json", "--for", "data=none,parts=no"])
    with pytest.raises(SystemExit):
        main()
    told = json.loads(capsys.readouterr().out)
    assert list(merganser.methods(data="none", parts="no").values()) == told
    assert list(merganser.methods()) == registry.names()
    with pytest.raises(merganser.InputError, match="no method has it"):
        merganser.methods(family="spectrl")


def test_every_public_name_is_typed_and_explained() -> None:
    assert dir(merganser) == sorted(merganser.__all__)
    for name in merganser.__all__:
        found = getattr(merganser, name)
        assert inspect.getdoc(found), name
    for name in ("merge", "methods", "evaluate", "load"):
        signature = inspect.signature(getattr(api, name))
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert len(typing.get_overloads(api.merge)) == 2
    with pytest.raises(AttributeError, match="merge_all"):
        merganser.merge_all  # noqa: B018


def test_the_import_alone_brings_no_library_and_the_methods_can_be_called_at_any_time() -> None:
    libraries = """
import sys, merganser
print(*{name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "pydantic", "scipy", "typer"})
"""
    methods = """
import merganser
before = merganser.methods()
import merganser.methods.ties
print(merganser.methods() == before, merganser.methods.ties.__name__)
"""
    said = [
        subprocess.run([*command, "-c", code], env=environment(), capture_output=True, text=True, check=True).stdout
        for command, code in (([sys.executable], libraries), (python(), methods))
    ]
    assert said == ["\n", "True merganser.methods.ties\n"]


def test_results_are_read_with_types_and_names_stay_names(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    file = tmp_path / "report/results.csv"
    file.write_text(
        "entry,method,data,red,mean,peak_rss_bytes,forwards\n1e5,ties,none,0.5,0.25,1024,\nnan,dare,x,,1,2,3\n"
    )
    for place in (tmp_path, tmp_path / "report", file):
        found = merganser.load(place)
        assert found["entry"].tolist() == ["1e5", "nan"]
        assert found["red"].isna().tolist() == [False, True]
        assert found["mean"].tolist() == [0.25, 1.0]
        assert found["forwards"].dtype == "Int64"
        assert found["forwards"].isna().tolist() == [True, False]
    with pytest.raises(merganser.InputError, match="holds no results; name a report's folder"):
        load_results(tmp_path / "elsewhere")
    file.write_text("")
    with pytest.raises(merganser.InputError, match=r"results\.csv: not a table of a report"):
        load_results(file)
    (tmp_path / "scores/ties").mkdir(parents=True)
    (tmp_path / "scores/ties/red.json").write_text('{"metric": "accuracy", "value": [0.5]}')
    with pytest.raises(merganser.InputError, match="scores: not the scores of evaluations"):
        load_results(tmp_path / "scores")
