"""Edits of several files that agree with one another: what an audit holds each against, and what it cannot find."""

import importlib.util
import json
import marshal
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.crash_recovery import SYNCED
from dvcfleet.dvc_adapter.lock_entries import yaml_text
from dvcfleet.dvc_adapter.run_cache import entry_hash, run_key
from dvcfleet.errors import UserError
from dvcfleet.lineage import show
from dvcfleet.lineage.audit import audit, look_up
from dvcfleet.lineage.openlineage import to_events
from dvcfleet.lineage.prov import to_prov
from dvcfleet.lineage.show import why, why_lines
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.record.chain import anchor_of, check_chains, parse_anchor
from dvcfleet.record.environments import environment, keep_environment, sha256
from dvcfleet.record.ledger import BEGIN, LEDGER, LEDGERS, entry_digest, sound_lines
from dvcfleet.repository import opened
from tests.dvcfleet.test_ledger import commit
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy

Lines = list[dict[str, Any]]


@pytest.fixture
def chain(toy: Make) -> Toy:
    return toy.ran(CHAIN, CHAIN_FILES, before=commit, save_experiment=True)


def found(toy: Toy) -> list[tuple[str, str]]:
    return [(one.kind.value, one.name) for one in audit(toy.path).findings]


def state_of(toy: Toy) -> Path:
    return toy.path / ".dvcfleet"


def lines_of(toy: Toy) -> Lines:
    return [json.loads(line) for line in (state_of(toy) / LEDGER).read_bytes().splitlines()]


def write_chained(path: Path, lines: Lines, last: str = BEGIN) -> None:
    """Write a ledger's file with a chain that holds."""
    texts = list[str]()
    for line in lines:
        texts.append(json.dumps(line | {"before": last}))
        last = sha256(texts[-1].encode())
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts))


def reproduce(toy: Toy, **options: Any) -> None:
    with chdir(toy.path), Repo() as repo:
        repo.reproduce(**options)


def commit_output(toy: Toy, name: str, text: str, stage: str) -> None:
    """Change an output, DVC's cache and dvc.lock together, as `dvc commit` does."""
    toy.write(name, text)
    with chdir(toy.path), Repo() as repo:
        repo.commit(stage, force=True)


def forget_experiments(toy: Toy) -> None:
    shutil.rmtree(toy.path / ".git/refs/exps")


def forget_end(toy: Toy) -> None:
    (state_of(toy) / SYNCED).unlink()


def _every_host(toy: Toy) -> None:
    write_chained(state_of(toy) / LEDGER, [line | {"host": "elsewhere", "user": "mallory"} for line in lines_of(toy)])


def _without_chain(toy: Toy) -> None:
    lines = [{key: value for key, value in line.items() if key != "before"} for line in lines_of(toy)]
    (state_of(toy) / LEDGER).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _as_of_an_old_version(toy: Toy) -> None:
    new = ("before", "user", "varies", "changes", "was", "why", "unproven")
    lines = [{key: value for key, value in line.items() if key not in new} for line in lines_of(toy)]
    (state_of(toy) / LEDGER).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _without_the_last(toy: Toy) -> None:
    write_chained(state_of(toy) / LEDGER, lines_of(toy)[:-1])


def _without_the_first(toy: Toy) -> None:
    write_chained(state_of(toy) / LEDGER, lines_of(toy)[1:])


def _another_environment(toy: Toy) -> None:
    digest = keep_environment(state_of(toy), environment() | {"python": "2.7"})
    write_chained(state_of(toy) / LEDGER, [line | {"environment": digest} for line in lines_of(toy)])


def _another_flow_run(toy: Toy) -> None:
    lines = [line | {"flow_run": "0" * 8, "run": "other", "host": "elsewhere"} for line in lines_of(toy)]
    write_chained(state_of(toy) / LEDGER, lines)


def _gone(toy: Toy) -> None:
    (state_of(toy) / LEDGER).unlink()


REWRITTEN: list[Callable[[Toy], None]] = [
    _every_host,
    _without_chain,
    _as_of_an_old_version,
    _without_the_last,
    _without_the_first,
    _another_environment,
    _another_flow_run,
]


def test_a_ledger_written_again_is_found_while_its_experiment_or_the_last_sync_says_how_it_ended(chain: Toy) -> None:
    kept = (state_of(chain) / LEDGER).read_bytes(), (state_of(chain) / SYNCED).read_bytes()
    wrong = [("record changed", f".dvcfleet/{LEDGER}")]
    for tamper in REWRITTEN:
        tamper(chain)
        forget_end(chain)
        assert set(found(chain)) == set(wrong), tamper.__name__
        (state_of(chain) / LEDGER).write_bytes(kept[0])
        (state_of(chain) / SYNCED).write_bytes(kept[1])
    assert found(chain) == []
    forget_experiments(chain)
    for tamper in [*REWRITTEN, _gone]:
        tamper(chain)
        assert set(found(chain)) == set(wrong), tamper.__name__
        (state_of(chain) / LEDGER).write_bytes(kept[0])
    assert found(chain) == []


