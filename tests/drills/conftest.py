"""The kills use the engine's toy repositories and its shared Prefect server."""

from tests.dvcfleet.conftest import prefect_api, toy

__all__ = ["prefect_api", "toy"]
