"""The environment variables that the engine sets for itself, and that no stage's command gets."""

import os
from collections.abc import Mapping

# Names the variables that a process which is the engine's own has set for those that it starts.
_HANDED_DOWN = "DVCFLEET_OWN_VARIABLES"
_OWN: dict[str, str] = {}


def set_own(name: str, value: str) -> None:
    """Set a variable for this process only."""
    os.environ[name] = _OWN[name] = value


def hand_down(variables: Mapping[str, str]) -> None:
    """Set variables for this process and for the engine's processes that it starts."""
    os.environ.update(variables)
    os.environ[_HANDED_DOWN] = " ".join(variables)


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that are as the engine set them."""
    handed_down = {_HANDED_DOWN, *environment.get(_HANDED_DOWN, "").split()}
    return {name: value for name, value in environment.items() if _OWN.get(name) != value and name not in handed_down}
