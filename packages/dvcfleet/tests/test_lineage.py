"""Where results come from, and what an audit finds, in small repositories."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.errors import UserError
from dvcfleet.lineage import show
from dvcfleet.lineage.audit import Audit, audit, look_up
from dvcfleet.lineage.rerun import Rerun
from dvcfleet.lineage.steps import Finding, FindingKind
from tests.dvcfleet.test_ledger import commit, ledger
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import forking, python

PARTS = """
stages:
  part:
    foreach: [a, b]
    do:
      cmd: mkdir -p parts && echo ${item} > parts/${item}
      deps: [code]
      outs: ["parts/${item}"]
  sum:
    cmd: cat parts/* > sum
    deps: [parts]
    outs: [sum]
"""


@pytest.fixture
def chain(toy: Make) -> Toy:
    return toy.ran(CHAIN, CHAIN_FILES, before=commit)


def found(toy: Toy, target: str | None = None) -> list[tuple[str, str]]:
    """Audit; return the kind of each finding, and what it names."""
    return [(one.kind.value, one.name) for one in audit(toy.path, target).findings]


def overwrite(path: Path) -> None:
    """Change one byte in place, also of the copy in DVC's cache if it is linked, and leave no trace in its times."""
    info = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    path.chmod(info.st_mode)


def test_the_tree_goes_from_a_result_down_to_its_sources(chain: Toy) -> None:
    target, lineage = look_up(chain.path, "end.txt")
    assert target.stages == ("end",)
    assert list(lineage.steps) == ["cut", "turn", "end"]
    turn = lineage.steps["turn"]
    assert turn.needs == ("cut",)
    assert turn.params == {"params.yaml": {"turn.times": 1}}
    assert [(item.path, item.kind, item.made_by) for item in turn.inputs] == [("cut.txt", "data", ("cut",))]
    assert [(item.path, item.kind) for item in lineage.steps["cut"].inputs] == [("source", "code")]
    assert turn.execution == ledger(chain)[1]
    assert list(lineage.environments) == [ledger(chain)[0].environment]


def test_sources_elsewhere_are_called_as_dvc_yaml_calls_them_and_audited(toy: Make, tmp_path: Path) -> None:
    for name in ("absolute", "relative", "linked"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "weights").write_text(name)
    sources = {
        "absolute": str(tmp_path / "elsewhere/absolute"),
        "relative": "../elsewhere/relative",
        "linked": "hub/linked",
        "inside": str(tmp_path / "toy/hub/inside"),
    }
    stages = [
        f"  {name}: {{cmd: cp {at}/weights {name}, deps: [{at}], outs: [{name}]}}" for name, at in sources.items()
    ]
    made = toy("\n".join(["stages:", *stages]), {"hub/inside/weights": "inside"})
    (made.path / "hub/linked").symlink_to(tmp_path / "elsewhere/linked")
    assert made.run()[0] == 0
    assert found(made) == []
    items = {name: look_up(made.path, name)[1].steps[name].inputs[0] for name in sources}
    assert {name: item.path for name, item in items.items()} == sources | {"inside": "hub/inside"}
    assert [item.kind for item in items.values()] == ["source"] * 4
    assert again(made).findings == ()
    overwrite(tmp_path / "elsewhere/absolute/weights")
    overwrite(tmp_path / "elsewhere/linked/weights")
    assert sorted(found(made)) == [("source changed", sources["absolute"]), ("source changed", "hub/linked")]


def test_the_text_and_the_json_hold_every_step_and_what_is_known_of_it(chain: Toy) -> None:
    target, lineage = look_up(chain.path, "end")
    text = "\n".join(show.as_lines(target, lineage))
    line = ledger(chain)[1]
    for word in ("turn", "rev cut.txt", "turn.times = 1", line.began, line.run, line.flow_run, line.commit, line.host):
        assert str(word) in text
    data = json.loads(json.dumps(show.lineage_json(target, lineage)))
    assert data["target"]["stages"] == ["end"]
    assert [step["stage"] for step in data["steps"]] == ["cut", "turn", "end"]
    assert data["steps"][1]["execution"]["flow_run"] == line.flow_run
    assert data["environments"][line.environment]["python"] == sys.version.split()[0]


def test_a_stage_that_dvc_ran_says_that_its_time_is_not_known(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    subprocess.run([*python(), "-m", "dvc", "repro", "-q"], cwd=chain.path, check=True)
    target, lineage = look_up(chain.path, "cut")
    assert lineage.steps["cut"].execution is None
    assert "outside a run" in "\n".join(show.as_lines(target, lineage))
    assert found(chain) == []


def test_a_file_inside_an_output_is_found_by_its_path(chain: Toy) -> None:
    assert look_up(chain.path, "turned/text")[0].stages == ("turn",)
    assert look_up(chain.path, str(chain.path / "turned"))[0].files == ("turned",)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("ent", 'did you mean "end"'),
        ("source", "no stage wrote it"),
        ("nothing/at/all", "no stage, output or name"),
    ],
)
def test_what_names_nothing_is_refused(chain: Toy, target: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        look_up(chain.path, target)


def test_a_folder_of_several_outputs_and_a_stage_that_never_ran_are_refused(toy: Make) -> None:
    parts = toy(PARTS, {"code": "c"})
    with pytest.raises(UserError, match="has not run yet"):
        look_up(parts.path, "sum")
    parts.run()
    with pytest.raises(UserError, match="2 outputs, such as parts/a"):
        look_up(parts.path, "parts")


def test_an_untouched_tree_gives_no_findings_and_every_byte_is_read(chain: Toy) -> None:
    done = audit(chain.path)
    assert done.findings == ()
    assert done.stages == 3
    names = ("source", "cut.txt", "turned/text", "end.txt")
    assert done.size >= sum((chain.path / name).stat().st_size for name in names)


def _edit(name: str, text: str) -> Callable[[Toy], None]:
    return lambda toy: toy.write(name, text)


def _edit_lock(old: str, new: str) -> Callable[[Toy], None]:
    def edit(toy: Toy) -> None:
        assert old in toy.read("dvc.lock")
        toy.write("dvc.lock", toy.read("dvc.lock").replace(old, new))

    return edit


def _flip(name: str) -> Callable[[Toy], None]:
    return lambda toy: overwrite(toy.path / name)


def _flip_cached(name: str) -> Callable[[Toy], None]:
    def flip(toy: Toy) -> None:
        content = (toy.path / name).read_bytes()
        copies = [path for path in (toy.path / ".dvc/cache/files").rglob("*") if path.is_file()]
        overwrite(next(path for path in copies if path.read_bytes() == content))

    return flip


@pytest.mark.parametrize(
    ("change", "kind", "name"),
    [
        (_flip("end.txt"), FindingKind.CHANGED, "end.txt"),
        (_flip("turned/text"), FindingKind.CHANGED, "turned/text"),
        (_flip_cached("cut.txt"), FindingKind.CACHE, ".dvc/cache"),
        (lambda toy: (toy.path / "cut.txt").unlink(), FindingKind.MISSING, "cut.txt"),
        (lambda toy: (toy.path / "source").unlink(), FindingKind.MISSING, "source"),
        (_edit("turned/more", "x"), FindingKind.UNKNOWN, "turned/more"),
        (_edit("source", "abcdeg"), FindingKind.CODE, "source"),
        (_edit("params.yaml", "turn: {times: 2, more: {deep: 1}}\n"), FindingKind.PARAMS, "params.yaml"),
        (_edit_lock("size: 6", "size: 7"), FindingKind.RECORD, "dvc.lock"),
        (_edit_lock("nfiles: 1", "nfiles: 2"), FindingKind.RECORD, "dvc.lock"),
        (_edit("dvc.yaml", CHAIN.replace("echo end", "echo END")), FindingKind.STAGE, "end"),
        (_edit("dvc.yaml", CHAIN.replace("deps: [turned]", "deps: [turned, source]")), FindingKind.STAGE, "end"),
        (_edit("dvc.yaml", CHAIN.replace("  end:", "  finish:")), FindingKind.NEVER_RAN, "finish"),
        (_edit("dvc.yaml", CHAIN.replace("  end:", "  finish:")), FindingKind.UNDECLARED, "end"),
    ],
)
def test_a_change_is_found_and_named(chain: Toy, change: Callable[[Toy], None], kind: FindingKind, name: str) -> None:
    change(chain)
    assert any(one == kind.value and what.startswith(name) for one, what in found(chain)), found(chain)


def test_one_changed_byte_is_one_finding_also_where_dvc_sees_nothing(chain: Toy) -> None:
    overwrite(chain.path / "cut.txt")
    assert found(chain) == [("changed", "cut.txt")]
    assert found(chain, "end.txt") == [("changed", "cut.txt")]


def test_a_target_leaves_out_what_it_does_not_come_from(chain: Toy) -> None:
    overwrite(chain.path / "end.txt")
    assert found(chain, "turn") == []
    assert found(chain, "end") == [("changed", "end.txt")]


def test_a_strange_file_in_a_folder_that_is_read_whole_is_named(toy: Make) -> None:
    parts = toy.ran(PARTS, {"code": "c"})
    assert found(parts) == []
    parts.write("parts/c", "stranger")
    assert found(parts) == [("unknown file", "parts/c")]


def test_an_input_made_anew_since_is_outdated(toy: Make) -> None:
    parts = toy.ran(PARTS, {"code": "c"})
    parts.write("dvc.yaml", PARTS.replace("echo ${item}", "echo 2${item}"))
    parts.run("part@a", "part@b")
    assert found(parts) == [("outdated", "parts")]


def test_an_edited_file_in_a_folder_of_code_is_named_by_git(toy: Make) -> None:
    code = toy(
        "stages: {one: {cmd: cat code/* > one, deps: [code], outs: [one]}}", {"code/a.py": "1", "code/b.py": "2"}
    )
    commit(code)
    code.run()
    assert found(code) == []
    code.write("code/b.py", "3")
    (finding,) = audit(code.path).findings
    assert finding.kind is FindingKind.CODE
    assert "code/b.py" in finding.message


def test_an_audit_waits_for_no_killed_run_and_no_other_writer(chain: Toy) -> None:
    (chain.path / ".dvcfleet/journal").write_text("")
    with pytest.raises(UserError, match="was killed"):
        audit(chain.path)


def again(toy: Toy) -> Audit:
    with forking():
        return audit(toy.path, again=Rerun())


def test_running_again_finds_other_bytes_that_may_not_vary_and_bytes_changed_with_dvc_lock_and_leaves_all_alone(
    toy: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = CHAIN.replace("rev cut.txt > turned/text", "rev cut.txt > turned/text; date +%N%s > turned/time")
    text = text.replace("outs: [end.txt]", "outs: [end.txt: {meta: {dvcfleet: {varies: true}}}]")
    chain = toy(f"{text}  own: {{cmd: cat source > own.txt, deps: [source], outs: [own.txt]}}\n", CHAIN_FILES)
    chain.run()
    chain.write("own.txt", "X")
    with chdir(chain.path), Repo() as repo:
        repo.commit("own", force=True)
    assert found(chain) == [("unproven", "own")]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    chain.ran()
    before = {path: path.stat().st_mtime_ns for path in chain.path.rglob("*") if path.is_file()}
    done = again(chain)
    assert done.run_again
    assert chain.ran() == []
    assert {path: path.stat().st_mtime_ns for path in before if "tmp" not in path.parts} == {
        path: time for path, time in before.items() if "tmp" not in path.parts
    }
    assert list(scratch.iterdir()) == []
    # Nothing is said of the two stages that write the same bytes, nor of the one that may write others.
    turned, own, unproven = sorted(done.findings, key=lambda finding: finding.name, reverse=True)
    assert (unproven.kind, unproven.name) == (FindingKind.UNPROVEN, "own")
    assert (turned.kind, turned.name) == (FindingKind.NOT_REPRODUCED, "turned")
    assert turned.message.endswith(": time")
    assert (own.kind, own.name) == (FindingKind.NOT_REPRODUCED, "own.txt")


KEYS = """
stages:
  cost:
    cmd: python cost.py > cost.json
    deps: [cost.py]
    outs: [cost.json: {meta: {dvcfleet: {varies: VARIES}}}]
"""
COST = {"cost.py": "import json, time\nprint(json.dumps({'s': time.time(), 'rate': 0.25}))\n"}


def _rate(toy: Toy) -> None:
    """Change the pure number consistently: in the file, DVC's cache and dvc.lock."""
    cost = json.loads(toy.read("cost.json"))
    (toy.path / "cost.json").unlink()
    toy.write("cost.json", json.dumps(cost | {"rate": 0.5}))
    with chdir(toy.path), Repo() as repo:
        repo.commit("cost", force=True)


def test_of_a_file_some_of_whose_keys_vary_the_others_are_compared_when_it_is_run_again(toy: Make) -> None:
    costs = toy(KEYS.replace("VARIES", "[s]"), COST)
    assert costs.run()[0] == 0
    costs.run(force=True)  # other seconds, which may be
    assert found(costs) == []
    _rate(costs)
    assert found(costs) == [("unproven", "cost")]
    finding, _ = sorted(again(costs).findings, key=lambda one: one.name != "cost.json")
    assert (finding.kind, finding.name) == (FindingKind.NOT_REPRODUCED, "cost.json")
    assert finding.message == "rate: 0.5 was recorded, 0.25 written when run again, further apart than 0"


def test_what_is_said_to_vary_otherwise_than_when_it_ran_is_found(toy: Make) -> None:
    costs = toy(KEYS.replace("VARIES", "[s]"), COST)
    assert costs.run()[0] == 0
    assert ledger(costs)[0].varies == {"cost.json": ["s"]}
    costs.write("dvc.yaml", KEYS.replace("VARIES", "true"))
    assert found(costs) == [("stage changed", "cost")]
    costs.write("dvc.yaml", KEYS.replace("VARIES", "often"))
    code, said = costs.run(force=True)
    assert code != 0
    assert "meta.dvcfleet.varies should be true, false or a list of keys, got 'often'" in said


def test_stages_run_again_find_what_a_link_to_a_folder_of_the_repository_leads_to(toy: Make) -> None:
    stage = {"cmd": "cat package/code/part.txt > out", "deps": ["package"], "outs": ["out"]}
    linked = toy(yaml.safe_dump({"stages": {"read": stage}}), {"code/part.txt": "a", "package/own.txt": "b"})
    (linked.path / "package/code").symlink_to("../code")
    assert linked.run()[0] == 0
    assert not again(linked).findings


def test_nothing_is_run_again_from_code_that_has_changed(chain: Toy) -> None:
    chain.write("source", "changed")
    done = again(chain)
    assert not done.run_again
    assert [one.kind for one in done.findings] == [FindingKind.CODE]


def test_a_finding_takes_one_line_whatever_its_file_is_named() -> None:
    finding = Finding(FindingKind.CHANGED, "a\nverified: all", "is not there")
    assert str(finding) == r"changed: a\nverified: all: is not there"
