"""The environment variables that the engine sets for itself, and that no stage's command gets."""

import os
from collections.abc import Mapping

_OWN: dict[str, str] = {}


def set_own(name: str, value: str) -> None:
    """Set a variable for this process only."""
    os.environ[name] = _OWN[name] = value


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that are as the engine set them."""
    return {name: value for name, value in environment.items() if _OWN.get(name) != value}
