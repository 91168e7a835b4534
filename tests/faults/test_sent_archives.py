"""An archive that somebody sends writes nothing outside its folder, runs nothing, and is refused by name."""

import gzip
import json
import marshal
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import MappingProxyType

import pytest

from dvcfleet.lineage.audit import Audit
from merganser.errors import InputError
from merganser.flows.commands.lineage import _verified, _verified_archive
from merganser.flows.evidence.archive.form import check_form, write_archive
from merganser.flows.evidence.archive.restoring import restore, restored_archive
from tests.faults.bad_inputs import run_in
from tests.faults.sent_archives import EVIL, Entry, Link, Sent, Submodule, Trees, listing, md5_of, send, stage
from tests.support import each

IMPORT = "deps:\n- path: x\n  repo:\n    url: ext::sh -c 'touch OUTSIDE/ran'\nouts:\n- path: x\n"
IMPORT_DB = "deps:\n- db:\n    connection: c\n    query: q\nouts:\n- path: x\n"
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
MANY = b"[" * 100_000
MATRIX = "stages:\n  a:\n    cmd: x\n    matrix: {x: '${a.b}', y: '${a.b}', z: '${a.b}'}\n"
_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS artifact_uri FROM n"
CELLS = "dvc.yaml: a: its matrix makes 1,000,000,000 stages"

_STORE = (
    "CREATE TABLE experiments (name, artifact_location)",
    "CREATE TABLE runs (artifact_uri)",
    "CREATE TABLE logged_models (artifact_location)",
    "INSERT INTO experiments VALUES ('merganser', 'file:///archived/mlartifacts')",
)


def _database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as store:
        for statement in statements:
            store.execute(statement)
        store.commit()
        return bytes(store.serialize())


_OF_ALL = "foreach: ${a}\n    do: {cmd: x}\n"


def _groups(count: int) -> str:
    return "".join(f"  g{number}:\n    {_OF_ALL}" for number in range(count))


def _command(text: str) -> str:
    return f"stages:\n  a:\n    cmd: {text}\n"


def _group(command: str) -> str:
    return command.replace("    cmd:", "    foreach: ${a}\n    do:\n      cmd:")


def _in_dvc_file(out: str, **more: str) -> str:
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    return f"{extra}outs:\n- path: {out}\n  hash: md5\n  md5: {md5_of(EVIL)}\n  size: 5\n"


def _orphan(out: str) -> dict[str, str]:
    """Give a dvc.lock with an output of a stage that dvc.yaml does not have."""
    whole = stage("out.txt")
    lock = str(whole["dvc.lock"])
    return {
        "dvc.yaml": str(whole["dvc.yaml"]),
        "dvc.lock": lock + lock.partition("stages:\n")[2].replace("  a:", "  b:").replace("out.txt", out),
    }


def _data(out: str, content: bytes = EVIL, also: Mapping[str, Entry] = MappingProxyType({}), **tree: Entry) -> Sent:
    return Sent({**stage(out, content), **also, **tree}, objects=(EVIL, content) if content != EVIL else (EVIL,))


