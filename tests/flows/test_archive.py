"""Archives: a comparison as one file, which is checked and restored with nothing but the file."""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dvcfleet.lineage.audit import audit
from merganser.errors import InputError
from merganser.flows.commands.cli import main
from merganser.flows.evidence.archive.form import SUMS, check_form
from merganser.flows.evidence.archive.restoring import restore
from merganser.flows.evidence.archive.writing import archive
from merganser.flows.evidence.keys import PrivateKey
from merganser.flows.evidence.signing import sign
from tests import PYTHONPATH
from tests.dvcfleet.toy import Make, Toy
from tests.faults.power import new_disk, why_no_cuts
from tests.flows.conftest import Done, Refused
from tests.flows.test_signing import FILES, MERGES, _commit, keys
from tests.support import python
from tests.tiny import is_clean, merganser

__all__ = ["keys"]

DIRTY = {"more.py": "MORE = 1\n", "params.yaml": "scale: 4\n"}


def _with_changes(toy: Toy) -> None:
    _commit(toy)
    for name, text in DIRTY.items():
        toy.write(name, text)


@pytest.fixture
def ran(toy: Make) -> Toy:
    """Give a small comparison with changes and with code that git does not know."""
    return toy.ran(MERGES, FILES, before=_with_changes)


def archived(toy: Toy, path: Path, data: bool = True) -> Path:
    archive(toy.path, path, data)
    return path


def names(path: Path) -> list[str]:
    with tarfile.open(path) as found:
        return found.getnames()


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=True).stdout


def test_a_restored_comparison_has_its_commit_and_its_changes_and_its_next_run_does_nothing(
    ran: Toy, tmp_path: Path
) -> None:
    path = archived(ran, tmp_path / "all.tar")
    shutil.move(ran.path, tmp_path / "away")  # nothing but the file
    restore(path, tmp_path / "again")
    again = Toy(tmp_path / "again", "", {})
    assert again.run()[1].startswith("nothing to do: 4 stages are up to date")
    assert again.settled()
    for command in (("rev-parse", "HEAD"), ("diff", "HEAD"), ("status", "--porcelain", "-uall", "--", "*.py")):
        assert git(again.path, *command) == git(tmp_path / "away", *command)
    assert again.read("more.py") == DIRTY["more.py"]
    assert audit(again.path).findings == ()
    assert archived(again, tmp_path / "second.tar").read_bytes() == path.read_bytes()


@pytest.mark.skipif(bool(why_no_cuts()), reason=f"no power cuts here: {why_no_cuts()}")
def test_the_place_of_restored_artifacts_survives_a_power_cut_after_the_command(
    tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_copy)
    archive(tiny_copy, tmp_path / "all.tar", False)
    with new_disk(tmp_path / "image", tmp_path / "disk", 256) as disk:
        restore(tmp_path / "all.tar", disk.path / "again")
        disk.cut()
        assert [path.name for path in disk.path.glob("again/mlflow.db*")] == ["mlflow.db"]  # and no journal to undo it


def test_the_files_of_variables_are_archived_though_git_does_not_know_them(toy: Make, tmp_path: Path) -> None:
    made = {"make": {"cmd": "echo ${value} > out", "outs": ["out"]}}
    found = toy.ran(yaml.safe_dump({"stages": made}), {"params.yaml": "value: 1\n"}, before=_commit)
    found.write("dvc.yaml", yaml.safe_dump({"vars": ["values.yaml"], "stages": made}))
    found.write("params.yaml", "other: 1\n")
    found.write("values.yaml", "value: 1\n")
    assert found.run()[0] == 0
    path = archived(found, tmp_path / "all.tar")
    shutil.move(found.path, tmp_path / "away")
    restore(path, tmp_path / "again")
    assert Toy(tmp_path / "again", "", {}).run()[1].startswith("nothing to do: 1 stage is up to date")


def test_the_same_comparison_has_the_same_bytes_however_git_has_packed_it(ran: Toy, tmp_path: Path) -> None:
    first = archived(ran, tmp_path / "first.tar").read_bytes()
    git(ran.path, "gc", "-q", "--aggressive")
    os.utime(ran.path / "params.yaml")
    copy = Path(shutil.copytree(ran.path, tmp_path / "elsewhere", symlinks=True))
    assert archived(Toy(copy, "", {}), tmp_path / "second.tar").read_bytes() == first


