"""Compare two versions of a metric file number by number, within tolerances."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KeyPath = tuple[str, ...]
# How far the value under some keys of the recorded content may be from its other version; None if it is not compared.
Tolerance = Callable[[Any, KeyPath], float | None]


def differences(before: Path, after: Path, tolerance: Tolerance) -> Iterator[str]:
    """Say where two metric files differ: numbers of JSON by more than the tolerance, all else at all."""
    recorded = _read(before)
    yield from _differences(recorded, _read(after), (), lambda keys: tolerance(recorded, keys))


def _differences(one: Any, other: Any, keys: KeyPath, allowed: Callable[[KeyPath], float | None]) -> Iterator[str]:
    pair = _parts(one), _parts(other)
    if pair[0] is not None and pair[1] is not None and pair[0].keys() == pair[1].keys():
        for name, value in pair[0].items():
            yield from _differences(value, pair[1][name], (*keys, name), allowed)
        return
    most = allowed(keys)
    if most is None or one == other:
        return
    where = ".".join(keys) or "all of it"
    if not (_is_number(one) and _is_number(other)):
        yield f"{where}: {_shown(one)} was recorded, {_shown(other)} written when run again"
    elif not (abs(one - other) <= most or (math.isnan(one) and math.isnan(other))):
        yield f"{where}: {one} was recorded, {other} written when run again, further apart than {most:.2g}"


def _parts(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list):
        return {str(number): each for number, each in enumerate(value)}
    return value if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(path: Path) -> Any:
    """Read JSON; a file in another format is one text."""
    content = path.read_bytes()
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _shown(value: Any, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."
