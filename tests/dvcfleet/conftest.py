from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dvcfleet.toy import Make
from tests.shared import shared_prefect_server


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server for all tests that are not about the server's own life."""
    with shared_prefect_server(tmp_path_factory) as api:
        yield api


@pytest.fixture
def toy(tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make toy repositories; their runs use the shared Prefect server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    return Make(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def ray_token() -> Iterator[None]:
    """One token for all Ray clusters of the tests: Ray reads it once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        yield