def test_the_experiments_of_a_repository_in_a_folder_of_gits_hold_its_ledger_too(toy: Make, tmp_path: Path) -> None:
    inside = tmp_path / "git/inside"
    inside.mkdir(parents=True)
    os.system(f"git init -q {inside.parent}")
    Repo.init(str(inside), subdir=True).close()
    made = Toy(inside, "", {})
    for name, text in (CHAIN_FILES | {"dvc.yaml": CHAIN}).items():
        made.write(name, text)
    commit(made)
    assert made.run(save_experiment=True)[0] == 0
    _every_host(made)
    forget_end(made)
    assert found(made) == [("record changed", f".dvcfleet/{LEDGER}")]


def test_lines_gone_with_their_experiments_stay_a_finding_also_after_the_next_run(chain: Toy) -> None:
    chain.run(force=True, save_experiment=True)
    write_chained(state_of(chain) / LEDGER, lines_of(chain)[:3])
    forget_experiments(chain)
    assert chain.run(force=True, save_experiment=True)[0] == 0
    assert found(chain) == [("record changed", f".dvcfleet/{LEDGER}")]
    assert len(lines_of(chain)) == 6


def test_an_experiment_of_another_ledger_is_counted_and_no_finding(toy: Make, tmp_path: Path) -> None:
    made = toy.ran(CHAIN, CHAIN_FILES, before=commit, save_experiment=True)
    other = Toy(tmp_path / "other", CHAIN, CHAIN_FILES)
    commit(other)
    assert other.run(save_experiment=True)[0] == 0
    shutil.rmtree(made.path / ".git/refs/exps")
    with chdir(made.path):
        os.system(f"git fetch -q {other.path} '+refs/exps/*:refs/exps/*'")
    done = audit(made.path)
    assert done.findings == ()
    assert "1 experiment without a ledger here" in done.also


def test_the_anchored_head_must_stay_in_its_place(chain: Toy) -> None:
    state, head = state_of(chain), anchor_of(state_of(chain))
    assert head.count == 3
    assert parse_anchor(f"Results\n\n{head}\n") == head
    chain.run(force=True, save_experiment=True)
    assert check_chains(state, head)[state / LEDGER].faults == ()
    assert "line 3 as anchored" in audit(chain.path, anchor=head).also
    for tamper in (_every_host, _without_the_first):  # and all else that names its lines
        tamper(chain)
        forget_end(chain)
        shutil.rmtree(chain.path / ".git/refs/exps", ignore_errors=True)
        assert audit(chain.path).findings == ()
        (one,) = audit(chain.path, anchor=head).findings
        assert "line 3 is not the anchored one" in one.message
    assert check_chains(state, replace(head, count=9))[state / LEDGER].faults
    with pytest.raises(UserError, match="holds no anchor"):
        parse_anchor("3 lines")
    _without_chain(chain)
    with pytest.raises(UserError, match="not anchored"):
        anchor_of(state)
    _gone(chain)
    forget_end(chain)
    with pytest.raises(UserError, match="nothing was run"):
        anchor_of(state)


def test_our_own_lines_say_who_made_a_result_and_those_of_another_ledger_are_marked(chain: Toy) -> None:
    forged = [line | {"host": "forged", "began": "2020-01-01T00:00:00.000+00:00"} for line in lines_of(chain)]
    write_chained(state_of(chain) / LEDGERS / "planted.jsonl", forged)
    (state_of(chain) / LEDGERS / "same.jsonl").write_text(
        json.dumps(lines_of(chain)[2] | {"host": "forged", "user": "mallory", "before": None}) + "\n"
    )
    with opened(chain.path) as repo:
        lineage = read_lineage(repo)
    own = lines_of(chain)[0]["host"]
    assert own != "forged"
    assert {one.host for name in lineage.steps if (one := lineage.maker(name))} == {own}
    document = json.loads(to_prov(lineage).serialize(format="json"))
    makers = {document["activity"][each["prov:activity"]]["about:host"] for each in document["wasGeneratedBy"].values()}
    assert makers == {own}
    others = [each for each in document["activity"].values() if "about:other_ledger" in each]
    assert {(each["about:host"], each["about:other_ledger"]) for each in others} == {
        ("forged", "planted.jsonl"),
        ("forged", "same.jsonl"),
    }
    ended = [event for event in to_events(lineage, "2026-01-01T00:00:00+00:00") if event.outputs]
    hosts = {tag.value for event in ended for tag in event.run.facets["tags"].tags if tag.key == "host"}
    assert hosts == {own}
    target, whole = look_up(chain.path, "end.txt")
    assert "forged" not in "\n".join([*show.as_lines(target, whole), *why_lines(why(target, whole), whole)])
    # What only another ledger tells is shown as that.
    (state_of(chain) / LEDGER).unlink()
    target, whole = look_up(chain.path, "end.txt")
    said = "\n".join([*show.as_lines(target, whole), *why_lines(why(target, whole), whole)])
    assert f"by another ledger, {LEDGERS}/planted.jsonl" in said
    assert "told by" in said


