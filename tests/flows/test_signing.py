"""Signatures of a comparison and of its merges: others' tools accept them, and no kind of tampering goes unseen."""

import base64
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from dvc.repo import Repo
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement

from dvcfleet.crash_recovery import SYNCED
from dvcfleet.lineage.audit import audit
from dvcfleet.record.environments import sha256
from dvcfleet.record.ledger import LEDGER, LEDGERS, Execution, entry_digest, sound_lines
from merganser.errors import InputError
from merganser.flows.commands.cli import main
from merganser.flows.evidence.keys import PrivateKey, PublicKey
from merganser.flows.evidence.signing import PAYLOAD, PREDICATE, check_signatures, sign
from tests.dvcfleet.toy import Make, Toy
from tests.faults.power import new_disk, why_no_cuts
from tests.flows.conftest import Done, Refused

MERGES = """
stages:
  merge:
    foreach: {ties: 1, mean: 2}
    do:
      cmd:
        - mkdir -p data/merged/${key}
        - cat params.yaml source > data/merged/${key}/model
        - echo ${item} > data/merged/${key}/config
      deps: [source]
      params: [scale]
      outs: ["data/merged/${key}"]
  score:
    cmd: wc -c data/merged/*/model > score
    deps: [data/merged]
    outs: [score]
  report:
    cmd: mkdir -p report; cat score > report/index.html
    deps: [score]
    outs: [report]
"""
FILES = {"source": "abc", "params.yaml": "scale: 3\n", ".gitignore": "/data\n"}
_LEDGER, _NODES = f".dvcfleet/{LEDGER}", f".dvcfleet/{LEDGERS}/node.jsonl"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of keys that openssl made: `ed` is ed25519, `ec` and `other` are on P-256."""
    folder = tmp_path_factory.mktemp("keys")
    curve = ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    for name, kind in (("ed", ["ed25519"]), ("ec", curve), ("other", curve)):
        private, public = str(folder / f"{name}.pem"), str(folder / f"{name}.pub")
        subprocess.run(["openssl", "genpkey", "-algorithm", *kind, "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return folder


def _commit(toy: Toy) -> None:
    git = ["git", "-C", str(toy.path), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)


@pytest.fixture
def signed(toy: Make, keys: Path) -> Toy:
    """Give a small comparison that was run and signed: the record by `ed`, merges by `ec`."""
    ran = toy.ran(MERGES, FILES, before=_commit)
    ran.write(_NODES, ran.read(_LEDGER))
    sign(ran.path, PrivateKey(keys / "ed.pem"), PrivateKey(keys / "ec.pem"))
    return ran


def found(toy: Toy, keys: Path, key: str = "ed", model_key: str = "ec") -> list[tuple[str, str]]:
    findings, _ = check_signatures(toy.path, PublicKey(keys / f"{key}.pub"), PublicKey(keys / f"{model_key}.pub"))
    return [(finding.kind.value, finding.name) for finding in findings]


def _envelope(toy: Toy, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(toy.read(f"signatures/{name}.intoto.json"))
    return content


def test_statements_are_what_in_toto_slsa_and_dsse_say_and_name_where_a_merge_is_from(signed: Toy, keys: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=signed.path, capture_output=True, text=True, check=True)
    for name in ("record", "merges/ties"):
        envelope = _envelope(signed, name)
        payload = base64.b64decode(envelope["payload"])
        kind = envelope["payloadType"].encode()
        assert kind.decode() == PAYLOAD
        # DSSE's own encoding, and ed25519 without the library that signed.
        key: Any = load_pem_public_key((keys / "ed.pub").read_bytes())
        signature = base64.b64decode(envelope["signatures"][0]["sig"])
        key.verify(signature, b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload))
        statement = Statement([], "x", {"x": 1})
        json_format.Parse(payload, statement.pb)
        statement.validate()
        assert statement.pb.predicate_type == PREDICATE
        predicate = json_format.ParseDict(json.loads(payload)["predicate"], Provenance())
        for subject in statement.pb.subject:
            assert subject.digest["sha256"] == sha256((signed.path / subject.name).read_bytes())
    assert {subject.name for subject in statement.pb.subject} == {"data/merged/ties/model", "data/merged/ties/config"}
    dependencies = {
        each.name or each.uri: dict(each.digest) for each in predicate.build_definition.resolved_dependencies
    }
    assert dependencies["git+file:."] == {"gitCommit": head.stdout.strip()}
    assert dependencies["source"] == {"md5": "900150983cd24fb0d6963f7d28e17f72"}
    asked = json_format.MessageToDict(predicate.build_definition.external_parameters)["merge@ties"]
    assert asked["parameters"] == {"params.yaml": {"scale": 3}}
    assert predicate.run_details.metadata.started_on.seconds > 1e9


def test_model_signings_own_command_accepts_a_merge_elsewhere_and_not_with_another_byte(
    signed: Toy, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(signed.path / "data/merged/ties", copy)
    signature = str(signed.path / "signatures/merges/ties.sig")
    command = ["verify", "key", "--signature", signature, "--public_key", str(keys / "ec.pub"), str(copy)]
    monkeypatch.setattr(sys, "argv", ["model_signing", *command])
    assert _ended("model_signing") == 0
    (copy / "config").write_text("2\n")
    assert _ended("model_signing") == 1


def _ended(module: str) -> object:
    """Do what `python -m` does with a module, in this process; return its exit code."""
    with pytest.raises(SystemExit) as left:
        runpy.run_module(module, run_name="__main__")
    return left.value.code


def _all_together(folder: Path) -> None:
    """Change an output, DVC's cache and dvc.lock, write the ledger anew with a chain that holds, forget its end."""
    (folder / ".dvcfleet" / SYNCED).unlink(missing_ok=True)  # and so does this
    score = folder / "score"
    score.unlink()
    score.write_text("better\n")
    with chdir(folder), Repo() as repo:
        repo.commit("score", force=True)
    entry = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]["score"]
    ledger = folder / ".dvcfleet" / LEDGER
    lines: list[bytes] = []
    for _, execution in list(sound_lines(ledger)):
        values = asdict(execution) | {"before": sha256(lines[-1]) if lines else execution.before}
        values |= {"entry": entry_digest(entry)} if execution.stage == "score" else {}
        lines.append(json.dumps(asdict(Execution(**values))).encode())
    ledger.write_bytes(b"\n".join([*lines, b""]))


