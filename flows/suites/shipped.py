"""The package's files for comparisons: suites, published figures, and the initial files of a comparison."""

from pathlib import Path

from merganser.code_digest import ROOT


def shipped() -> Path:
    """Return the folder of these files: in a clone, its root."""
    inside = ROOT / "merganser/shipped"
    return inside if inside.is_dir() else ROOT