def test_a_ledger_cannot_say_itself_whose_it_is(chain: Toy) -> None:
    line = json.dumps(lines_of(chain)[0] | {"ledger": None}).encode()
    (state_of(chain) / LEDGERS).mkdir()
    (state_of(chain) / LEDGERS / "x.jsonl").write_bytes(line + b"\n")
    assert [one.ledger for _, one in sound_lines(state_of(chain) / LEDGERS / "x.jsonl")] == ["x.jsonl"]
    assert b'"ledger"' not in next(line for line, _ in sound_lines(state_of(chain) / LEDGER))


def test_an_output_changed_with_the_cache_and_dvc_lock_is_made_by_no_line(chain: Toy) -> None:
    commit_output(chain, "end.txt", "forged", "end")
    assert found(chain) == [("unproven", "end")]
    (one,) = audit(chain.path).findings
    assert "a run wrote other bytes from the same inputs" in one.message
    runs = [path for path in (chain.path / ".dvc/cache/runs").glob("*/*/*") if "end.txt" in path.read_text()]
    for path in runs:  # what tells that, and the one that `dvc commit` wrote; the experiment tells it too
        path.unlink()
    assert [one.message for one in audit(chain.path).findings] == [one.message]
    (chain.path / ".dvc/cache/runs").rename(chain.path / ".dvc/cache/away")  # a clone has no run cache
    assert [one.message for one in audit(chain.path).findings] == [one.message]
    (chain.path / ".dvc/cache/away").rename(chain.path / ".dvc/cache/runs")
    forget_experiments(chain)
    (one,) = audit(chain.path).findings
    assert "nor DVC's run cache or git" in one.message
    chain.run("end", force=True, save_experiment=True)
    assert found(chain) == []
    # Its readers agree with it too.
    commit_output(chain, "cut.txt", "xyz", "cut")
    reproduce(chain)
    assert ("unproven", "cut") in found(chain)


def test_an_entry_added_to_the_run_cache_does_not_prove_other_bytes_from_the_same_inputs(chain: Toy) -> None:
    commit_output(chain, "end.txt", "forged", "end")  # which adds it there, as `dvc repro --force` would
    (one,) = audit(chain.path).findings
    assert (one.kind.value, one.name) == ("unproven", "end")
    assert "a run wrote other bytes from the same inputs" in one.message


def _entries(toy: Toy) -> dict[str, Any]:
    entries: dict[str, Any] = yaml.safe_load(toy.read("dvc.lock"))["stages"]
    return entries


def _plant(toy: Toy, entry: dict[str, Any]) -> None:
    """Write an entry of the run cache under its right names."""
    key = run_key(entry)
    path = toy.path / ".dvc/cache/runs" / key[:2] / key / entry_hash(entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml_text(entry))


def test_nothing_is_cried_after_plain_dvc_repro_a_checkout_an_applied_experiment_or_another_ledger(
    chain: Toy, tmp_path: Path
) -> None:
    with chdir(chain.path):
        os.system("git config user.name a; git config user.email a@b; git add dvc.lock; git commit -qm first")
    chain.write("source", "fedcba")
    reproduce(chain)
    done = audit(chain.path)
    assert done.findings == ()
    assert "3 stages without a line, as `dvc repro` runs them" in done.also
    assert "6 entries of the run cache (3 made by no run in a ledger)" in done.also
    # A colleague's results, of whom nothing but git and the outputs is here.
    with chdir(chain.path):
        os.system("git commit -qam second")
    shutil.rmtree(chain.path / ".dvc/cache/runs")
    chain.write("source", "abcdef")
    assert chain.run(save_experiment=True)[0] == 0  # so that there is a run cache
    assert found(chain) == []
    with chdir(chain.path), Repo() as repo:
        os.system("git checkout -q -f HEAD")
        repo.checkout(force=True)
    assert found(chain) == []
    with chdir(chain.path), Repo() as repo:
        repo.experiments.apply(lines_of(chain)[-1]["run"])
    assert found(chain) == []
    # Restored by dvc.lock, not by the run cache.
    (chain.path / "end.txt").unlink()
    assert "1 restored" in chain.run(save_experiment=True)[1]
    assert found(chain) == []


