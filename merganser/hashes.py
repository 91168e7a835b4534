"""Hashes of files and folders, and of what JSON can say."""

import hashlib
import json
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import check_file


def sha256_of(path: Path) -> str:
    """Hash a file; raise InputError for anything else."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_tree(path: Path) -> str:
    """Hash a file, or the names and contents of the files in a folder.

    Raises InputError if the path does not exist.
    """
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        raise InputError(f"{path}: missing; run the stage that writes it first (`dvc repro` or `merganser run` does)")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "".join(f"{file.relative_to(path).as_posix()} {sha256_of(file)}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()


def sha256_of_json(content: Any) -> str:
    """Hash what JSON can say: choices, digests of files and of code; in whatever order its keys are."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
