import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dvcfleet.cluster import ROOT
from tests.dvcfleet.edited import EDITED, EDITED_FILES, PROJECT
from tests.dvcfleet.toy import Make, Toy


@pytest.fixture
def toy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Make toy repositories; their runs use the shared Prefect server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    return Make(tmp_path, tmp_path_factory.getbasetemp() / "toys")


@pytest.fixture(scope="session", autouse=True)
def ray_token() -> Iterator[None]:
    """One token for all Ray clusters of the tests: Ray reads it once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        yield


@pytest.fixture
def edited(toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A repository in whose root a warm process can import what its project names."""
    repository = toy(EDITED, EDITED_FILES)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/edited_project.py").write_text(PROJECT)
    places = [str(tmp_path / "project"), str(repository.path), str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(places[0])
    monkeypatch.delitem(sys.modules, "edited_project", raising=False)
    monkeypatch.setattr("dvcfleet.services.FEW", 0)
    return repository
