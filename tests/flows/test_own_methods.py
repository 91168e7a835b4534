"""Methods of a comparison's own, in files of its folder `methods/`, and those of installed packages."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from merganser.code_digest import ROOT
from tests.support import python
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


def test_only_a_run_runs_the_file(comparison: Path) -> None:
    (comparison / "methods/halfway.py").write_text("open('../ran', 'w')\n" + METHOD)
    for command in (["status"], ["run", "--dry-run"], ["lineage", "verify"], ["history"], ["methods"], ["report"]):
        merganser(comparison, *command, check=False)
        assert not (comparison.parent / "ran").exists(), command


def test_a_file_without_such_a_method_and_one_with_a_name_that_is_taken_are_refused(comparison: Path) -> None:
    (comparison / "methods/halfway.py").write_text("half = 1\n")
    done = merganser(comparison, "run", check=False)
    assert done.returncode == 2
    assert "methods/halfway.py: has no function halfway decorated with @method" in done.stderr
    (comparison / "methods/ties.py").write_text(METHOD)
    done = merganser(comparison, "status", check=False)
    assert done.returncode == 2
    assert "methods/ties.py: Merganser has a method called ties; give yours another name" in done.stderr


def test_an_installed_package_names_its_methods_as_entry_points(tmp_path: Path) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage/__init__.py").touch()
    (tmp_path / "mypackage/halfway.py").write_text(METHOD)
    (tmp_path / "mypackage-1.dist-info").mkdir()
    (tmp_path / "mypackage-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1\n")
    named = "[merganser.methods]\nhalfway = mypackage.halfway\n"
    (tmp_path / "mypackage-1.dist-info/entry_points.txt").write_text(named)
    path = environment() | {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'packages/dvcfleet'}"}
    command = [*python(), "-m", "merganser", "methods", "halfway"]
    done = subprocess.run(command, env=path, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "keep the entries above a share of the largest" in done.stdout