# What is sent, with OUTSIDE for the path of a folder elsewhere; and what the message names.
REFUSED: dict[str, tuple[Sent, str]] = {
    "a link to a folder elsewhere, an output below it": (
        _data("data/one.txt", data=Link("OUTSIDE")),
        "data: a link to",
    ),
    "a link in the commit alone": (Sent({}, {"data": Link("OUTSIDE")}), "data: a link to"),
    "a link up": (_data("data/one.txt", data=Link("../outside")), "data: a link to"),
    "a link up with dots": (_data("data/one.txt", data=Link("./sub/../../outside")), "data: a link to"),
    "a link to the folder above": (Sent({"up": Link("..")}), "up: a link to"),
    "a link to the root": (Sent({"sub/here": Link("..")}), "sub/here: a link to"),
    "a link in a folder": (Sent({"sub/deep/data": Link("../../../outside")}), "sub/deep/data: a link to"),
    "a link whose target is a link": (Sent({"a": Link("b"), "b": Link("../outside")}), "b: a link to"),
    "a link through a link": (
        Sent({"a": Link("sub/deep"), "sub/deep/x": "", "b": Link("a/../../outside")}),
        "b: a link to",
    ),
    "a link to git's folder": (Sent({"data": Link(".git/hooks")}), "data: a link to"),
    "a link to git's folder by another case": (Sent({"data": Link("./.GIT")}), "data: a link to"),
    "a link to DVC's folder": (Sent({"data": Link(".dvc/tmp")}), "data: a link to"),
    "a link in place of an output": (
        _data("data", data=Link("sub"), also={"sub/x": ""}),
        "data: would be written through the link data",
    ),
    "a link above an output": (
        _data("data/x", data=Link("sub"), also={"sub/x": ""}),
        "data/x: would be written through the link data",
    ),
    "an output by a way around": (
        _data("./sub/../data/x", data=Link("sub"), also={"sub/x": ""}),
        "data/x: would be written through",
    ),
    "a link below an output": (
        _data("data", listing("a"), {"data/in": Link("../sub"), "sub/x": ""}),
        "data: would be written through the link data/in",
    ),
    "a member through a link": (
        Sent({"data": Link("sub"), "sub/x": ""}, files={"data/x": EVIL}),
        "data/x: would be written through a link",
    ),
    "a member in place of a folder": (Sent({"sub/x": ""}, files={"sub": EVIL}), "sub: cannot be written"),
    "a member below a file": (Sent({"sub": ""}, files={"sub/x": EVIL}), "sub/x: cannot be written"),
    "a long name": (Sent(files={"x" * 300: EVIL}), "xxx: cannot be written"),
    "a submodule": (
        Sent({"sub": Submodule(), ".gitmodules": '[submodule "sub"]\n path = sub\n url = OUTSIDE\n'}),
        "sub: a git submodule",
    ),
    "git's settings": (Sent({".git/config": "x"}), ".git/config: git's own folder"),
    "git's settings below": (
        Sent({"sub/.GIT/hooks/post-checkout": "x"}),
        "sub/.GIT/hooks/post-checkout: git's own folder",
    ),
    "git's settings as a Mac sees them": (Sent({".g\u200cit/config": "x"}), "git's own folder"),
    "git's settings as Windows sees them": (Sent({"git~1/config": "x"}), "git~1/config: git's own folder"),
    "git's settings as a member": (Sent(files={"sub/.Git/config": EVIL}), "files/sub/.Git/config: git's own folder"),
    "DVC's settings of one machine": (Sent({".dvc/config.local": "x"}), ".dvc/config.local: not one of"),
    "DVC's settings of one machine as a member": (
        Sent(files={".dvc/config.local": b"x"}),
        ".dvc/config.local: not one of",
    ),
    "DVC's folder as a link": (Sent({".dvc/config": None, ".dvc": Link("OUTSIDE")}), ".dvc: not one of"),
    "DVC's temporary files as a link": (Sent({".dvc/tmp": Link("OUTSIDE")}), ".dvc/tmp: not one of"),
    "DVC's cache": (Sent({".dvc/cache/files/md5/ab": Link("OUTSIDE")}), ".dvc/cache/files/md5/ab: not one of"),
    "the engine's folder as a link": (Sent({".dvcfleet": Link("OUTSIDE")}), ".dvcfleet: not one of"),
    "a journal of a killed run": (Sent(files={".dvcfleet/journal": b"x"}), ".dvcfleet/journal: not one of"),
    "a note that the disk is synced": (Sent({".dvcfleet/at-work": "x"}), ".dvcfleet/at-work: not one of"),
    "a database's journal": (Sent(files={"mlflow.db-journal": b"x"}), "mlflow.db-journal: a database's journal"),
    "a database's journal in git": (Sent({"mlflow.db-wal": b"x"}), "mlflow.db-wal: a database's journal"),
    "an output elsewhere": (_data("OUTSIDE/one.txt"), "a: writes OUTSIDE/one.txt, outside the repository"),
    "an output above": (_data("../outside/one.txt"), "a: writes ../outside/one.txt, outside the repository"),
    "an output at an address": (
        _data("http://127.0.0.1:9/x"),
        "a: writes http://127.0.0.1:9/x, outside the repository",
    ),
    "an output in git's folder": (_data(".git/hooks/post-checkout"), ".git/hooks/post-checkout"),
    "an output in DVC's folder": (_data(".dvc/config"), ".dvc/config"),
    "an output of a folder below": (
        Sent({f"sub/{name}": text for name, text in stage("../../outside/one.txt").items()}, objects=(EVIL,)),
        "outside/one.txt, outside the repository",
    ),
    "a stage that works elsewhere": (
        Sent({"dvc.yaml": "stages:\n  a:\n    cmd: x\n    wdir: ../outside\n    outs: [one.txt]\n"}),
        "outside",
    ),
    "a .dvc file's output elsewhere": (
        Sent({"x.dvc": _in_dvc_file("../outside/one.txt")}, objects=(EVIL,)),
        "x.dvc: writes ../outside/one.txt",
    ),
    "a .dvc file that works elsewhere": (
        Sent({"x.dvc": _in_dvc_file("one.txt", wdir="../outside")}, objects=(EVIL,)),
        "outside",
    ),
    "an output of a stage that is gone": (
        Sent(_orphan("OUTSIDE/one.txt")),
        "dvc.lock: b wrote OUTSIDE/one.txt, outside",
    ),
    "an address of a stage that is gone": (
        Sent(_orphan("http://127.0.0.1:9/x")),
        "dvc.lock: b wrote http://127.0.0.1:9/x, outside",
    ),
    "a folder's file above": (_data("data", listing("../../outside/one.txt")), "data: the list of its files"),
    "a folder's file elsewhere": (_data("data", listing("/one.txt")), "data: the list of its files"),
    "a folder's file in git's folder": (
        _data("data", listing(".git/config")),
        "data: has the file '.git/config': git's own folder",
    ),
    "a folder's file of no object": (
        _data("data", listing("x", md5="../../../../../../dev/zero")),
        "data: the list of its files",
    ),
    "a folder's list of lists": (_data("data", MANY), "data: the list of its files"),
    "an object that is not there": (Sent(objects=(b"x",)), "out.txt: the archive has not all of it"),
    "a list that is not there": (
        Sent(stage("data", listing("x")), objects=(EVIL,)),
        "data: the archive has not all of it",
    ),
    "a hash that is a path": (
        Sent(
            {
                "dvc.yaml": str(stage("out.txt")["dvc.yaml"]),
                "dvc.lock": str(stage("out.txt")["dvc.lock"]).replace(md5_of(EVIL), "../../../../dev/zero"),
            }
        ),
        "out.txt: '../../../../dev/zero' is no hash",
    ),
    "trees of trees of trees": (Sent({"sub": Trees()}), "code.bundle: names more than"),
    "a matrix of a billion stages": (Sent({"dvc.yaml": MATRIX, "params.yaml": f"a: {{b: {[*range(1000)]}}}"}), CELLS),
    "a matrix in a folder": (
        Sent({"sub/dvc.yaml": MATRIX.replace("'${a.b}'", str([*range(1000)]))}),
        f"sub/{CELLS}",
    ),
    "a matrix of a text's letters": (Sent({"dvc.yaml": MATRIX.replace("${a.b}", "x" * 1000)}), CELLS),
    "groups of more stages than a comparison has": (
        Sent({"dvc.yaml": "stages:\n" + _groups(101), "params.yaml": f"a: {[*range(1000)]}"}),
        "dvc.yaml: g100: its foreach makes 101,000 stages",
    ),
    "a long text, repeated": (
        Sent({"dvc.yaml": _command("${a}" * 60_000), "params.yaml": f"a: {'x' * 9000}"}),
        "dvc.yaml: its variables make 514 MiB of text",
    ),
    "a long text in JSON, repeated": (
        Sent({"dvc.yaml": f"vars: [a.json]\n{_command('${a}' * 60_000)}", "a.json": json.dumps({"a": "x" * 9000})}),
        "dvc.yaml: its variables make 514 MiB of text",
    ),
    "a long text of a group, repeated": (
        Sent({"dvc.yaml": _group(_command("${item.b}" * 60)), "params.yaml": f"a: {[{'b': 'x' * 9000}] * 1000}"}),
        "dvc.yaml: its variables make 514 MiB of text",
    ),
    "a map of many options under a long name": (
        Sent(
            {"dvc.yaml": _command("${a} " * 110), "params.yaml": f"a: {{{'x' * 500}: {dict.fromkeys(range(5000), 1)}}}"}
        ),
        "dvc.yaml: its variables make 265 MiB of text",
    ),
    "a variable of a thousand names": (
        Sent({"dvc.yaml": _command(f"${{{'a.' * 1000}b}}")}),
        "dvc.yaml: a variable's name",
    ),
    "variables that never end": (Sent({"dvc.yaml": _command("${" * 50_000)}), "dvc.yaml: a variable's name"),
    "an import by settings of its own": (
        Sent({"x.dvc": IMPORT.replace("url:", "config: OUTSIDE/one.yaml\n    url:")}),
        "x.dvc: imports with its own settings",
    ),
    "an import of a database": (
        Sent({"x.dvc": IMPORT_DB}),
        "x.dvc: imports with its own settings, or from a database",
    ),
    "parameters elsewhere": (
        Sent({"dvc.yaml": "stages:\n  a:\n    cmd: x\n    params: [OUTSIDE/one.yaml: [a]]\n    outs: [x]\n"}),
        "a: has its parameters in OUTSIDE/one.yaml",
    ),
    "variables elsewhere": (Sent({"dvc.yaml": "vars: [OUTSIDE/one.yaml]\nstages: {}\n"}), "variables from OUTSIDE"),
    "variables above": (
        Sent({"dvc.yaml": "vars: ['../outside/one.yaml:a']\nstages: {}\n"}),
        "variables from ../outside",
    ),
    "variables of a stage": (
        Sent({"sub/dvc.yaml": "stages:\n  a:\n    cmd: x\n    vars: [../../../dev/zero]\n    outs: [x]\n"}),
        "sub/dvc.yaml: reads its variables from ../../../dev/zero",
    ),
    "parameters of lists in lists": (
        Sent({"dvc.yaml": "stages:\n  a:\n    cmd: x\n    params: [x.json: [a]]\n    outs: [x]\n", "x.json": MANY}),
        "x.json: cannot be read as parameters",
    ),
    "parameters of tables in tables": (
        Sent(
            {
                "dvc.yaml": "stages:\n  a:\n    cmd: x\n    params: [x.toml: [a]]\n    outs: [x]\n",
                "x.toml": b"a = " + MANY,
            }
        ),
        "x.toml",
    ),
    "parameters of Python's": (
        Sent(
            {"dvc.yaml": "stages:\n  a:\n    cmd: x\n    params: [x.py: [a]]\n    outs: [x]\n", "x.py": b"a = " + MANY}
        ),
        "x.py",
    ),
    "a database's journal as an output": (_data("mlflow.db-journal"), "a database's journal"),
    "a database's journal in an output": (_data("data", listing("x.db-wal")), "a database's journal"),
    "aliases of aliases": (Sent({"params.yaml": BOMB}), "params.yaml: more than 100000 values"),
    "a dvc.yaml of lists in lists": (Sent({"dvc.yaml": "a: " + "[" * 50_000}), "dvc.yaml"),
    "a dvc.lock of lists in lists": (Sent({"dvc.lock": "a: " + "[" * 50_000}), "dvc.lock"),
    "another project's hooks": (
        Sent({"pyproject.toml": '[tool.dvcfleet]\nproject = "antigravity:x"\n'}),
        "pyproject.toml: tool.dvcfleet.project is 'antigravity:x'",
    ),
    "a ledger that unpacks to a gigabyte": (
        Sent(files={".dvcfleet/ledgers/older.jsonl.gz": gzip.compress(bytes(2**20)) * 300}),
        ".dvcfleet/ledgers/older.jsonl.gz: more than 256 MiB",
    ),
    "a store of MLflow's whose runs never end": (
        Sent(files={"mlflow.db": _database(f"CREATE VIEW runs AS {_ENDLESS}")}),
        "mlflow.db: runs is computed",
    ),
    "a store of MLflow's whose places never end when they are written": (
        Sent(
            files={
                "mlflow.db": _database(
                    *_STORE, f"CREATE TRIGGER t BEFORE UPDATE ON runs BEGIN SELECT count(*) FROM ({_ENDLESS}); END"
                )
            }
        ),
        "mlflow.db: t is computed",
    ),
    "a store of MLflow's whose runs are as large as memory": (
        Sent(files={"mlflow.db": _database("CREATE TABLE runs (a, artifact_uri AS (zeroblob(1000000000)))")}),
        "mlflow.db: runs is computed",
    ),
    "a store of MLflow's that is none": (Sent(files={"mlflow.db": b"x" * 5000}), "mlflow.db: cannot be read as"),
    "settings that are none": (Sent({".dvc/config": "[core\n"}), ".dvc/config: not DVC's settings"),
    "settings in no letters": (Sent({".dvc/config": b"\xff\xfe"}), ".dvc/config: not DVC's settings"),
}

