"""What the package brings for comparisons: suites, published figures, and the files that a comparison begins with."""

from pathlib import Path

import merganser


def shipped() -> Path:
    """Return the folder of what comparisons begin with: in a clone, its root."""
    inside = Path(merganser.__file__).parent / "shipped"
    return inside if inside.is_dir() else inside.parents[1]
