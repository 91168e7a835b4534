"""Recipes: what `merge.yaml` says, that it repeats a merge to the same bytes, and what it refuses; models of a hub."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, constants

from merganser.config.recipes import RECIPE, read_recipe
from merganser.hashes import sha256_of
from merganser.sources.named import hub_name
from tests.command_line.conftest import Done, Refused
from tests.hub import COMMIT, Hub, serve
from tests.small_models import write_models
from tests.transformers_models import save_models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(tmp_path, tasks=2)
    return tmp_path


def merge_arguments(method: str, out: str, *more: str) -> list[str]:
    models = ["--model", "a=task0", "--model", "b=task1/model.safetensors"]
    return ["merge", method, "--base", "base", *models, "--out", out, "--device", "cpu", *more]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_recipe_repeats_a_merge_to_the_same_bytes(models: Path, done: Done) -> None:
    options = [
        "--set",
        "scaling=0.7",
        "--set",
        "density={a: 1e-05, b: 0.5}",
        "--set",
        "seed=3",
        "--set",
        "merged=average",
    ]
    options += ["--set", "layers={blocks.0.*: {scaling: 0.1}}"]
    limits = ["--except", "proj", "--dtype", "bfloat16", "--max-shard-size", "100B", "--matrices", "any_2d"]
    done(models, *merge_arguments("ties", "first", *options, *limits))
    done(models, "merge", "first/merge.yaml")
    done(models, "merge", "first/merge.yaml", "--out", "second", "--threads", "2")
    assert contents(models / "first") == contents(models / "first-again") == contents(models / "second")
    assert len(list((models / "first").glob("model-*.safetensors"))) > 2
    recipe = read_recipe(models / "first" / RECIPE)
    assert recipe.parameters["density"] == {"a": 1e-05, "b": 0.5}
    assert recipe.parameters["layers"] == {"blocks.0.*": {"scaling": 0.1}}
    assert recipe.parameters["seed"] == 3


@pytest.mark.parametrize("method", ["individual", "svd"])
def test_a_recipe_repeats_parts_per_task_elsewhere(method: str, models: Path, done: Done) -> None:
    done(models, *merge_arguments(method, "first"))
    done(models, "merge", "first/merge.yaml", "--out", "other/place")
    first, again = contents(models / "first"), contents(models / "other/place")
    assert first.pop(RECIPE) != again.pop(RECIPE)  # paths go from the recipe's folder on
    assert first == again
    done(models, "merge", "other/place/merge.yaml", "--out", "third")
    assert contents(models / "third")["overlays.safetensors"] == first["overlays.safetensors"]


def test_a_recipe_says_what_the_models_were(models: Path, done: Done) -> None:
    done(models, *merge_arguments("average", "merged", "--only", "blocks.*"))
    text = (models / "merged" / RECIPE).read_text()
    assert text.startswith("# `merganser merge merge.yaml --out DIR` repeats this merge")
    assert str(models) not in text
    said = yaml.safe_load(text)
    digests = {
        name: {"model.safetensors": sha256_of(models / name / "model.safetensors")} for name in ("base", "task1")
    }
    assert said["base"] == {"path": "../base", "sha256": digests["base"]}
    assert said["models"]["b"] == {"path": "../task1/model.safetensors", "sha256": digests["task1"]}
    assert (said["method"], said["only"], said["device"]) == ("average", ["blocks.*"], "cpu")


def test_the_card_has_checksums_and_options_and_names_the_recipe(models: Path, done: Done) -> None:
    done(models, *merge_arguments("average", "merged", "--except", "proj", "--dtype", "float16"))
    text = ModelCard.load(models / "merged/README.md").text
    for name in ("base", "task0", "task1"):
        assert sha256_of(models / name / "model.safetensors") in text
    assert '| except | `["proj"]` |' in text
    assert "| dtype | `float16` |" in text
    assert "`merganser merge merge.yaml --out DIR`" in text
    assert "lineage" not in text


@pytest.mark.parametrize(
    ("key", "file", "said"),
    [
        ("base", "base/model.safetensors", "merged/merge.yaml: base: model.safetensors of merged/../base has changed"),
        ("a", "task0/model.safetensors", "models.a: model.safetensors of merged/../task0 has changed"),
        ("new", "base/config.json", "base: config.json of merged/../base is new there"),
    ],
)
def test_a_model_that_has_changed_is_refused_by_name(
    key: str, file: str, said: str, models: Path, done: Done, refused: Refused
) -> None:
    done(models, *merge_arguments("average", "merged"))
    if key == "new":
        (models / file).write_text("{}")
    else:
        content = bytearray((models / file).read_bytes())
        content[-1] ^= 1
        (models / file).write_bytes(content)
    told = refused(models, "merge", "merged/merge.yaml", "--out", "again")
    assert said in told
    assert "put the file back as it was, or take sha256 of" in told
    assert not (models / "again").exists()


def test_a_recipe_written_by_hand_needs_no_checksums(models: Path, done: Done) -> None:
    recipe = {"method": "average", "base": {"path": "base"}, "models": {"a": {"path": "task0"}, "b": {"path": "task1"}}}
    (models / "mine.yml").write_text(yaml.safe_dump(recipe))
    done(models, "merge", "mine.yml", "--out", "merged", "--device", "cpu")
    done(models, *merge_arguments("average", "expected"))
    name = "model.safetensors"
    assert (models / "merged" / name).read_bytes() == (models / "expected" / name).read_bytes()


@pytest.mark.parametrize(
    ("content", "args", "said"),
    [
        ("{method: average}", (), "mine.yaml: models: Field required"),
        ("{method: average, models: {a: {}}}", (), "mine.yaml: models.a: Value error, needs either a path or a hub"),
        ("{method: average, models: {a: {path: x}}, densty: 1}", (), "mine.yaml: densty: unknown key\n"),
        ("{method: average, models: {a: {path: x}}, xcept: [a]}", (), 'xcept: unknown key; did you mean "except"?'),
        ("{method: average, models: {../a: {path: x}}}", (), "mine.yaml: models.../a"),
        ("{method: average, models: {a: {path: x}}}", (), "x: no such checkpoint"),
        ("{method: average, models: {a: {path: x}}}", ("--dtype", "float16"), "--dtype: set `dtype` in mine"),
        ("{method: average, models: {a: {path: x}}}", ("--model", "a=x"), "--model: set `models` in mine"),
        ("[", (), "mine.yaml"),
    ],
)
def test_a_bad_recipe_is_refused_by_key(
    content: str, args: tuple[str, ...], said: str, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    assert said in refused(tmp_path, "merge", "mine.yaml", "--out", "merged", *args)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["merge", "ties", "--out", "x"], "--model: name a fine-tuned model by --model NAME=PATH"),
        (["merge", "ties", "--model", "a=task0"], "--out: missing; name a new folder"),
        (["merge", "nowhere.yaml", "--out", "x"], "nowhere.yaml: no such file"),
    ],
)
def test_what_is_not_given_is_named(args: list[str], said: str, models: Path, refused: Refused) -> None:
    assert said in refused(models, *args)


# models of a hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a base and a fine-tuned BERT, and keep the client's cache in the test's folder."""
    save_models(tmp_path / "repo", "bert", tasks=1)
    (tmp_path / "repo/base/flax_model.msgpack").write_text("other weights")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    repositories = {"models/org/base": tmp_path / "repo/base", "models/tuned": tmp_path / "repo/task0"}
    with serve(repositories, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def test_models_of_a_hub_are_merged_by_name_and_pinned(hub: Hub, tmp_path: Path, done: Done) -> None:
    hub_models = ["--base", "org/base", "--model", "a=tuned@main"]
    said = done(tmp_path, "merge", "average", *hub_models, "--out", "merged", "--device", "cpu")
    assert "org/base: left out: flax_model.msgpack" in said
    paths = ["--base", "repo/base", "--model", "a=repo/task0"]
    done(tmp_path, "merge", "average", *paths, "--out", "expected", "--device", "cpu")
    ours, expected = contents(tmp_path / "merged"), contents(tmp_path / "expected")
    assert ours["model.safetensors"] == expected["model.safetensors"]
    assert ours["config.json"] == expected["config.json"]
    recipe = read_recipe(tmp_path / "merged" / RECIPE)
    assert recipe.base is not None
    assert (recipe.base.hub, recipe.base.revision) == ("org/base", COMMIT)
    assert (recipe.models["a"].hub, recipe.models["a"].revision) == ("tuned", COMMIT)
    data = ModelCard.load(tmp_path / "merged/README.md").data.to_dict()
    assert data["base_model"] == ["org/base", "tuned"]
    shutil.rmtree(tmp_path / "cache")
    hub.heads["models/org/base"] = "f" * 40  # the branch moves on, and the recipe stays with its commit
    hub.earlier["models/org/base", COMMIT] = tmp_path / "repo/base"
    done(tmp_path, "merge", "merged/merge.yaml", "--out", "again")
    assert contents(tmp_path / "again") == ours


@pytest.mark.usefixtures("hub")
def test_a_merge_says_which_licences_of_a_hubs_models_do_not_go_together(tmp_path: Path, done: Done) -> None:
    for name, licence in {"base": "mit", "task0": "cc-by-nc-4.0"}.items():
        (tmp_path / "repo" / name / "README.md").write_text(f"---\nlicense: {licence}\n---\n")
    said = done(tmp_path, "merge", "average", "--base", "org/base", "--model", "a=tuned@main", "--out", "merged")
    warned = "non-commercial: cc-by-nc-4.0 (tuned) does not allow commercial use, mit (org/base) does"
    assert f"licences: {warned}" in said
    assert f"- `{warned}`" in ModelCard.load(tmp_path / "merged/README.md").text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/nothing", "org/nothing@main: the hub has no org/nothing at revision main"),
        ("org/base@v2", "org/base@v2: the hub has no org/base at revision v2"),
    ],
)
def test_what_a_hub_does_not_have_is_named(name: str, said: str, hub: Hub, tmp_path: Path, refused: Refused) -> None:
    assert said in refused(tmp_path, "merge", "average", "--model", f"a={name}", "--out", "merged")


def test_a_hub_that_does_not_answer_is_named(
    hub: Hub, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    told = refused(tmp_path, "merge", "average", "--model", "a=org/base", "--out", "merged")
    assert "org/base@main: there is no such path here, and the hub does not answer" in told


def test_a_path_is_told_from_a_name_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/model").mkdir(parents=True)
    (tmp_path / "a@b").mkdir()
    paths = ["here/model", "here/other", "model", "./org/name", "/org/name", "org/model.safetensors", "a@b", "a/b/c"]
    assert [hub_name(path) for path in paths] == [None] * len(paths)
    assert hub_name("org/name") == ("org/name", None)
    assert hub_name("org/name@v1.0") == ("org/name", "v1.0")
    assert hub_name("here/other@main") == ("here/other", "main")
    assert hub_name(f"gpt2@{COMMIT}") == ("gpt2", COMMIT)