# Settings by which DVC would read, write or send elsewhere.
SETTINGS = {
    "[core]\nsite_cache_dir = OUTSIDE/site\n": "core.site_cache_dir",
    "[cache]\ndir = OUTSIDE/cache\n": "cache.dir",
    "[core]\nremote = r\n['remote \"r\"']\nurl = OUTSIDE/remote\n": "remote r.url",
    "['remote \"r\"']\nurl = webdav://127.0.0.1:9\nbearer_token_command = touch OUTSIDE/ran\n": "bearer_token_command",
    "[hydra]\nenabled = true\nplugins_path = OUTSIDE\n": "hydra.plugins_path",
    "[plots]\nout_dir = OUTSIDE/plots\n": "plots.out_dir",
    "[exp]\nauto_push = true\ngit_remote = OUTSIDE\n": "exp.git_remote",
    "[studio]\nurl = http://127.0.0.1:9\n": "studio.url",
    "['db \"x\"']\nurl = sqlite:////OUTSIDE/x.db\n": "db x.url",
    "site_cache_dir = x\n": "site_cache_dir",
}

# Compiled Python that writes into the home, for this version, which does not look at the source.
_RAN = compile("open(__import__('os').environ['HOME'] + '/ran', 'w')", "x", "exec")
COMPILED = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(_RAN)

