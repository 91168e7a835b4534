"""Files that no stage declares and several stages write: nothing is lost without a word, and stages can take turns."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dvcfleet.crash_recovery import keep_copies, restore_destroyed
from dvcfleet.dvc_adapter.lock_entries import parse_map
from dvcfleet.errors import UserError
from dvcfleet.planning.code_search import CodeSearch
from dvcfleet.scheduling.retries import WRITERS, exclusive_groups
from tests.dvcfleet.toy import Make, Toy
from tests.dvcfleet.twins import SAY, Twins

# Each stage reads a file, works, and writes it again with a line of its own: side by side, two of three lines are lost.
TURNS = f"""
stages:
  each:
    foreach: [a, b, c]
    do:
      cmd: {SAY}; cp notes ${{item}}; sleep 0.2; echo ${{item}} >> ${{item}}; cp ${{item}} notes
      outs: ["${{item}}"]
      meta: {{dvcfleet: {{exclusive: notes}}}}
"""


def test_stages_that_take_turns_leave_what_dvc_repro_leaves(toy: Make, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": TURNS, "notes": "begin\n"})
    assert twins.both() == {}, twins.said
    assert twins.at("ours").joinpath("notes").read_text().split() == ["begin", "a", "b", "c"]


def test_after_one_that_failed_the_next_one_has_its_turn(toy: Make) -> None:
    meta = {"dvcfleet": {"exclusive": "x"}}
    stages = {
        "a": {"cmd": "mkdir taken; sleep 0.1; rmdir taken; exit 1", "meta": meta},
        "b": {"cmd": "mkdir taken; sleep 0.1; rmdir taken; echo > b", "outs": ["b"], "meta": meta},
        "c": {"cmd": "mkdir taken; sleep 0.1; rmdir taken; cp b c", "deps": ["b"], "outs": ["c"], "meta": meta},
    }
    code, text = toy(yaml.safe_dump({"stages": stages}), {}).run(workers=3)
    assert (code, "2 done, 1 failed" in text) == (1, True), text


def beside(toy: Make, command: str, **files: str) -> Toy:
    """Make a repository of two stages that run this command at the same time, each once the other has started."""
    meet = "touch ${item}.on; while ! test -e a.on -a -e b.on; do sleep 0.02; done"
    stage = {"cmd": f"{meet}; {command}; sleep 0.1; echo > ${{item}}", "outs": ["${item}"]}
    made = toy(yaml.safe_dump({"stages": {"t": {"foreach": ["a", "b"], "do": stage}}}), files)
    subprocess.run(["git", "add", "--all"], cwd=made.path, check=True)
    return made


def test_a_dvc_yaml_that_stages_destroy_is_restored_with_what_they_added(toy: Make) -> None:
    made = beside(toy, "echo 'artifacts: {${item}: {path: ${item}}}' > dvc.yaml")
    before = yaml.safe_load(made.read("dvc.yaml"))
    code, text = made.run()
    after = yaml.safe_load(made.read("dvc.yaml"))
    assert (code, after["stages"]) == (1, before["stages"]), text
    assert set(after["artifacts"]) & {"a", "b"}
    assert "dvc.yaml lost stages while these ran at the same time: t@a, t@b" in text
    assert "exclusive: NAME" in text
    assert made.run() == (0, "nothing to do: 2 stages are up to date\n")
    assert not (made.path / ".dvcfleet/pipeline-copies").exists()


@pytest.mark.parametrize(
    "damage", ["rm -f dvc.yaml", "echo '{' > dvc.yaml", pytest.param(": > dvc.yaml", marks=pytest.mark.drill)]
)
def test_a_dvc_yaml_that_is_gone_or_half_written_is_restored(toy: Make, damage: str) -> None:
    made = beside(toy, damage)
    before = made.read("dvc.yaml")
    code, text = made.run()
    assert (code, made.read("dvc.yaml")) == (1, before), text


def test_a_tracked_file_that_changed_beside_several_stages_is_named_with_them(toy: Make) -> None:
    made = beside(toy, "echo ${item} > shared.csv; touch same.csv", **{"shared.csv": "0", "same.csv": "1"})
    code, text = made.run()
    assert code == 0, text
    assert "shared.csv changed while these ran at the same time: t@a, t@b. No stage declares it" in text
    assert "same.csv" not in text


def test_what_one_stage_alone_writes_is_no_matter(toy: Make) -> None:
    stages = {name: {"cmd": f"echo {name} > shared.csv; echo '# {name}' >> dvc.yaml"} for name in "ab"}
    made = toy(yaml.safe_dump({"stages": stages}), {"shared.csv": "0"})
    subprocess.run(["git", "add", "--all"], cwd=made.path, check=True)
    code, text = made.run(workers=1)
    assert (code, "at the same time" in text) == (0, False), text
    assert made.read("dvc.yaml").endswith("# a\n# b\n")


def test_a_dvc_yaml_that_a_killed_runs_stages_destroyed_is_restored_from_its_copy(tmp_path: Path) -> None:
    state, file, said = tmp_path / ".dvcfleet", tmp_path / "sub/dvc.yaml", list[str]()
    file.parent.mkdir()
    text = "# ours\nstages:\n  a: {cmd: 'echo ${x}'}  # kept\nmetrics: [m.json]\n"
    for now, lost in (
        ("metrics:\n- n.json\n", "stages, metrics.m.json"),
        ("stages: {b: {cmd: x}}\n", None),
        (text, None),
    ):
        keep_copies(tmp_path, state, {file: text})
        file.write_text(now)
        restore_destroyed(tmp_path, state, said.append)
        assert not (state / "pipeline-copies").exists()
        if lost is None:
            assert (file.read_text(), said) == (now, [])
            continue
        assert file.read_text() == text.replace("[m.json]", "[m.json, n.json]")
        assert said.pop() == f"sub/dvc.yaml had lost {lost} when a run was killed: restored"
    assert parse_map(text) is not None


SEARCHED = """
stages:
  script: {cmd: python a/train.py}
  module: {cmd: python -m a.train --fast}
  package: {cmd: python -m b}
  shell: {cmd: bash run.sh}
  notebook: {cmd: "papermill lab.ipynb out.ipynb"}
  folder: {cmd: console-script, deps: [a]}
  inside: {cmd: python train.py, wdir: a}
  inline: {cmd: "python -c 'from dvclive import Live'"}
  never: {cmd: python a/train.py, meta: {dvcfleet: {exclusive: false}}}
  named: {cmd: python a/train.py, meta: {dvcfleet: {exclusive: gpu}}}
  made: {cmd: cp a/log.py made.py, outs: [made.py]}
  reader: {cmd: cat made.py, deps: [made.py]}
  other: {cmd: python plain.py}
