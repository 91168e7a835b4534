"""Comparisons by earlier versions are verified, restored, continued and compared by this one."""

import lzma
import re
from pathlib import Path

import pytest

from tests.flows.conftest import Done
from tests.tiny import ROOT, merganser

# 0.1.0: made in a clone at commit cf65acac6d; later ones by tools/archive_version.py.
ARCHIVES = sorted((ROOT / "tests/versions").glob("*.tar.xz"))
NEW = {"name_classes"}  # stages that those versions do not have
TEXTS = {"fetch_data", "prepare", "evaluate"}  # of kinds of task whose texts run in other batches since 0.2.0
ALWAYS_AGAIN = {"code", "record", "report"}  # after a change of their code: what they write says when it was written


def test_each_version_has_its_archive() -> None:
    assert [path.name for path in ARCHIVES] == ["0.1.0.tar.xz", "0.2.0.tar.xz"]


@pytest.mark.parametrize(
    "kept",
    [
        ARCHIVES[0],
        *(pytest.param(path, marks=pytest.mark.drill) for path in ARCHIVES[1:]),
    ],  # the oldest, as it says most
    ids=lambda path: path.name,
)
def test_a_comparison_by_a_version_is_verified_restored_and_continued(
    kept: Path, tmp_path: Path, prefect_api: str, done: Done
) -> None:
    archive, folder = tmp_path / "archive.tar", tmp_path / "again"
    archive.write_bytes(lzma.decompress(kept.read_bytes()))
    assert "nothing has changed" in done(tmp_path, "lineage", "verify", "--archive", str(archive))
    done(tmp_path, "archive", "--restore", str(archive), str(folder))
    if (folder / "pyproject.toml").is_file():  # up to 0.1.0 a comparison was a clone
        merganser(tmp_path, "init", "--from", str(folder), "mine")
        folder = tmp_path / "mine"
    said = merganser(folder, "run", PREFECT_API_URL=prefect_api).stdout
    ran = {name.partition("@")[0] for name in re.findall(r"(\S+) done in", said)}
    changed = set(re.findall(r"^(\S+): other results", said, re.MULTILINE))
    assert changed or ran <= ALWAYS_AGAIN | NEW | TEXTS, said
    assert "nothing to do" in merganser(folder, "run", PREFECT_API_URL=prefect_api).stdout
    assert "nothing has changed" in done(folder, "lineage", "verify")
    assert "parameters: the same" in done(folder, "diff", "HEAD", "workspace")