def _append(name: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.chmod(0o644)
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content + b" ")

    return append


def _lines(change: Callable[[list[bytes]], list[bytes]], name: str = _LEDGER) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        ledger = folder / name
        ledger.write_bytes(b"\n".join([*change(ledger.read_bytes().splitlines()), b""]))

    return write


def _swap(folder: Path) -> None:
    merges = folder / "signatures/merges"
    shutil.copy(merges / "mean.intoto.json", merges / "ties.intoto.json")


def _payload(folder: Path) -> None:
    path = folder / "signatures/merges/ties.intoto.json"
    content = json.loads(path.read_text())
    payload = (
        base64.b64decode(content["payload"]).replace(b'"scale":3', b'"scale":4').replace(b'"scale": 3', b'"scale": 4')
    )
    path.write_text(json.dumps(content | {"payload": base64.b64encode(payload).decode()}))


_SIGNED, _SIGNATURE = "changed since it was signed", "signature"
TAMPERINGS: dict[str, tuple[Callable[[Path], None], list[tuple[str, str]]]] = {
    "output, cache, dvc.lock and ledger together": (_all_together, [(_SIGNED, f"{_LEDGER}, dvc.lock")]),
    "a ledger's line removed": (_lines(lambda lines: lines[:-1]), [(_SIGNED, _LEDGER)]),
    "lines moved": (_lines(lambda lines: lines[::-1]), [(_SIGNED, _LEDGER)]),
    "a line edited": (
        _lines(lambda lines: [lines[0].replace(b'"host": "', b'"host": "x'), *lines[1:]]),
        [(_SIGNED, _LEDGER)],
    ),
    "a line added": (_lines(lambda lines: [*lines, lines[0]]), [(_SIGNED, _LEDGER)]),
    "the last line of another machine's ledger removed": (
        _lines(lambda lines: lines[:-1], _NODES),
        [(_SIGNED, _NODES)],
    ),
    "the first one": (_lines(lambda lines: lines[1:], _NODES), [(_SIGNED, _NODES)]),
    "dvc.lock": (_append("dvc.lock"), [(_SIGNED, "dvc.lock")]),
    "dvc.yaml": (_append("dvc.yaml"), [(_SIGNED, "dvc.yaml")]),
    "params.yaml": (_append("params.yaml"), [(_SIGNED, "params.yaml")]),
    "the report": (_append("report/index.html"), [(_SIGNED, "report/index.html")]),
    "a page added": (
        lambda folder: (folder / "report/more.html").write_text("") and None,
        [(_SIGNED, "report/more.html")],
    ),
    "a merge": (_append("data/merged/ties/model"), [(_SIGNED, "data/merged/ties/model")]),
    "a merge's file removed": (
        lambda folder: (folder / "data/merged/ties/config").unlink(),
        [(_SIGNED, "data/merged/ties/config")],
    ),
    "the record's statement removed": (
        lambda folder: (folder / "signatures/record.intoto.json").unlink(),
        [(_SIGNATURE, "signatures/record.intoto.json")],
    ),
    "a statement no JSON": (
        lambda folder: (folder / "signatures/record.intoto.json").write_text("[") and None,
        [(_SIGNATURE, "signatures/record.intoto.json")],
    ),
    "a statement edited": (_payload, [(_SIGNATURE, "signatures/merges/ties.intoto.json")]),
    "another merge's statement": (
        _swap,
        [(_SIGNED, "data/merged/mean/config, data/merged/mean/model, data/merged/ties/config and 1 more")],
    ),
    "a model's signature removed": (
        lambda folder: (folder / "signatures/merges/ties.sig").unlink(),
        [(_SIGNATURE, "signatures/merges/ties.sig")],
    ),
    "another model's signature": (
        lambda folder: (
            shutil.copy(folder / "signatures/merges/mean.sig", folder / "signatures/merges/ties.sig") and None
        ),
        [(_SIGNATURE, "signatures/merges/ties.sig")],
    ),
}


