"""Methods of a comparison's own, in files of its folder `methods/`, and those of installed packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from merganser import plugins
from merganser.code_digest import ROOT
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.steps.updating import other_version, update
from merganser.merging.about import REGISTERED
from merganser.tasks.code import write_code
from tests.support import each, python
from tests.tiny import environment, is_clean, merganser

DOCS = (ROOT / "docs/own-methods.md").read_text()
METHOD = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0]
ENTRY = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)[0])["methods"]


@pytest.fixture
def comparison(begun: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a comparison the method of the docs."""
    params = yaml.safe_load((begun / "params.yaml").read_text())
    params["methods"] = {"average": {"method": "average", "reads": "deltas"}} | ENTRY
    (begun / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    (begun / "methods").mkdir()
    (begun / "methods/halfway.py").write_text(METHOD)
    monkeypatch.setenv("XDG_STATE_HOME", str(begun.parent / "state"))
    return begun


def ran(done: "subprocess.CompletedProcess[str]") -> set[str]:
    return set(re.findall(r"(\S+) done in", done.stdout))


@pytest.mark.drill
def test_a_file_of_the_comparison_is_a_method_whose_results_follow_its_code(comparison: Path) -> None:
    assert "merge@halfway" in ran(merganser(comparison, "run", "--workers", "2"))
    assert is_clean(comparison)
    assert "halfway" in (comparison / "report/results.csv").read_text()
    assert "nothing has changed" in merganser(comparison, "lineage", "verify").stdout
    file = comparison / "methods/halfway.py"
    file.write_text(METHOD + "# a comment changes no result\n")
    assert not {"merge@halfway", "merge@average"} & ran(merganser(comparison, "run"))
    file.write_text(METHOD.replace("mean.abs() > ", "mean.abs() >= "))
    again = ran(merganser(comparison, "run"))
    assert "merge@halfway" in again
    assert "merge@average" not in again
    assert is_clean(comparison)


COMMANDS = """
import sys
from contextlib import suppress
from pathlib import Path
from merganser.flows.commands.cli import main

for words in sys.argv[1:]:
    sys.argv = ["merganser", *words.split()]
    with suppress(SystemExit):
        main()
    assert not Path("../ran").exists(), words
"""


def test_only_a_run_runs_the_file(comparison: Path) -> None:
    (comparison / "methods/halfway.py").write_text("open('../ran', 'w')\n" + METHOD)
    commands = ["status", "run --dry-run", "lineage verify", "history", "methods", "report"]
    command = [*python(), "-c", COMMANDS, *commands]  # one process, whose imports take most of the time
    done = subprocess.run(command, cwd=comparison, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (comparison.parent / "ran").exists()


def test_its_code_is_named_and_no_other_version(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(comparison)
    assert other_version(comparison) == {"code": "other code of methods/halfway; a run records it"}
    assert update(comparison) == ["new: methods/halfway"]
    (comparison / "methods/halfway.py").write_text(METHOD.replace("mean.abs() > ", "mean.abs() >= "))
    assert update(comparison) == ["methods/halfway: other results"]
    (comparison / "methods/halfway.py").write_text(METHOD)
    with pytest.raises(InputError, match="made by other code of methods/halfway; `merganser run` records it"):
        write_code()
    (comparison / "methods/halfway.py").unlink()
    assert update(comparison) == ["gone: methods/halfway"]


def test_a_file_without_such_a_method_and_one_with_a_name_that_is_taken_are_refused(comparison: Path) -> None:
    (comparison / "methods/halfway.py").write_text("half = 1\n")
    done = merganser(comparison, "run", check=False)
    assert done.returncode == 2
    assert "methods/halfway.py: has no function halfway decorated with @method" in done.stderr
    (comparison / "methods/halfway.py").write_text("raise SystemExit(0)\n")  # as a script does that is imported
    done = merganser(comparison, "run", check=False)
    assert (done.returncode, "methods/halfway.py: cannot be imported: SystemExit: 0" in done.stderr) == (2, True)
    (comparison / "methods/ties.py").write_text(METHOD)
    done = merganser(comparison, "status", check=False)
    assert done.returncode == 2
    assert "methods/ties.py: Merganser has a method called ties; give yours another name" in done.stderr


RETURN = METHOD[METHOD.index("    return") :]


@each(
    "case",
    [
        (("layer: LayerDeltas", "layer"), "halfway: takes first layer: LayerDeltas or LayerFactors, or layers"),
        (("layer: LayerDeltas", "layers: LayerDeltas"), "halfway: takes first layer: LayerDeltas"),
        (("*, threshold", "threshold"), "halfway: threshold: a parameter is a keyword with a type"),
        (("threshold: Fraction = 0.1", "threshold=0.1"), "halfway: threshold: a parameter is a keyword with a type"),
        (("threshold: Fraction = 0.1", "reads: Fraction = 0.1"), "halfway: reads: an entry's own key"),
        (("threshold: Fraction", "coefficients: Fraction"), "halfway: coefficients are every entry's"),
        (("threshold: Fraction", "threshold: Tensor"), "cannot be imported: PydanticSchemaGenerationError"),
        (("= 0.1", "= 7"), "methods.halfway.threshold: Input should be less than or equal to 1, got 7"),
        ((" = 0.1", ""), "methods.halfway.threshold: missing; halfway has no default for it"),
        (('"sparse"', '"spare"'), "got 'spare'; did you mean \"sparse\"?"),
        (('"NDI"', '"none"'), "halfway: involvement: expected NDI, VDI, TTA, got 'none'"),
        ((RETURN, RETURN + METHOD[METHOD.index("@method") :].replace("halfway", "ties")), "also has a method ties"),
        (("from torch", "import os\nos.chdir('..')\nfrom torch"), "its import changes the working folder"),
        (("from torch", "import torch\ntorch.set_default_dtype(torch.float64)\nfrom torch"), "torch's default dtype"),
        (("    mean =", "    import helper\n    mean ="), "helper.py, whose changes no result would follow"),
    ],
)
def test_what_cannot_be_a_method_is_refused_before_work(
    comparison: Path, case: tuple[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = case
    monkeypatch.chdir(comparison)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else a file of the same size and second counts as the last
    monkeypatch.setattr(plugins, "_trusted", {plugins.METHODS})
    Path("helper.py").touch()
    Path("methods/halfway.py").write_text(METHOD.replace(*change))
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("    threshold: 0.2\n", ""))
    before = {name: made for name, made in REGISTERED.items() if name != "halfway"}
    dtype, text = torch.get_default_dtype(), Path("params.yaml").absolute()
    try:
        REGISTERED.pop("halfway", None)
        with pytest.raises(InputError, match=re.escape(message)):
            load_params(text)
        left = {name: made for name, made in REGISTERED.items() if name in before}
        assert left == before
    finally:
        torch.set_default_dtype(dtype)
        REGISTERED.pop("halfway", None)


def test_a_file_that_names_no_function_is_refused_and_hidden_ones_are_none(
    comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(comparison)
    Path("methods/.#halfway.py").symlink_to("me@host.1:2")  # an editor's lock
    assert update(comparison) == ["new: methods/halfway"]
    for make in (Path.touch, lambda path: path.symlink_to("nowhere.py"), Path.mkdir, os.mkfifo):
        place = Path("methods", "half-way.py" if make is Path.touch else "other.py")
        make(place)
        with pytest.raises(InputError, match=rf"^{place}: not "):
            update(comparison)
        place.rmdir() if place.is_dir() else place.unlink()


def test_a_name_that_two_have_is_refused(tmp_path: Path) -> None:
    install(tmp_path, {"__init__.py": "", "halfway.py": METHOD})
    (tmp_path / ".merganser").mkdir()
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods/halfway.py").write_text(METHOD)
    done = methods_of(tmp_path, "methods", "halfway")
    assert done.returncode == 2
    assert re.search(r"methods/halfway\.py: .*mypackage/halfway\.py also has a method halfway; rename", done.stderr)


def test_the_code_of_an_installed_method_is_also_what_it_imports_of_its_package(tmp_path: Path) -> None:
    method = METHOD.replace("from torch", "from .inner.helper import HALF\nfrom torch")
    files = {"__init__.py": "", "halfway.py": method, "inner/__init__.py": "", "inner/helper.py": "HALF = 0.5\n"}
    install(tmp_path, files)
    first = digest(tmp_path)
    assert "mypackage.inner.helper" in first
    (tmp_path / "mypackage/inner/helper.py").write_text("HALF = 0.25\n")
    second = digest(tmp_path)
    assert second != first
    (tmp_path / "mypackage/inner/__init__.py").write_text("import os\n")
    assert digest(tmp_path) != second


def digest(site: Path) -> str:
    """Return what stages depend on for the package's method."""
    path = environment() | {"PYTHONPATH": f"{site}:{ROOT}:{ROOT / 'packages/dvcfleet'}"}
    asked = "from merganser.code_digest import *; print(CodeTree(ROOT).listing('merganser.methods.halfway'))"
    command = [*python(), "-c", asked]
    return subprocess.run(command, env=path, cwd=site, capture_output=True, text=True, check=True).stdout


def test_an_installed_package_names_its_methods_as_entry_points(tmp_path: Path) -> None:
    install(tmp_path, {"__init__.py": "", "halfway.py": METHOD})
    done = methods_of(tmp_path, "methods", "halfway")
    assert done.returncode == 0, done.stderr
    assert "keep the entries above a share of the largest" in done.stdout


@pytest.mark.parametrize(
    "files",
    [
        {},  # what is left of a package that was removed by hand
        {"__init__.py": ""},
        {"__init__.py": "import a_library_that_is_not_there", "halfway.py": METHOD},
        {"__init__.py": "raise ValueError('for another version')", "halfway.py": METHOD},
    ],
)
def test_a_package_that_cannot_be_imported_is_refused_by_name(tmp_path: Path, files: dict[str, str]) -> None:
    install(tmp_path, files)
    done = methods_of(tmp_path, "methods", "ties")
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert "method halfway: the installed package mypackage names its module mypackage.halfway" in done.stderr
    assert "pip uninstall mypackage" in done.stderr


def install(site: Path, files: dict[str, str]) -> None:
    """Put a package that names a method where pip would put it."""
    for name, content in files.items():
        (site / "mypackage" / name).parent.mkdir(exist_ok=True)
        (site / "mypackage" / name).write_text(content)
    about = site / "mypackage-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[merganser.methods]\nhalfway = mypackage.halfway\n")


def methods_of(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside what is installed there."""
    path = environment() | {"PYTHONPATH": f"{site}:{ROOT}:{ROOT / 'packages/dvcfleet'}"}
    command = [*python(), "-m", "merganser", *arguments]
    return subprocess.run(command, env=path, cwd=site, capture_output=True, text=True)
