"""Measures: scores of merges, interference between tasks, and the share of each task that a merge retains."""

from math import isnan
from typing import Any


def defined(content: Any) -> Any:
    """Replace each NaN by None, at any depth."""
    if isinstance(content, dict):
        return {key: defined(value) for key, value in content.items()}
    if isinstance(content, list):
        return [defined(value) for value in content]
    return None if isinstance(content, float) and isnan(content) else content