"""
CODE = {
    "a/train.py": "import os, a.steps as s\n",
    "a/__init__.py": "",
    "a/steps.py": "from .log import (\n    note,\n    more)\n",
    "a/log.py": "def f():\n    from dvclive.lightning import DVCLiveLogger\n",
    "b/__main__.py": "from a import (os,\n    log)\n",
    "run.sh": "# a comment's lone '\nexec python -m a.train\n",
    "lab.ipynb": '{"cells": [{"source": ["import sys\\n",\n    "from a import log\\n"]}]}',
    "plain.py": "import os, numpy\n",
}


def test_stages_whose_code_uses_dvclive_take_turns_by_themselves(toy: Make) -> None:
    made = toy(SEARCHED, CODE)
    stages = made.plan().stages.values()
    outputs = {out.fs_path for stage in stages for out in stage.outs}
    groups = exclusive_groups(stages, CodeSearch(made.path, WRITERS, outputs))
    found = ("script", "module", "package", "shell", "notebook", "folder", "inline", "made")
    assert groups == {**dict.fromkeys(found, "dvclive"), "inside": "dvclive in a", "named": "gpu"}


@pytest.mark.parametrize("value", [True, 3, "' '", "[a]"])
def test_a_group_that_is_no_name_is_refused(toy: Make, value: object) -> None:
    made = toy(f"stages: {{a: {{cmd: echo, meta: {{dvcfleet: {{exclusive: {value}}}}}}}}}", {})
    with pytest.raises(UserError, match=re.escape("stage a: meta.dvcfleet.exclusive should be a name")):
        exclusive_groups(made.plan().stages.values())
