"""These tests use the engine's toy repositories and its shared Prefect server."""

from tests.dvcfleet.conftest import toy

__all__ = ["toy"]
