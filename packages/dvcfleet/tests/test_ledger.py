"""The ledger that a run keeps of what it did."""

import getpass
import json
import os
import re
import subprocess
import sys
import tracemalloc
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy
import pytest
import torch
import yaml

from dvcfleet.console import Progress
from dvcfleet.crash_recovery import SYNCED
from dvcfleet.lineage.audit import audit
from dvcfleet.lineage.steps import FindingKind
from dvcfleet.messages import Ending
from dvcfleet.record.chain import Chain, check_chains
from dvcfleet.record.environments import changes_file, environment, keep_changes, keep_environment, read_environment
from dvcfleet.record.last_run import last_run
from dvcfleet.record.ledger import BEGIN, LEDGER, LEDGERS, Execution, entry_digest, executions
from dvcfleet.scheduling.durations import last_durations
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy


def ledger(toy: Toy) -> list[Execution]:
    return list(executions(toy.path / ".dvcfleet"))


def commit(toy: Toy) -> str:
    git = ["git", "-C", str(toy.path), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def entries(toy: Toy) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(toy.read("dvc.lock"))["stages"]
    return found


def test_each_stage_that_ran_has_a_line_with_its_entry_time_place_and_commit(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    head, start = commit(chain), datetime.now(UTC)
    assert chain.run()[0] == 0
    lines = ledger(chain)
    assert [(line.stage, line.result) for line in lines] == [("cut", "done"), ("turn", "done"), ("end", "done")]
    assert [line.entry for line in lines] == [entry_digest(entry) for entry in entries(chain).values()]
    assert {line.commit for line in lines} == {head}
    assert {line.dirty for line in lines} == {False}
    assert len({(line.run, line.flow_run, line.host, line.environment) for line in lines}) == 1
    assert lines[0].flow_run
    for line in lines:
        assert line.cpu_s is not None
        assert 0 < line.cpu_s <= 1 + line.seconds * (os.cpu_count() or 1)
        assert (line.gpu_s, type(line.read_bytes), type(line.written_bytes)) == (0, int, int)
    began = [datetime.fromisoformat(line.began) for line in lines]
    moments = [start, *began, datetime.now(UTC)]
    assert moments == sorted(moments)
    kept = read_environment(chain.path / ".dvcfleet", lines[0].environment)
    assert kept == environment()
    assert kept["packages"]["dvc"]
    assert kept["python"] == sys.version.split()[0]
    assert kept["urls"]["merganser"]["dir_info"] == {"editable": True}
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert kept["blas"]["numpy"] == f"{blas['name']} {blas['version']}"
    mkl = re.findall(r"Math Kernel Library Version \S+ Build (\d+)", torch.__config__.show())
    assert kept["blas"].get("torch") == (f"MKL of {mkl[0]}" if mkl else None)
    assert kept["cuda"] == torch.version.cuda
    assert kept["container"] is None or kept["container"]


def test_a_stage_has_its_line_before_it_is_said_to_be_done(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a run is killed: what runs of a project do after a stage may take a while."""
    chain = toy(CHAIN, CHAIN_FILES)
    said, ended = [], Progress.ended

    def look(self: Progress, ending: Ending) -> None:
        said.append((ending.name, [line.stage for line in ledger(chain)][-1:]))
        ended(self, ending)

    monkeypatch.setattr(Progress, "ended", look)
    assert chain.run()[0] == 0
    assert said == [("cut", ["cut"]), ("turn", ["turn"]), ("end", ["end"])]


def test_what_was_up_to_date_has_no_line_and_what_was_restored_or_failed_has_one(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.write("source", "ABCDEF")
    chain.run()
    chain.write("source", "abcdef")
    before = len(ledger(chain))
    chain.run()
    assert [(line.stage, line.result) for line in ledger(chain)[before:]] == [
        ("cut", "restored"),
        ("turn", "restored"),
        ("end", "restored"),
    ]
    chain.write("dvc.yaml", CHAIN.replace("cat turned/* > end.txt", "exit 3"))
    chain.run()
    last = ledger(chain)[-1]
    assert (last.stage, last.result, last.entry) == ("end", "failed", None)
    count = len(ledger(chain))
    chain.run("turn")
    assert len(ledger(chain)) == count


def test_an_edited_file_makes_the_commit_dirty_and_a_new_dvc_lock_does_not(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    commit(chain)
    chain.run(force=True)
    assert {line.dirty for line in ledger(chain)[-3:]} == {False}
    chain.write("source", "ABCDEF")
    chain.run()
    (digest,) = {line.changes for line in ledger(chain)[-3:]}
    assert {line.dirty for line in ledger(chain)[-3:]} == {True}
    assert {line.changes for line in ledger(chain)[3:-3]} == {None}
    assert digest
    assert audit(chain.path).findings == ()
    changes_file(chain.path / ".dvcfleet", digest).write_text("")
    (found,) = audit(chain.path).findings
    assert (found.kind, found.name) == (FindingKind.CHANGED, f".dvcfleet/changes/{digest}.patch")


def test_code_that_differed_from_the_commit_is_kept_as_a_patch_that_gives_it_back(toy: Make, tmp_path: Path) -> None:
    chain = toy(CHAIN, {"tool.py": "VALUE = 1\n", ".gitignore": "hidden.py\n", "name": "été\n"})
    head = commit(chain)
    edited = {"tool.py": "VALUE = 2\n", "deep/new one.py": "import tool\n", "name": "\udce9t\udce9\n"}
    for name, text in edited.items():
        chain.write(name, "")
        (chain.path / name).write_bytes(os.fsencode(text))
    for name in ("hidden.py", "data.csv", "dvc.lock", ".dvcfleet/.gitignore"):
        chain.write(name, "*\n")
    git = ["git", "-C", str(chain.path)]
    before = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout
    digest = keep_changes(chain.path / ".dvcfleet", dirty=True)
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == before
    assert digest
    patch = changes_file(chain.path / ".dvcfleet", digest)
    subprocess.run([*git, "worktree", "add", "-q", str(tmp_path / "again"), head], check=True)
    subprocess.run(["git", "-C", str(tmp_path / "again"), "apply", str(patch)], check=True)
    for name, text in edited.items():
        assert (tmp_path / "again" / name).read_bytes() == os.fsencode(text), name
    assert not {"hidden.py", "data.csv", "dvc.lock"} & {path.name for path in (tmp_path / "again").iterdir()}


def test_a_library_that_git_does_not_ignore_is_named_and_not_kept(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    commit(chain)
    (chain.path / ".dvcfleet").mkdir()
    chain.write("library/huge.py", "#" * 2**24 + "\n")
    assert keep_changes(chain.path / ".dvcfleet", dirty=False)
    (patch,) = (chain.path / ".dvcfleet/changes").iterdir()
    assert patch.read_text() == "left out, neither tracked nor ignored by git: library/huge.py\n"


def test_a_long_ledger_is_read_in_little_memory(tmp_path: Path) -> None:
    line = Execution("s", "done", "e" * 64, "2026-01-01T00:00:00+00:00", 1.0, 1, "h", "r", None, None, None, "e" * 64)
    with (tmp_path / LEDGER).open("wb") as file:
        for number in range(5000):
            each = replace(line, stage=f"s{number % 50}", seconds=float(number), run=f"run-{number // 50}")
            file.write(each.line + b"\n")
    (tmp_path / LEDGERS).mkdir()
    (tmp_path / LEDGERS / "copy.jsonl").write_bytes((tmp_path / LEDGER).read_bytes())
    tracemalloc.start()
    seconds, last = last_durations(tmp_path), last_run(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds == {f"s{number}": float(4950 + number) for number in range(50)}
    assert last
    assert (last.name, last.counts) == ("run-99", {"done": 50})
    assert peak < 3_000_000  # bytes; the ledger has 2 MB, twice
    assert sum(1 for _ in executions(tmp_path)) == 5000


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1, 10**400, "1"])
def test_a_line_with_an_amount_that_nobody_measured_is_passed_over(tmp_path: Path, amount: object) -> None:
    line = Execution("s", "done", "e" * 64, "2026-01-01T00:00:00+00:00", 1.0, 1, "h", "r", None, None, None, "e" * 64)
    lines = [replace(line, cpu_s=1.5, read_bytes=2).line, replace(line, stage="t", cpu_s=amount).line]  # type: ignore[arg-type]
    (tmp_path / LEDGER).write_bytes(b"\n".join([*lines, b""]))
    assert [one.stage for one in executions(tmp_path)] == ["s"]


def test_a_line_that_a_kill_cut_off_is_passed_over_and_harms_no_other(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    chain.run("cut")
    path = chain.path / ".dvcfleet" / LEDGER
    with path.open("a") as file:
        file.write('{"stage": "turn", "res')
    chain.run()
    assert [line.stage for line in ledger(chain)] == ["cut", "turn", "end"]


def _without(line: bytes, *keys: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(line).items() if key not in keys}).encode()


TAMPERINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the first removed": lambda lines: lines[1:],
    "one removed": lambda lines: [lines[0], lines[2]],
    "the last removed": lambda lines: lines[:-1],
    "moved": lambda lines: [lines[1], lines[0], lines[2]],
    "edited": lambda lines: [lines[0], lines[1].replace(b'"host": "', b'"host": "x'), lines[2]],
    "the last edited": lambda lines: [*lines[:2], lines[2].replace(b'"host": "', b'"host": "x')],
    "added": lambda lines: [*lines[:2], lines[1].replace(b'"host": "', b'"host": "x'), lines[2]],
    "added without a link": lambda lines: [*lines, _without(lines[1], "before")],
}


def test_a_line_that_was_removed_moved_edited_or_added_is_found(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES, before=commit)
    state = chain.path / ".dvcfleet"
    whole = (state / LEDGER).read_bytes()
    assert check_chains(state)[state / LEDGER] == Chain(3, 0, ())
    assert ledger(chain)[0].before == BEGIN
    assert {line.user for line in ledger(chain)} == {getpass.getuser()}
    for what, tamper in TAMPERINGS.items():
        (state / LEDGER).write_bytes(b"\n".join([*tamper(whole.splitlines()), b""]))
        assert check_chains(state)[state / LEDGER].faults, what
    assert {(one.kind, one.name) for one in audit(chain.path).findings} == {("record changed", f".dvcfleet/{LEDGER}")}
    (state / LEDGER).write_bytes(whole)
    assert audit(chain.path).findings == ()
    other = state / LEDGERS / "node.jsonl"  # of another machine: it may begin and end anywhere, as signatures know
    other.parent.mkdir()
    for what in ("one removed", "moved", "edited", "added", "added without a link"):
        other.write_bytes(b"\n".join([*TAMPERINGS[what](whole.splitlines()), b""]))
        assert check_chains(state)[other].faults, what
    assert {(one.kind, one.name) for one in audit(chain.path).findings} == {
        ("record changed", f".dvcfleet/{LEDGERS}/node.jsonl")
    }
    other.write_bytes(whole)
    assert audit(chain.path).findings == ()


def test_lines_older_than_chains_cut_off_or_written_twice_are_no_faults(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    state = chain.path / ".dvcfleet"
    lines = (state / LEDGER).read_bytes().splitlines()
    newer = ("before", "user", "varies", "changes", "was", "why", "unproven", "identity")
    old = [_without(line, *newer) for line in lines]
    (state / SYNCED).unlink()  # which did not name the ledger's end then
    # Without the end of the second line, as a power cut may leave it; the next run goes on from the first.
    (state / LEDGER).write_bytes(old[0] + b"\n" + old[1][:50])
    chain.run(force=True)
    assert check_chains(state)[state / LEDGER] == Chain(4, 1, ())
    lines = (state / LEDGER).read_bytes().splitlines()
    (state / LEDGER).write_bytes(b"\n".join([*lines, lines[-1][:50], *lines[-2:], b""]))
    assert check_chains(state)[state / LEDGER] == Chain(4, 1, ())


def test_the_digest_of_an_entry_is_that_of_the_entry_read_back() -> None:
    entry = {"cmd": ["a", "b"], "params": {"params.yaml": {"x": 1e-05, "y": {2: "n", "m": [1, None, True]}}}}
    assert entry_digest(yaml.safe_load(yaml.safe_dump(entry))) != ""
    assert entry_digest(json.loads(json.dumps(entry))) == entry_digest(entry)
    assert entry_digest({**entry, "cmd": ["b", "a"]}) != entry_digest(entry)


def test_the_image_of_a_container_is_known_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVCFLEET_IMAGE", "merge@sha256:12")
    assert environment.__wrapped__()["container"] == "merge@sha256:12"


WHEEL = {
    "auk/__init__.py": "def auk() -> int: return VALUE\n",
    "auk-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: auk\nVersion: 1.0\n",
    "auk-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "auk-1.0.dist-info/entry_points.txt": "[console_scripts]\nauk = auk:auk\n",
}


def test_packages_have_the_same_files_by_whichever_installer_in_whichever_folder_and_other_builds_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(folder: str, value: str, *installer: str) -> str:
        """Install a build of the package, and return what its environment says of its files."""
        wheel = tmp_path / folder / "auk-1.0-py3-none-any.whl"
        wheel.parent.mkdir()
        written = {name: text.replace("VALUE", value) for name, text in WHEEL.items()}
        digests = {name: urlsafe_b64encode(sha256(text.encode()).digest()) for name, text in written.items()}
        rows = [f"{name},sha256={each.decode().rstrip('=')},{len(written[name])}\n" for name, each in digests.items()]
        with ZipFile(wheel, "w") as file:
            for name, text in (written | {"auk-1.0.dist-info/RECORD": "".join(rows)}).items():
                file.writestr(name, text)
        venv = tmp_path / folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        options = ["--quiet", "--no-index", "--no-deps", "--python" if "uv" in installer else "--prefix"]
        where = venv / "bin/python" if "uv" in installer else venv
        subprocess.run([sys.executable, "-m", *installer, "install", *options, where, wheel], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        assert (venv / "bin/auk").exists()
        with monkeypatch.context() as context:
            context.syspath_prepend(site)
            found: str = environment.__wrapped__()["files"]["auk"]
        return found

    first = files("first", "1", "pip")
    assert files("second", "1", "uv", "pip") == first
    assert files("third", "2", "uv", "pip") != first


def test_a_description_that_a_crash_emptied_is_written_again(tmp_path: Path) -> None:
    digest = keep_environment(tmp_path, {"python": "3.11"})
    next(tmp_path.glob("environments/*")).write_text("")
    assert keep_environment(tmp_path, {"python": "3.11"}) == digest
    assert read_environment(tmp_path, digest) == {"python": "3.11"}


def test_the_environment_is_known_in_little_time() -> None:
    code = (
        "import time; from dvcfleet.record.environments import environment; environment(); print(time.process_time())"
    )
    took = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert took < 1
