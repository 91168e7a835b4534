"""What somebody else may have written into a comparison's JSON is refused by name, and never ends in a traceback."""

import base64
import hashlib
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import pytest

from dvcfleet.dvc_adapter.objects import listing_at
from dvcfleet.errors import FailedError, UserError
from dvcfleet.lineage.steps import Lineage
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.record.environments import environment_file, read_environment, sha256
from dvcfleet.record.ledger import LEDGER, sound_lines
from dvcfleet.repository import opened
from merganser.flows.evidence.keys import PrivateKey, PublicKey
from merganser.flows.evidence.lineage_hooks import DESCRIPTION, MerganserLineage
from merganser.flows.evidence.signing import PAYLOAD, SIGNATURES, check_signatures, sign
from tests.dvcfleet.toy import Make
from tests.flows.test_signing import FILES, MERGES, _commit, keys
from tests.support import each

__all__ = ["keys"]

# Not JSON, JSON of another form, and JSON that takes a reader down.
CONTENTS = (
    *(
        b"",
        b"\xff\xfe",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"NaN",
        b"1e999",
        b"9" * 5000,
        b"[{}]",
        b'{"a": 1, "a": 2}',
    ),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000),
)
VALUES: tuple[Any, ...] = (None, True, -1, 1e308, float("nan"), 10**400, "x", "../../x", [], [[]], {}, {"a": {}})


def edits(content: bytes, many: int = 12) -> Iterator[bytes]:
    """Give other contents of a JSON file: those above, and itself with values replaced and keys left out."""
    yield from CONTENTS
    choice = random.Random(0)
    for number in range(many):
        found = json.loads(content)
        place, key = choice.choice(list(_places(found)))
        if number % 3:
            place[key] = choice.choice(VALUES)
        else:
            del place[key]
        yield json.dumps(found).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    )
    for key, value in pairs:
        yield content, key
        yield from _places(value)


def test_a_signature_of_any_content_is_a_finding(toy: Make, keys: Path) -> None:
    ran = toy.ran(MERGES, FILES, before=_commit)
    sign(ran.path, PrivateKey(keys / "ec.pem"), PrivateKey(keys / "ec.pem"))
    public = PublicKey(keys / "ec.pub")
    for name in ("record.intoto.json", "merges/ties.intoto.json", "merges/ties.sig"):
        path = ran.path / SIGNATURES / name
        content = path.read_bytes()
        for edited in edits(content):
            path.write_bytes(edited)
            found = [
                finding
                for finding in check_signatures(ran.path, public, public)[0]
                if finding.name == f"{SIGNATURES}/{name}"
            ]
            assert len(found) == 1 or name.endswith(".sig"), edited[:80]
        path.write_bytes(b"[" * 100_000)
        (finding,) = (
            each for each in check_signatures(ran.path, public, public)[0] if each.name == f"{SIGNATURES}/{name}"
        )
        assert "nested too deeply" in finding.message
        with path.open("wb") as file:
            file.truncate(2**40)
        (finding,) = (
            each for each in check_signatures(ran.path, public, public)[0] if each.name == f"{SIGNATURES}/{name}"
        )
        assert "larger than" in finding.message
        path.write_bytes(content)
    assert check_signatures(ran.path, public, public)[0] == []


def test_a_signed_statement_of_any_content_is_a_finding(toy: Make, keys: Path) -> None:
    from securesystemslib.dsse import Envelope

    ran, key, public = toy.ran(MERGES, FILES, before=_commit), PrivateKey(keys / "ec.pem"), PublicKey(keys / "ec.pub")
    sign(ran.path, key, key)
    path = ran.path / SIGNATURES / "merges/ties.intoto.json"
    payload = base64.b64decode(json.loads(path.read_bytes())["payload"])
    for edited in edits(payload):
        envelope = Envelope(edited, PAYLOAD, {})
        envelope.sign(key.signer)
        path.write_text(json.dumps(envelope.to_dict()))
        check_signatures(ran.path, public, public)