def test_a_planted_entry_of_the_run_cache_is_named_when_it_is_restored_and_found(chain: Toy) -> None:
    entry = _entries(chain)["turn"]
    entry["params"]["params.yaml"]["turn.times"] = 2
    entry["outs"] = [{**entry["outs"][0]}]
    _plant(chain, entry)
    assert found(chain) == []
    assert any("1 made by no run in a ledger" in each for each in audit(chain.path).also)
    chain.write("params.yaml", "turn: {times: 2, more: {deep: 1}}\n")
    code, said = chain.run(save_experiment=True)
    assert (code, "no ledger records its run: turn" in said) == (0, True), said
    assert lines_of(chain)[-1]["unproven"] is True
    assert found(chain) == [("unproven", "turn")]
    # Whoever made it says so in a ledger.
    line = lines_of(chain)[0] | {"stage": "turn", "result": "done", "entry": entry_digest(entry), "host": "theirs"}
    write_chained(state_of(chain) / LEDGERS / "theirs.jsonl", [line])
    assert found(chain) == []
    shutil.rmtree(state_of(chain) / LEDGERS)
    chain.run("turn", force=True, save_experiment=True)
    assert found(chain) == []


def test_what_a_ledger_tells_of_is_restored_without_a_word(chain: Toy) -> None:
    chain.write("source", "fedcba")
    chain.run(save_experiment=True)
    chain.write("source", "abcdef")
    code, said = chain.run(save_experiment=True)
    assert (code, "3 restored" in said, "no ledger" in said) == (0, True, False)
    assert [line["unproven"] for line in lines_of(chain)[-3:]] == [False] * 3
    assert found(chain) == []


def test_a_link_in_place_of_an_output_is_found_also_with_the_same_bytes(chain: Toy) -> None:
    (chain.path / "copy").write_text(chain.read("end.txt"))
    (chain.path / "end.txt").unlink()
    (chain.path / "end.txt").symlink_to("copy")
    (chain.path / "turned").rename(chain.path / "moved")
    (chain.path / "turned").symlink_to("moved")
    assert sorted(found(chain)) == [("changed", "end.txt"), ("changed", "turned")]
    assert all("a link to" in one.message for one in audit(chain.path).findings)


def test_links_to_dvcs_cache_are_no_finding(toy: Make) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    (made.path / ".dvc/config").write_text("[cache]\n    type = symlink\n")
    assert made.run(save_experiment=True)[0] == 0
    assert (made.path / "end.txt").is_symlink()
    assert found(made) == []


TOOL = "stages: {one: {cmd: python -m tool > one, deps: [tool], outs: [one]}}"


def _compiled(source: Path, text: str, flags: int) -> Path:
    """Write a cache beside a source that Python would take for its own, of this other code."""
    info, path = source.stat(), Path(importlib.util.cache_from_source(source))
    head = struct.pack("<LLL", flags, int(info.st_mtime), info.st_size) if not flags else struct.pack("<LQ", flags, 0)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(importlib.util.MAGIC_NUMBER + head + marshal.dumps(compile(text, str(source), "exec")))
    return path


def test_compiled_code_that_is_not_what_its_source_says_is_found(toy: Make) -> None:
    files = {"tool/__init__.py": "", "tool/__main__.py": "from tool.value import VALUE\nprint(VALUE)\n"}
    made = toy(TOOL, files | {"tool/value.py": "VALUE = 1\n", ".dvcignore": "__pycache__\n*.pyc\n"})
    commit(made)
    assert made.run(save_experiment=True)[0] == 0
    source = made.path / "tool/value.py"
    for text, flags, wrong in (
        ("VALUE = 2\n", 0, 1),
        ("VALUE = 2\n", 1, 1),
        ("VALUE = 1\n", 0, 0),
        ("VALUE = 2\n", 3, 0),
    ):
        path = _compiled(source, text, flags)
        assert found(made) == [("code changed", str(path.relative_to(made.path)))] * wrong, (text, flags)
    _compiled(source, "VALUE = 2\n", 0)
    os.utime(source)  # Python compiles it again
    assert found(made) == []
    (made.path / "tool/more.pyc").write_bytes(path.read_bytes())
    assert found(made) == [("code changed", "tool/more.pyc")]
