import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dvcfleet.toy import Make

RAY_TOKEN = secrets.token_hex(32)  # nodes may listen beyond loopback


@pytest.fixture
def toy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Make toy repositories; their runs use the shared Prefect server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    return Make(tmp_path, tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def ray_token() -> Iterator[None]:
    """One token for all Ray clusters of the tests: Ray reads it once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", RAY_TOKEN)
        yield
