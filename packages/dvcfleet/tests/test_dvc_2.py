"""What DVC 2 left: entries without `hash: md5`, objects in .dvc/cache, hashes that ignore the kind of line ends.

An object then may have other line ends, and another size, than the file that is recorded under its hash.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvcfleet.dvc_adapter.run_cache import edited_entries, entry_files, entry_hash, read_entries, run_key
from dvcfleet.repository import opened
from tests.dvcfleet.twins import OURS, SAY, THEIRS, Twins

STAGES: dict[str, dict[str, Any]] = {
    "cut": {"cmd": f"{SAY}; cat source > cut", "deps": ["source"], "outs": ["cut"]},
    "sort": {
        "cmd": f"{SAY}; mkdir sorted; cp cut sorted/cut; cp params.yaml sorted",
        "deps": ["cut"],
        "params": ["word"],
        "outs": ["sorted"],
    },
    "count": {
        "cmd": f"{SAY}; cat cut > last; cat cut > m.json",
        "deps": ["cut"],
        "outs": ["last"],
        "metrics": [{"m.json": {"cache": False}}],
    },
}
DOS, UNIX, OTHER = "1\r\n2\r\n", "1\n2\n", "3\r\n"


def _md5(text: str) -> str:
    return hashlib.md5(text.replace("\r\n", "\n").encode()).hexdigest()


def _item(path: str, text: str) -> dict[str, Any]:
    return {"path": path, "md5": _md5(text), "size": len(text)}


def _object(md5: str, text: str) -> dict[str, str]:
    return {f".dvc/cache/{md5[:2]}/{md5[2:]}": text}


def _folder(texts: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the item of a folder, and its listing as an object."""
    listing = json.dumps([{"md5": _md5(text), "relpath": name} for name, text in sorted(texts.items())])
    md5 = f"{_md5(listing)}.dir"
    return {"md5": md5, "size": sum(map(len, texts.values())), "nfiles": len(texts)}, _object(md5, listing)


def _of_dvc_2(word: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the entries of dvc.lock for a source with DOS line ends, and the objects, one of them with Unix ones."""
    params = f"word: {word}\n"
    folder, listing = _folder({"cut": DOS, "params.yaml": params})
    entries: dict[str, Any] = {
        "cut": {"deps": [_item("source", DOS)], "outs": [_item("cut", DOS)]},
        "sort": {
            "deps": [_item("cut", DOS)],
            "params": {"params.yaml": {"word": word}},
            "outs": [{"path": "sorted", **folder}],
        },
        "count": {"deps": [_item("cut", DOS)], "outs": [_item("last", DOS), _item("m.json", DOS)]},
    }
    entries = {name: {"cmd": STAGES[name]["cmd"], **entry} for name, entry in entries.items()}
    return entries, {**_object(_md5(DOS), UNIX), **_object(_md5(params), params), **listing}


def _repository(locked: str = "x") -> dict[str, str]:
    """Return the files of a repository in which DVC 2 ran for two values of a parameter, then for another source."""
    files = {"dvc.yaml": yaml.safe_dump({"stages": STAGES}), "source": DOS, "params.yaml": "word: x\n"}
    for word in ("x", "y"):
        entries, objects = _of_dvc_2(word)
        runs = {f"{(key := run_key(each))[:2]}/{key}/{entry_hash(each)}": each for each in entries.values()}
        files |= objects | {f".dvc/cache/runs/{path}": yaml.safe_dump(entry) for path, entry in runs.items()}
    lock = {"schema": "2.0", "stages": _of_dvc_2(locked)[0]}
    made = {"cut": OTHER, "sorted/cut": OTHER, "last": OTHER, "m.json": OTHER}
    return {**files, **made, "dvc.lock": yaml.safe_dump(lock, sort_keys=False)}


@pytest.mark.parametrize("line_ends", [DOS, UNIX])
def test_a_known_source_brings_the_outputs_back_without_a_run(toy: object, tmp_path: Path, line_ends: str) -> None:
    twins = Twins(tmp_path / "twins", _repository())
    twins.write("source", line_ends)
    assert twins.both() == {}, twins.said
    assert twins.did == []
    lock = (twins.at(OURS) / "dvc.lock").read_text()
    assert "hash: md5" not in lock
    assert not (twins.at(OURS) / ".dvc/cache/files").exists()
    assert (twins.at(OURS) / "cut").read_bytes() == UNIX.encode()
    assert twins.both() == {}, twins.said
    assert twins.did == []


def test_a_known_parameter_is_found_in_the_run_cache(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", _repository("y"))
    for side in (OURS, THEIRS):
        shutil.rmtree(twins.at(side) / "sorted")
    assert twins.both() == {}, twins.said
    assert twins.did == []
    twins.write("params.yaml", "word: z\n")
    assert twins.both() == {}, twins.said
    assert twins.did == ["sort"]


def test_a_torn_object_is_not_taken_for_other_line_ends(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", _repository())
    for side in (OURS, THEIRS):
        path = next(iter(_object(_md5(DOS), "")))
        (twins.at(side) / path).write_text("1\n")
    twins.both()
    assert twins.ran(OURS) == []  # asked for by `both`
    assert (twins.at(OURS) / "cut").read_bytes() == DOS.encode()
    assert "restored" not in twins.said.partition("cut")[2].splitlines()[0]


def test_entries_of_dvc_2_are_not_taken_for_edited(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", _repository())
    with opened(twins.at(OURS)) as repo:
        entries = list(read_entries(entry_files(repo)))
        assert len(entries) == 4
        assert list(edited_entries(repo, entries)) == []