@each("content", CONTENTS)
def test_a_listing_a_description_and_an_environment_of_any_content_are_as_if_missing(
    content: bytes, tmp_path: Path
) -> None:
    name = hashlib.md5(content).hexdigest()
    path = tmp_path / name[:2] / f"{name[2:]}.dir"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert not listing_at(path)
    (tmp_path / DESCRIPTION).write_bytes(content)
    assert MerganserLineage().origin(tmp_path) is None
    kept = environment_file(tmp_path, sha256(content))
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(content)
    assert isinstance(read_environment(tmp_path, sha256(content)), dict | None)


def test_a_line_of_the_ledger_with_any_value_is_passed_over_or_read(toy: Make) -> None:
    ran = toy.ran(MERGES, FILES, before=_commit)
    path = ran.path / ".dvcfleet" / LEDGER
    lines = path.read_bytes().splitlines()
    for name in json.loads(lines[0]):
        changed = [json.dumps(json.loads(lines[0]) | {name: value}).encode() for value in VALUES]
        path.write_bytes(b"\n".join([*changed, *CONTENTS, *lines]) + b"\n")
        for _, execution in sound_lines(path):
            assert execution.ended
        with opened(ran.path) as repo:
            lineage = read_lineage(repo)
        assert len(lineage.steps) == 4


def test_sources_of_any_content_are_no_sources(tmp_path: Path) -> None:
    whole = {"source": "a", "kind": "hub", "revision": "r", "group": {"x": {"hub": "h", "revision": "r"}}}
    whole["files"] = {"sub/model": {"sha256": "0" * 64}}
    for content in edits(json.dumps(whole).encode(), many=100):
        (tmp_path / DESCRIPTION).write_bytes(content)
        origin = MerganserLineage().origin(tmp_path)
        assert origin is None or all(not name.startswith(("/", "..")) for name in origin.files)
    for name in ("../x", "/etc/passwd", "a/../../x"):
        (tmp_path / DESCRIPTION).write_text(json.dumps({**whole, "files": {name: {"sha256": "0" * 64}}}))
        assert MerganserLineage().origin(tmp_path) is None


def _audited(copy: Path, lineage: Lineage) -> str:
    """Audit the report and MLflow's runs as if all files were as recorded; return what is said."""
    with chdir(copy):
        try:
            return "\n".join(map(str, MerganserLineage().audit(lineage, [])))
        except (UserError, FailedError) as error:
            return str(error)


READ = ("data/metrics/ties/dark.json", "data/records/ties.json", "data/profiles/merge/ties.json")


@pytest.mark.parametrize("many", [1, pytest.param(60, marks=pytest.mark.drill)])
def test_results_of_any_content_are_findings(tiny_copy: Path, many: int) -> None:
    with opened(tiny_copy) as repo:
        lineage = read_lineage(repo)
    assert _audited(tiny_copy, lineage) == ""
    for name in READ:
        path = tiny_copy / name
        content = path.read_bytes()
        path.unlink()  # it may be linked to DVC's cache
        tried = list(edits(content, many))
        for edited in tried if many > 1 else [tried[-1], b"[" * 100_000]:
            path.write_bytes(edited)
            assert _audited(tiny_copy, lineage) or edited in tried[-many:], (name, edited[:60])
        path.write_bytes(content)


def test_a_store_of_any_content_is_named(tiny_copy: Path) -> None:
    with opened(tiny_copy) as repo:
        lineage = read_lineage(repo)
    store = tiny_copy / "mlflow.db"
    with closing(sqlite3.connect(store)) as opened_store, opened_store:
        opened_store.execute("UPDATE experiments SET artifact_location = 'file:///' || x'ff' WHERE name = 'merganser'")
        opened_store.execute("UPDATE tags SET value = ?", ("[" * 100_000,))
        opened_store.execute("UPDATE OR REPLACE metrics SET value = 'x'")
    assert _audited(tiny_copy, lineage)
    store.write_bytes(b"not a database" * 1000)
    assert "MLflow's store" in _audited(tiny_copy, lineage)