def test_every_kind_of_tampering_is_found_and_nothing_on_an_untouched_tree(
    signed: Toy, keys: Path, tmp_path: Path
) -> None:
    assert found(signed, keys) == []
    for what, (tamper, expected) in TAMPERINGS.items():
        copy = Path(shutil.copytree(signed.path, tmp_path / "tampered", symlinks=True))
        tamper(copy)
        assert found(Toy(copy, "", {}), keys) == expected, what
        shutil.rmtree(copy)


@pytest.mark.skipif(bool(why_no_cuts()), reason=f"no power cuts here: {why_no_cuts()}")
def test_signatures_survive_a_power_cut_after_the_command(signed: Toy, keys: Path, tmp_path: Path) -> None:
    key = PrivateKey(keys / "ec.pem")
    with new_disk(tmp_path / "image", tmp_path / "disk", 64) as disk:
        copy = Path(shutil.copytree(signed.path, disk.path / "copy", symlinks=True))
        shutil.rmtree(copy / "signatures")
        subprocess.run(["sync", "-f", str(copy)], check=True)
        sign(copy, key, key)
        written = {path.name: path.read_bytes() for path in copy.glob("signatures/**/*") if path.is_file()}
        disk.cut()
        assert {path.name: path.read_bytes() for path in copy.glob("signatures/**/*") if path.is_file()} == written
        assert len(written) == 5


def test_a_signature_by_another_key_is_none(signed: Toy, keys: Path) -> None:
    statements = [(_SIGNATURE, f"signatures/{name}.intoto.json") for name in ("record", "merges/ties", "merges/mean")]
    assert found(signed, keys, key="other") == statements
    assert found(signed, keys, model_key="other") == [
        (_SIGNATURE, f"signatures/merges/{name}.sig") for name in ("ties", "mean")
    ]


def test_a_change_of_all_records_together_is_found_by_verify_with_the_key_alone(
    toy: Make,
    keys: Path,
    done: Done,
    refused: Refused,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = toy.ran(MERGES, FILES, before=_commit)
    said = done(ran.path, "lineage", "sign", str(keys / "ec.pem"))
    assert said == "signed in signatures: the record and 2 merges, 2 by model-signing too\n"
    verify = ("lineage", "verify", "--signed-by", str(keys / "ec.pub"))
    assert "signatures of the record and 2 merges, 2 by model-signing too" in done(ran.path, *verify)
    _all_together(ran.path)
    assert audit(ran.path, "score").findings == ()
    monkeypatch.setattr(sys, "argv", ["merganser", *verify])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "dvc.lock: signatures/record.intoto.json" in capsys.readouterr().out
    ran.write("data/merged/ties/model", "")
    assert "not signed, as it differs from its record" in refused(ran.path, "lineage", "sign", str(keys / "ec.pem"))


def test_the_password_of_an_encrypted_key_is_asked_for(
    signed: Toy, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, plain = tmp_path / "locked.pem", ["-in", str(keys / "ec.pem")]
    subprocess.run(["openssl", "pkey", *plain, "-aes256", "-passout", "pass:open", "-out", str(locked)], check=True)
    monkeypatch.setattr("merganser.flows.evidence.keys.getpass", lambda prompt: "open")
    key = PrivateKey(locked)
    assert key.is_for_models
    sign(signed.path, key, key)
    assert found(signed, keys, key="ec") == []
    monkeypatch.setattr("merganser.flows.evidence.keys.getpass", lambda prompt: "wrong")
    with pytest.raises(InputError, match="that this password opens"):
        PrivateKey(locked)


def test_what_is_no_key_is_refused_with_how_to_make_one(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="openssl pkey -in key"):
        PublicKey(keys / "ec.pem")
    with pytest.raises(InputError, match="openssl genpkey"):
        PrivateKey(keys / "ec.pub")
    with pytest.raises(InputError, match="No such file"):
        PrivateKey(tmp_path / "none.pem")
    assert not PrivateKey(keys / "ed.pem").is_for_models
