"""What is asked of a lineage: why a result is what it is, what depends on something, what differs between two."""

from contextlib import chdir
from dataclasses import replace
from typing import Any

import pytest
from dvc.repo import Repo

from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import look_up
from dvcfleet.lineage.difference import Difference, Side, compare
from dvcfleet.lineage.show import why, why_lines
from dvcfleet.lineage.steps import FetchedSource
from dvcfleet.lineage.tree import Dependents, dependents_lines, find_dependents, read_lineage
from dvcfleet.record.ledger import Execution, entry_digest
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make


def test_why_tells_in_ten_lines_at_most_what_made_a_result(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    target, lineage = look_up(chain.path, str(chain.path / "end.txt"))
    found = why(target, lineage)
    ran = [step.execution for step in lineage.steps.values() if step.execution]
    assert (found.last, found.before, found.sources) == (("end",), ("turn", "cut"), ("source",))
    assert found.parameters == {"params.yaml": {"turn.times": 1}}
    assert found.seconds == pytest.approx(sum(line.seconds for line in ran))
    assert found.runs == (ran[0].run,)
    lines = list(why_lines(found, lineage))
    assert len(lines) <= 10
    said = "\n".join(lines)
    for words in (
        "made by    end: echo end >> log",
        "turn.times = 1",
        "source",
        ran[0].host,
        "Python 3.11",
        "no commit",
    ):
        assert words in said


def test_what_depends_on_a_content_a_path_a_source_or_a_package_is_found_and_nothing_else(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    with chdir(chain.path), Repo() as repo:
        lineage = read_lineage(repo)
    origin = FetchedSource(
        "turned",
        "org/model",
        "hub",
        "12ab",
        {"text": {"sha256": "f" * 64, "size": 1}},
        {"license": ["mit"], "license_name": ["own"], "license_in_file": ["cc-by-nc-4.0"]},
    )
    turn = replace(lineage.steps["turn"], origins=(origin,))
    lineage = replace(lineage, steps=lineage.steps | {"turn": turn})
    everything, after = ("cut", "turn", "end"), ("turn", "end")
    md5 = lineage.steps["cut"].outputs[0].hash or ""
    environment = next(iter(lineage.environments.values()))
    for text, stages in {
        "source": everything,
        md5: everything,
        md5[:8]: everything,
        "turned/text": after,
        "turn*": after,
        "own": after,
        "org/model": after,
        "org/*": after,
        "mit": after,
        "cc-by-nc-*": after,
        "12ab": after,
        "f" * 10: after,
        "end.txt": ("end",),
        "numpy": everything,
        f"numpy=={environment['packages']['numpy']}": everything,
    }.items():
        found = find_dependents(lineage, text)
        assert (found.stages, found.results) == (stages, ("end.txt",)), text
    for nothing in ("numpy==0.1", "other", "abcdef0123", "fff"):
        with pytest.raises(UserError, match=f"^{nothing}: no content, path, source or package"):
            find_dependents(lineage, nothing)
    said = list(dependents_lines(Dependents("x", ("x, md5 1",), after, ("end.txt",))))
    assert said == ["x, md5 1", "2 stages depend on it: turn, end", "1 result:", "  end.txt"]


def _entry(command: str, reads: dict[str, str], writes: dict[str, str], **params: Any) -> dict[str, Any]:
    deps, outs = ([{"path": path, "md5": md5} for path, md5 in each.items()] for each in (reads, writes))
    return {"cmd": command, "deps": deps, "outs": outs} | ({"params": {"params.yaml": params}} if params else {})


BASE = {
    "fetch": _entry("fetch", {"hub": "h1"}, {"model": "m1"}),
    "clean": _entry("clean", {"model": "m1", "words": "w1"}, {"clean": "c1"}),
    "merge@ties": _entry("merge ties", {"model": "m1", "clean": "c1"}, {"ties": "t1"}, scale={"by": 1}),
    "score@ties": _entry("score ties", {"ties": "t1"}, {"score/ties": "s1"}),
    "merge@mean": _entry("merge mean", {"model": "m1"}, {"mean": "a1"}, scale={"by": 1}),
    "score@mean": _entry("score mean", {"mean": "a1"}, {"score/mean": "s2"}),
}
OTHER = BASE | {
    "clean": _entry("clean", {"model": "m1", "words": "w2"}, {"clean": "c1"}),
    "merge@ties": _entry("merge ties", {"model": "m1", "clean": "c1"}, {"ties": "t2"}, scale={"by": 2}),
    "score@ties": _entry("score ties", {"ties": "t2"}, {"score/ties": "s3"}),
}


def _ran(entries: dict[str, Any], host: str, environment: str) -> list[Execution]:
    rest = ("2026-01-01T00:00:00+00:00", 1.0, 1, host, "run", None, None, None, environment)
    return [Execution(name, "done", entry_digest(entry), *rest) for name, entry in entries.items()]


def test_of_what_differs_between_two_runs_it_is_said_whether_it_reached_the_result() -> None:
    environments = {
        "e1": {
            "packages": {"torch": "1", "numpy": "2"},
            "blas": {"torch": "MKL of 20240605"},
            "files": {"numpy": "r1"},
        },
        "e2": {
            "packages": {"torch": "2", "numpy": "2"},
            "blas": {"numpy": "openblas 1", "torch": "MKL of 20250101"},
            "files": {"numpy": "r2", "torch": "r"},
        },
    }
    first = Side.of(BASE, _ran(BASE, "here", "e1"), environments)
    second = Side.of(OTHER, [*_ran(BASE, "there", "e2")[:1], *_ran(OTHER, "here", "e1")[1:]], environments)
    found, differs = compare(first, second, [("score@ties", "score@ties")])
    assert differs
    assert found == [
        Difference("parameter", "scale.by", 1, 2, ("merge@ties",), True),
        Difference("package", "torch", "1", "2", ("fetch",), False),
        Difference("package", "BLAS of torch", "MKL of 20240605", "MKL of 20250101", ("fetch",), False),
        Difference("files", "numpy 2", "r1", "r2", ("fetch",), False),
        Difference("machine", "host", "here", "there", ("fetch",), False),
        Difference("input", "words", "w1", "w2", ("clean",), False),
    ]
    assert compare(first, first, [("score@ties", "score@ties")]) == ([], False)
    assert compare(first, Side(OTHER, {}, {}), [("score@mean", "score@mean")]) == ([], False)


def test_stages_whose_names_alone_changed_are_compared_with_what_they_were() -> None:
    parts = ("b", "a")  # in the order of the names before; after it, in another one
    before = {f"fetch@{part}": _entry("fetch", {f"hub/{part}": part}, {f"model/{part}": part}) for part in parts}
    before["sum"] = _entry("sum", {"model/b": "b", "model/a": "a"}, {"sum": "s1"})
    after = {f"fetch@{part}": _entry("fetch", {f"hub/{part}": part}, {f"model/{part}": part}) for part in ("a", "z")}
    after["fetch@z"] = _entry("fetch", {"hub/b": "b"}, {"model/z": "b"})
    after["sum"] = _entry("sum", {"model/a": "a", "model/z": "b"}, {"sum": "s2"}, scale=2)
    ran = _ran(before, "here", "e1")
    (old,) = (line for line in ran if line.stage == "fetch@b")
    was = {"stage": "fetch@b", "entry": old.entry or ""}
    line = replace(old, stage="fetch@z", entry=entry_digest(after["fetch@z"]), host="elsewhere", was=was)
    ledger = [*ran, line, *_ran({"sum": after["sum"]}, "here", "e1")]
    first, second = (Side.of(entries, ledger, {}) for entries in (before, after))
    assert second.executions["fetch@z"] == old
    found, differs = compare(first, second, [("sum", "sum")])
    assert differs
    assert found == [Difference("parameter", "scale", None, 2, ("sum",), True)]


def test_names_that_were_changed_back_are_followed_and_end() -> None:
    entries = {"fetch@a": BASE["fetch"]}
    ran, *_ = _ran(entries, "here", "e1")
    there = replace(ran, stage="fetch@b", entry="2", was={"stage": "fetch@a", "entry": ran.entry or ""})
    back = replace(ran, was={"stage": "fetch@b", "entry": "2"})
    side = Side.of(entries, [ran, there, back], {})
    assert side.executions == {"fetch@a": ran}
    assert side.called(side.first_name("fetch@a")) == "fetch@a"
    assert Side.of(entries, [there, back], {}).executions == {}


def test_two_results_of_one_run_are_compared_stage_by_stage_of_a_kind() -> None:
    side = Side(BASE, {}, {})
    found, differs = compare(side, side, [("score@ties", "score@mean")])
    assert differs
    assert [(each.kind, each.first, each.second, each.stages, each.reached) for each in found] == [
        ("command", "score ties", "score mean", ("score@ties",), True),
        ("command", "merge ties", "merge mean", ("merge@ties",), True),
        ("stage", "clean", None, ("clean",), True),
    ]