# What restores, and must not be followed, read or run.
HARMLESS: dict[str, Sent] = {
    "an import of a repository": Sent({"x.dvc": IMPORT}),
    "data of no form": Sent({"sub/x.yaml": "a: !vault [&a x, *a]\nb: {{ c }}\n", "sub/y.yml": "[" * 50_000}),
    "a link inside": Sent({"code": Link("lib/./x"), "lib/x": "x"}),
    "an input elsewhere": Sent(
        {"dvc.yaml": "stages:\n  a:\n    cmd: touch OUTSIDE/ran\n    deps: [/dev/zero, OUTSIDE]\n    outs: [out.txt]\n"}
    ),
    "a filter of the user's": Sent({".gitattributes": "* filter=spy diff=spy\n", "x": "x"}),
    "a repository without a folder of its own": Sent(
        {
            "sub/HEAD": "ref: refs/heads/x\n",
            "sub/config": "[core]\nfsmonitor = touch OUTSIDE/ran\n",
            "sub/refs/x": "",
            "sub/objects/x": "",
        }
    ),
    "a hook in the code": Sent({"hooks/post-checkout": "touch OUTSIDE/ran\n", ".pre-commit-config.yaml": "x: 1\n"}),
    "modules in the way": Sent(
        {
            "yaml.py": "open('OUTSIDE/ran', 'w')\n",
            "sitecustomize.py": "open('OUTSIDE/ran', 'w')\n",
            "flows/__init__.py": "open('OUTSIDE/ran', 'w')\n",
        }
    ),
    "compiled modules in the way": Sent(
        {
            **{f"{name}.pyc": COMPILED for name in ("yaml", "sitecustomize", "flows/__init__", "merganser/__init__")},
            "tasks/__init__.py": "",
            cache_from_source("tasks/__init__.py"): COMPILED,
        },
        files={cache_from_source("yaml.py"): COMPILED},
    ),
}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder elsewhere; whatever is written or run outside the scratch folder is seen at the end."""
    home, place, scratch = tmp_path / "home", tmp_path / "outside", tmp_path / "scratch"
    for folder in (home, place / "sub", scratch, tmp_path / "site"):
        folder.mkdir(parents=True)
    spy = f"touch {place}/ran; cat"
    (home / ".gitconfig").write_text(
        f'[filter "spy"]\n\tsmudge = {spy}\n\tclean = {spy}\n[diff "spy"]\n\ttextconv = {spy}\n'
        f"[core]\n\thooksPath = {home}/hooks\n[init]\n\ttemplateDir = {home}/template\n"
    )
    for hook in ("hooks/post-index-change", "hooks/reference-transaction", "template/hooks/post-index-change"):
        path = home / hook
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {place}/ran\n")
        path.chmod(0o755)
    (place / "one.txt").write_text("precious")
    (place / "one.yaml").write_text("a: precious")
    (place / "sub/own.txt").write_text("precious")
    for name, folder in {"HOME": home, "TMPDIR": scratch, "DVC_SITE_CACHE_DIR": tmp_path / "site"}.items():
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield place
    assert list(scratch.iterdir()) == []


def _whole(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _there(content: object, outside: Path) -> object:
    """Put the path of the folder elsewhere into what is sent."""
    if isinstance(content, Mapping):
        return {name: _there(each, outside) for name, each in content.items()}
    if isinstance(content, Link):
        return Link(content.target.replace("OUTSIDE", str(outside)))
    return content.replace("OUTSIDE", str(outside)) if isinstance(content, str) else content


def _sent(sent: Sent, outside: Path) -> Path:
    root = outside.parent
    tree, committed = _there(sent.tree, outside), _there(sent.committed, outside)
    count = len(list(root.glob("*.tar")))
    path = send(Sent(tree, committed, sent.files, sent.objects), root / f"{count}.tar", root / "made")  # type: ignore[arg-type]
    shutil.rmtree(root / "made")
    return path


def _verify(path: Path) -> Audit:
    return _verified_archive(path, partial(_verified, target=None, again=None, keys=None, head=None))


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.drill)])
def test_what_would_write_read_or_run_elsewhere_is_refused_by_name(every: int, outside: Path) -> None:
    for number, what in enumerate(REFUSED):
        print(what)  # shown where it fails
        sent, named = REFUSED[what]
        path = _sent(sent, outside)
        _refused(path, named.replace("OUTSIDE", str(outside)), outside, number % every == 0)
        path.unlink()  # or what is compared before and after would grow with each


def _refused(path: Path, named: str, outside: Path, verified: bool) -> None:
    before = _whole(outside.parent)
    again = outside.parent / "again"
    with pytest.raises(InputError) as refused:
        restore(path, again)
    assert named in str(refused.value)
    assert not again.exists()
    assert _whole(outside.parent) == before
    if not verified:  # all but the audit is the same
        return
    try:
        said = "\n".join(map(str, _verify(path).findings))
    except InputError as error:
        said = str(error)
    assert named in said
    assert _whole(outside.parent) == before


@each("setting", SETTINGS)
def test_a_setting_that_leads_elsewhere_is_left_out_and_named(setting: str, outside: Path) -> None:
    path = _sent(
        Sent({".dvc/config": setting + "[cache]\ntype = copy\n" * ("[cache]" not in setting)}, objects=(EVIL,)), outside
    )
    before = _whole(outside.parent)
    assert any(SETTINGS[setting] in words for words in _verify(path).also)
    assert _whole(outside.parent) == before
    again = outside.parent / f"again-{path.stem}"
    assert SETTINGS[setting] in restore(path, again)[1]
    kept = (again / ".dvc/config").read_text()
    assert str(outside) not in kept
    assert "127.0.0.1" not in kept
    assert (again / "out.txt").read_bytes() == EVIL
    assert _whole(outside.parent) == before | {
        f"again-{path.stem}/{name}": content for name, content in _whole(again).items()
    }


def test_no_setting_s_name_controls_the_terminal(outside: Path) -> None:
    path = _sent(Sent({".dvc/config": "[core]\nx\x1b[2J = 1\n"}, objects=(EVIL,)), outside)
    for command in (("lineage", "verify", "--archive", path), ("archive", "--restore", path, outside.parent / "again")):
        code, said = run_in(outside, tuple(map(str, command)))
        assert code == 0, said
        assert "core.x\\x1b[2J" in said
        assert "\x1b" not in said


@each("what", HARMLESS)
def test_what_does_no_harm_is_restored_and_neither_followed_nor_run(what: str, outside: Path) -> None:
    path = _sent(HARMLESS[what], outside)
    before = _whole(outside.parent)
    _verify(path)
    assert _whole(outside.parent) == before
    again = outside.parent / f"again-{path.stem}"
    restore(path, again)
    assert _whole(outside) == {"one.txt": b"precious", "one.yaml": b"a: precious", "sub/own.txt": b"precious"}
    assert not (outside.parent / "home/ran").exists()
    assert (again / ".git/hooks").exists() is False


def test_a_store_of_mlflow_s_names_no_artifacts_elsewhere(outside: Path) -> None:
    places = {
        "file:///archived/mlartifacts/1/artifacts": "HERE/1/artifacts",
        "file:///archived/mlartifacts/../../../1": "file:///archived/elsewhere/HERE/_/_/_/1",
        "file:///archived/mlartifacts/%2e%2e/1": "file:///archived/elsewhere/HERE/_2e_2e/1",
        "file:///archived/mlartifacts2": "file:///archived/elsewhere/HERE2",
        "file:///": "file:///archived/elsewhere/file:///",
        "http://127.0.0.1:9/1": "file:///archived/elsewhere/http://127.0.0.1:9/1",
    }
    store = _database(*_STORE, *(f"INSERT INTO runs VALUES ('{place}')" for place in places))
    path = _sent(Sent(files={"mlflow.db": store, "mlartifacts/x": b""}), outside)
    with restored_archive(path) as (folder, *_), closing(sqlite3.connect(folder / "mlflow.db")) as restored:
        found = [place for (place,) in restored.execute("SELECT artifact_uri FROM runs")]
        here = (folder / "mlartifacts").as_uri()
    assert found == [place.replace("HERE", here) for place in places.values()]


def test_a_store_of_mlflow_s_in_an_archive_is_read_instead_of_a_server(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for files, is_named in (({}, True), ({"mlflow.db": _database(*_STORE)}, False)):
        with restored_archive(_sent(Sent(files=files), outside)):
            assert ("MLFLOW_TRACKING_URI" in os.environ) is is_named
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9"


def _negative(content: bytes) -> bytes:
    info = tarfile.TarInfo("files/x")
    info.size = -1024
    return content[:-1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def _headers_of_headers(content: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 0
    return info.tobuf(tarfile.USTAR_FORMAT) * 5000 + content


def _twice(content: bytes) -> bytes:
    return content[:-1024] + content


@each("change", (_negative, _headers_of_headers, _twice, lambda content: b"", lambda content: bytes(10240)))
def test_a_tar_that_is_none_is_named(change: Callable[[bytes], bytes], outside: Path) -> None:
    path = _sent(Sent(), outside)
    path.write_bytes(change(path.read_bytes()))
    assert check_form(path)
    with pytest.raises(InputError, match="not restored"):
        restore(path, outside.parent / "again")


def test_a_bundle_that_is_missing_or_none_is_refused(outside: Path) -> None:
    path, file = outside.parent / "sent.tar", outside.parent / "x"
    file.write_bytes(b"")
    with path.open("wb") as out:
        write_archive(out, {"files/x": file})
    assert "code.bundle" in {finding.name for finding in check_form(path)}
    with path.open("wb") as out:
        write_archive(out, {"code.bundle": file})
    with pytest.raises(InputError, match=r"code\.bundle: git cannot restore the code"):
        restore(path, outside.parent / "again")
