from pathlib import Path

import pytest
import yaml

from benchmarks.harness import ROOT
from benchmarks.plain.__main__ import METHODS
from benchmarks.projects import CODE, write_project
from benchmarks.sides import Setting, choices
from merganser import registry
from merganser.config.loading import load_params


def test_a_repository_has_all_that_the_digests_of_code_are_made_of() -> None:
    deps = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["code"]["deps"]
    assert {Path(dep).parts[0] for dep in deps} <= set(CODE)


def test_projects_are_what_params_yaml_may_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, 64, 1, 2, ["average", "ties", "drm_h", "tsv_m", "dts_t"], images=3)
    monkeypatch.chdir(tmp_path)
    assert len(load_params(Path("params.yaml")).methods) == 5
    models = {task: tmp_path / "hub" / task for task in ("task0", "task1")}
    setting = Setting(tmp_path / "hub/base", models, tmp_path / "out", threads=1)
    for method in sorted(set(METHODS) & {name for name in registry.names() if registry.get(name).reads == "svd"}):
        Path("params.yaml").write_text(yaml.safe_dump(choices(method, setting)))
        assert list(load_params(Path("params.yaml")).methods) == [method]
