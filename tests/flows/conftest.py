import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.server import Server
from tests.flows.toy import Toy


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server for all tests that are not about the server's own life."""
    server = Server(tmp_path_factory.mktemp("prefect"))
    try:
        yield server.wait()
    finally:
        server.stop()


@pytest.fixture()
def toy(tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Toy]]:
    """Make a toy repository from a dvc.yaml and files; its runs use the shared Prefect server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.delenv("MERGANSER_RUN", raising=False)

    def make(dvc_yaml: str, files: dict[str, str], name: str = "toy") -> Toy:
        return Toy(tmp_path / name, dvc_yaml, files)

    yield make
    os.environ.pop("MERGANSER_RUN", None)
