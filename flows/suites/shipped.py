"""What the package brings for comparisons: suites, published figures, and the files that a comparison begins with."""

from pathlib import Path

from merganser.code_digest import ROOT


def shipped() -> Path:
    """Return the folder of what comparisons begin with: in a clone, its root."""
    inside = ROOT / "merganser/shipped"
    return inside if inside.is_dir() else ROOT
