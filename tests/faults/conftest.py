"""The kill tests use the engine's toy repositories and its shared Prefect server."""

from tests.dvcfleet.conftest import ray_token, toy

__all__ = ["ray_token", "toy"]
