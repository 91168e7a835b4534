"""What a run sends to a cluster's workers once is what Prefect would send with each stage.

Prefect is imported within the tests: every process of the tests reads this file, and few use Prefect.
"""

import pickle

import pytest

from dvcfleet.prefect_adapter.internals import settings_sent_once, share_tls_context


def test_a_worker_receives_the_runs_settings_with_secrets_and_keeps_them() -> None:
    from prefect.context import SettingsContext, serialize_context
    from prefect.settings import PREFECT_API_KEY, PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_API_KEY: "hush"}), settings_sent_once():
        sent = pickle.dumps(serialize_context()["settings_context"])
        own = SettingsContext.get()
    assert own
    received = [SettingsContext(**pickle.loads(sent)) for _ in range(2)]
    assert received[0].settings == own.settings
    assert received[0].profile == own.profile
    assert received[0].settings is received[1].settings
    with received[0]:
        assert PREFECT_API_KEY.value() == "hush"
        assert PREFECT_API_URL.value() == "http://127.0.0.1:9/api"


def test_changed_settings_are_sent_as_changed() -> None:
    from prefect.context import SettingsContext, serialize_context
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with settings_sent_once():
        for url in ("http://127.0.0.1:8/api", "http://127.0.0.1:9/api"):
            with temporary_settings({PREFECT_API_URL: url}):
                sent = pickle.loads(pickle.dumps(serialize_context()["settings_context"]))
            assert SettingsContext(**sent).settings.api.url == url


def test_clients_share_a_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    share_tls_context()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        first, second = (get_client(sync_client=True)._client._transport for _ in range(2))
    assert first._pool._ssl_context is second._pool._ssl_context  # type: ignore[attr-defined]