def test_anybody_checks_the_files_and_clones_the_code_without_merganser(ran: Toy, tmp_path: Path) -> None:
    path = archived(ran, tmp_path / "all.tar", data=False)
    subprocess.run(["tar", "-xf", str(path), "-C", str(tmp_path)], check=True)
    done = subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    git(tmp_path, "clone", "-q", "-b", "comparison", "code.bundle", "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == git(ran.path, "rev-parse", "HEAD")
    assert (tmp_path / "files/report/index.html").read_bytes() == (ran.path / "report/index.html").read_bytes()
    assert not [name for name in names(path) if name.startswith("objects/")]


def test_each_changed_byte_is_found_and_named(ran: Toy, tmp_path: Path) -> None:
    path = archived(ran, tmp_path / "all.tar")
    content = path.read_bytes()
    with tarfile.open(path) as found:
        members = found.getmembers()
    places: dict[int, str] = {}
    for info in members:
        # Of each member its first and last byte, and of its header what tar itself does not read.
        places |= {info.offset_data: info.name, info.offset_data + info.size - 1: info.name}
        places |= {info.offset + place: "" for place in (0, 100, 108, 136, 148, 156, 157, 257, 265, 329, 345, 511)}
        places |= {info.offset_data + info.size: ""}
    choice = random.Random(0)
    places |= dict.fromkeys((*choice.sample(range(len(content)), 300), len(content) - 1, len(content) - 1024), "")
    for place, name in places.items():
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        found = check_form(path)
        assert found, place
        assert not name or name in [each.name for each in found], place
    for cut in (0, 511, 512, 5000, len(content) - 1024, len(content) - 1):
        path.write_bytes(content[:cut])
        assert check_form(path), cut
    path.write_bytes(content + b"\0")
    assert check_form(path)
    path.write_bytes(content)
    assert check_form(path) == []


def _rewritten(path: Path, change: Callable[[dict[str, bytes]], object], sums: bool = True) -> None:
    """Write an archive anew with other members, and with digests that are right."""
    with tarfile.open(path) as found:
        content = {info.name: found.extractfile(info).read() for info in found}  # type: ignore[union-attr]
    change(content)
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    members = {}
    for number, (name, text) in enumerate(content.items()):
        if name != SUMS:
            members[name] = folder / str(number)
            members[name].parent.mkdir(exist_ok=True)
            members[name].write_bytes(text)
    from merganser.flows.evidence.archive.form import write_archive

    with path.open("wb") as file:
        write_archive(file, members)


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/outside",
        "files/../../outside",
        "files/.git/config",
        "files/a/.GIT/hooks/x",
        "other",
        "objects/x",
    ],
)
def test_a_member_that_would_be_written_elsewhere_is_refused(ran: Toy, tmp_path: Path, name: str) -> None:
    path = archived(ran, tmp_path / "all.tar")
    _rewritten(path, lambda content: content.update({name: b"x"}))
    assert [(each.kind.value, each.name) for each in check_form(path)] == [("archive refused", name)]
    with pytest.raises(InputError, match="not restored"):
        restore(path, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_devices_and_folders_are_refused(ran: Toy, tmp_path: Path, kind: bytes) -> None:
    path = archived(ran, tmp_path / "all.tar")
    special = tarfile.TarInfo("files/link")
    special.type, special.linkname = kind, "/etc/passwd"
    path.write_bytes(path.read_bytes()[:-1024] + special.tobuf() + bytes(1024))
    assert ("archive refused", "files/link") in [(each.kind.value, each.name) for each in check_form(path)]


@pytest.mark.parametrize(
    ("path", "target", "said"),
    [
        ("out", "/", "out: a link to '/', an absolute path"),
        ("sub/out", "../../elsewhere", "sub/out: a link to '../../elsewhere', out of the folder"),
        (".dvc/tmp/x", "../../score", ".dvc/tmp/x: not one of the files in .dvc that an archive has"),
    ],
)
def test_what_would_not_be_restored_is_not_archived(
    ran: Toy, tmp_path: Path, path: str, target: str, said: str
) -> None:
    (ran.path / path).parent.mkdir(parents=True, exist_ok=True)
    (ran.path / path).symlink_to(target)
    git(ran.path, "add", "-f", path)
    git(ran.path, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-qm", "a link")
    with pytest.raises(InputError, match=re.escape(said)):
        archived(ran, tmp_path / "all.tar")
    assert not (tmp_path / "all.tar").exists()


def test_a_signature_goes_along_and_is_checked(
    ran: Toy,
    keys: Path,
    tmp_path: Path,
    done: Done,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sign(ran.path, PrivateKey(keys / "ec.pem"), PrivateKey(keys / "ec.pem"))
    path = archived(ran, tmp_path / "all.tar")
    verify = ("lineage", "verify", "--archive", str(path), "--signed-by", str(keys / "ec.pub"))
    assert "signatures of the record and 2 merges, 2 by model-signing too" in done(tmp_path, *verify)

    def forge(content: dict[str, bytes]) -> None:
        lock = content["files/dvc.lock"]
        md5 = hashlib.md5(b"better\n").hexdigest()
        old = next(line for line in lock.decode().splitlines() if "md5" in line and "path: score" in lock.decode())
        assert old
        content["files/dvc.lock"] = lock + b"# better\n"
        content[f"objects/{md5[:2]}/{md5[2:]}"] = b"better\n"

    _rewritten(path, forge)
    assert check_form(path) == []
    monkeypatch.setattr(sys, "argv", ["merganser", *verify])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "changed since it was signed: dvc.lock" in capsys.readouterr().out


def test_without_data_all_that_is_there_is_compared_and_what_is_not_is_said(
    ran: Toy, tmp_path: Path, done: Done, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archived(ran, tmp_path / "small.tar", data=False)
    head = done(ran.path, "lineage", "anchor").strip()
    verify = ("lineage", "verify", "--archive", str(path), "--anchored")
    said = done(tmp_path, *verify, head)
    assert said.startswith("nothing has changed: 4 stages")
    assert "line 4 as anchored" in said
    monkeypatch.setattr(sys, "argv", ["merganser", *verify, head.replace(" 4 ", " 3 ")])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "its line 3 is not the anchored one" in capsys.readouterr().out
    verify = verify[:-1]
    assert "no models and data, which the archive does not have" in said
    _rewritten(path, lambda content: content.update({"files/report/index.html": b"better\n"}))
    monkeypatch.setattr(sys, "argv", ["merganser", *verify])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "report" in capsys.readouterr().out
    _rewritten(path, lambda content: content.pop("files/report/index.html"))
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "missing: report" in capsys.readouterr().out


def test_what_is_not_as_recorded_is_not_archived(ran: Toy, tmp_path: Path, refused: Refused) -> None:
    ran.write("score", "better")
    assert "not archived, as it differs from its record: changed: score" in refused(
        ran.path, "archive", str(tmp_path / "all.tar")
    )
    assert list(tmp_path.glob("*.tar*")) == []
    assert "--restore FILE FOLDER" in refused(ran.path, "archive", str(tmp_path / "all.tar"), "x")


def test_a_killed_archive_leaves_nothing_under_its_name(ran: Toy, tmp_path: Path) -> None:
    out = tmp_path / "all.tar"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from merganser.flows.evidence.archive import form, writing as archive\n"
        "def dies(source, size, out=None):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "form._hashed = dies\narchive.archive(Path(sys.argv[1]), Path(sys.argv[2]), True)\n"
    )
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    killed = subprocess.run([*python(), "-c", code, str(ran.path), str(out)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    archived(ran, out)
    assert check_form(out) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_looks_like_a_credential_is_named(toy: Make, tmp_path: Path) -> None:
    params = {"params.yaml": f"scale: {{auth_token: hf_{'a1B2' * 8}}}\n"}
    made = toy(MERGES, FILES | params)
    _commit(made)
    assert made.run()[0] == 0
    (line,) = (line for line in archive(made.path, tmp_path / "all.tar", True) if "credential" in line)
    assert "params.yaml" in line
    assert "a1B2" not in line


def test_mlflows_store_says_nothing_of_the_machine_and_is_the_same_from_the_restored_comparison(
    tiny_run: Path, tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    monkeypatch.chdir(tiny_copy)
    archive(tiny_copy, first, False)
    restore(first, tmp_path / "again")
    monkeypatch.chdir(tmp_path / "again")
    archive(tmp_path / "again", second, False)
    stores = [_member(path, "files/mlflow.db") for path in (first, second)]
    assert stores[0] == stores[1]
    assert str(tiny_run.parent).encode() not in stores[0]
    assert str(tmp_path).encode() not in stores[0]


def _member(path: Path, name: str) -> bytes:
    with tarfile.open(path) as found:
        return found.extractfile(name).read()  # type: ignore[union-attr]


@pytest.mark.drill
def test_the_tiny_comparison_is_archived_verified_and_restored(tiny_copy: Path, tmp_path: Path) -> None:
    path, small = tmp_path / "all.tar", tmp_path / "small.tar"
    merganser(tiny_copy, "archive", str(path), "--data")
    merganser(tiny_copy, "archive", str(small))
    assert str(tiny_copy).encode() not in small.read_bytes()
    said = merganser(tmp_path, "lineage", "verify", "--archive", str(path)).stdout
    assert said.startswith("nothing has changed: 63 stages, ")
    assert "MLflow's runs of 7 entries, the report, computed again" in said
    said = merganser(tmp_path, "lineage", "verify", "--archive", str(small)).stdout
    assert "MLflow's runs of 7 entries, the report, computed again" in said
    shutil.rmtree(tiny_copy)
    again = tmp_path / "again"
    assert "finds nothing to do" in merganser(tmp_path, "archive", "--restore", str(path), str(again)).stdout
    assert "nothing to do: 63 stages are up to date" in merganser(again, "run").stdout
    assert is_clean(again)
    second = tmp_path / "second.tar"
    merganser(again, "archive", str(second))
    assert second.read_bytes() == small.read_bytes()
