"""What golden comparisons say of code that changed: the same bytes, others, or nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from merganser.checkpoints.tensors import spec_of
from merganser.checkpoints.writing import save_tensors, write_model
from merganser.code_digest import CLASSES, CodeTree, read_classes
from merganser.config.completing import completed
from merganser.tasks.code_record import Digest
from merganser.tasks.stage import FOUND_BY_NAME
from tests.tiny import ROOT
from tools import golden
from tools.equivalence import (
    Evidence,
    alike,
    gather,
    named,
    params_in,
    refuse_unnoted,
    unknown,
    used_by,
    verdict,
    write_table,
)


def write(folder: Path, value: float, fingerprint: str, seconds: float) -> None:
    """Write what a merge and an evaluation would have written, and what stages say of it."""
    for name in ("data/code/methods", "data/code/kinds", "data/merged/ties", "data/base", "data/metrics/ties"):
        (folder / name).mkdir(parents=True)
    for name in ("merge.txt", "evaluate.txt", "methods/ties.txt", "methods/dare.txt", "kinds/texts.txt"):
        (folder / "data/code" / name).write_text(name)
    tensors = {"a": torch.full((2, 2), value, dtype=torch.bfloat16), "b": torch.tensor(1.0)}
    write_model(
        folder / "data/merged/ties", {name: spec_of(each) for name, each in tensors.items()}, tensors.items(), {}
    )
    save_tensors(folder / "data/merged/ties/parts.safetensors", tensors, json.dumps({"fingerprint": fingerprint}))
    (folder / "data/metrics/ties/dark.json").write_text(json.dumps({"value": value, "fingerprint": fingerprint}))
    (folder / "data/profile.json").write_text(json.dumps({"amr": 1, "wall_s": seconds}))
    params = yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text())
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    merge: dict[str, Any] = {
        "deps": ["data/base", *(f"data/code/{name}.txt" for name in ("merge", "methods/ties", "kinds/texts"))],
        "outs": {"data/merged/ties": [], "data/profile.json": ["wall_s"]},
    }
    evaluate: dict[str, Any] = {
        "deps": ["data/code/evaluate.txt", "data/code/methods", "data/merged/ties"],
        "outs": {"data/metrics/ties": []},
    }
    stages = {"merge@ties": merge | {"exit_code": 0}, "evaluate@ties-dark": evaluate | {"exit_code": 0}}
    (folder / "stages.json").write_text(json.dumps(stages))


@pytest.mark.parametrize(
    ("value", "changed", "fails"),
    [
        (1.0, (), ()),
        (2.0, ("merge.txt",), ("merge.txt", "methods/ties.txt", "kinds/texts.txt")),
        (2.0, ("merge.txt", "methods/ties.txt", "kinds/texts.txt"), ("methods/ties.txt",)),
        (2.0, ("merge.txt", "kinds/texts.txt"), ("kinds/texts.txt",)),
    ],
)
def test_code_that_wrote_other_bytes_from_the_same_is_named_and_no_code_that_read_them(
    value: float, changed: tuple[str, ...], fails: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / "old-a", 1.0, "first", 1.5)
    write(tmp_path / "new-a", value, "second", 2.5)
    found: dict[str, Evidence] = {}
    gather(found, tmp_path / "old-a", tmp_path / "new-a", changed)
    assert {file for file, evidence in found.items() if evidence.other} == set(fails)
    # dare stands in the folder that the evaluation reads, and this comparison does not use it.
    expected = fails or ("merge.txt", "methods/ties.txt", "kinds/texts.txt", "evaluate.txt")
    assert found.keys() == set(expected)
    assert all("OTHER RESULTS" in verdict(file, found[file]) for file in fails)
    assert "NOT SHOWN" in verdict("methods/dare.txt", Evidence())


def test_files_that_are_not_there_or_have_other_keys_are_not_alike(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"a": 1}')
    assert not alike(one, two)
    two.write_text('{"a": 1, "b": 2}')
    assert not alike(one, two)
    assert alike(one, two, ["b"])


def test_the_table_keeps_the_class_of_what_is_the_same_and_begins_one_for_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "merganser").mkdir()
    code, names = CodeTree(ROOT), {"methods/ties.txt": ("merganser.methods.ties",)}
    digest, key = code.digest("merganser.methods.ties"), "merganser.methods.ties"
    code.classes = {}
    known = {"methods/ties.txt": Digest("0" * 64, "1" * 64)}
    for evidence, of in ((Evidence(same=["a"]), "0" * 64), (Evidence(["a"], ["b"]), digest), (Evidence(), digest)):
        write_table(tmp_path, code, names, known, {"methods/ties.txt": evidence})
        classes = read_classes((tmp_path / CLASSES).read_text())[key]
        assert classes == {"0" * 64: "0" * 64, "1" * 64: "0" * 64, digest: of}


def test_each_family_kind_and_method_has_a_golden_comparison(tmp_path: Path) -> None:
    used = set[str]()
    for name in golden.MAKERS:
        (tmp_path / "params.yaml").write_text(completed(params_in(ROOT, name).read_text(), name)[0])
        used |= used_by(tmp_path)
    packages = (FOUND_BY_NAME[each] for each in ("families", "kinds", "methods"))
    assert {name for package in packages for name in CodeTree(ROOT).names(package)} <= used


def test_the_table_has_all_of_the_code() -> None:
    code = CodeTree(ROOT)
    assert unknown(named(code), code) == []


def test_a_commit_whose_table_lacks_its_own_code_is_nothing_to_compare_with(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "merganser", tmp_path / "merganser", ignore=shutil.ignore_patterns("__pycache__"))
    refuse_unnoted(CodeTree(tmp_path), "HEAD~1")
    merge = tmp_path / "merganser/tasks/merge.py"
    merge.write_text(f"{merge.read_text()}\nTIMES = 2\n")
    with pytest.raises(SystemExit, match=r"HEAD~1: .*lacks its own code; name the last commit that notes all"):
        refuse_unnoted(CodeTree(tmp_path), "HEAD~1")
