"""Which sources a run looks at when it starts."""

import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from merganser.flows.steps.sources import follow_sources
from tests.hub import COMMIT, serve
from tests.tiny_clip import write_clip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a project whose base follows a branch, and work in it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/merge.py").touch()
    (tmp_path / "moving.yaml").write_text("{hub: org/clip, follow: main}\n")
    (tmp_path / "pinned.yaml").write_text(f"{{hub: org/clip, revision: {COMMIT}}}\n")
    task = {"source": "pinned.yaml", "data": {"source": "local/folder"}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"base": {"source": "moving.yaml"}, "tasks": {"dark": task}}))
    return tmp_path


def test_a_source_that_moved_is_pinned_and_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clip(project / "repo", "open_clip_model.safetensors")
    said: list[str] = []
    with serve({"models/org/clip": project / "repo"}, COMMIT) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        follow_sources(said.append)
        follow_sources(said.append)
    assert said == [f"moving.yaml: org/clip moved to {COMMIT}"]
    assert COMMIT in (project / "moving.yaml").read_text()


def test_a_hub_that_is_away_is_named_and_the_run_goes_on(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    follow_sources(said.append)
    assert len(said) == 1
    assert said[0].startswith("moving.yaml: the hub does not answer (ConnectError); continuing")


def test_where_nothing_follows_nothing_slow_is_imported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "moving.yaml").write_text((project / "pinned.yaml").read_text())
    monkeypatch.delitem(sys.modules, "merganser.sources.following", raising=False)
    follow_sources(print)
    assert "merganser.sources.following" not in sys.modules
