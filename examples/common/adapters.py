"""Adapters as PEFT saves them, made a function of their training alone."""

import json
from pathlib import Path


def settle(out: Path, base: Path) -> None:
    """Make a saved adapter's files the same from process to process.

    PEFT writes sets in the order of a hash that differs from process to process, and a card with its own version.
    The base is named as seen from the repository's root.
    """
    path = out / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = (Path("examples") / base).as_posix()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "README.md").unlink(missing_ok=True)
