"""Damaged files of the state: what can be made anew is made anew, and what cannot is named with what to do."""

import json
import re
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.repo import Repo

from dvcfleet.disk import is_damaged
from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import audit
from dvcfleet.prefect_adapter.database import make_database
from dvcfleet.record.ledger import executions
from dvcfleet.run_names import begun_run
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.faults.damaged import WAYS

LINES = ("", "{", "\0\0", "5", "[1, 2]", '{"name": 5}', '{"name": "../x"}', "[" * 100_000)


@pytest.fixture
def chain(toy: Make) -> Toy:
    return toy.ran(CHAIN, CHAIN_FILES)


def state(chain: Toy) -> Path:
    return chain.path / ".dvcfleet"


def test_a_damaged_dvc_lock_is_named_with_what_to_do(chain: Toy) -> None:
    whole = chain.read("dvc.lock")
    for way in ("empty", "half", "NULs", "random", "other JSON", "a JSON list", "folder"):
        WAYS[way](chain.path / "dvc.lock")
        with pytest.raises(UserError, match=r"dvc\.lock.*: it is damaged; `git checkout .*dvc\.lock` restores"):
            chain.plan()
        if way == "folder":
            (chain.path / "dvc.lock").rmdir()
        chain.write("dvc.lock", whole)
    assert set(chain.states().values()) == {"up to date"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "config",
            "[core",
            r"git cannot read this repository \(bad config line \d in file .*\.git/config\); mend that",
        ),
        ("index", "garbage", r"\.git/index is damaged \(.*\); remove it, and `git reset` makes it again"),
        ("index", "DIRC\0\0\0\2\0\0\0\1", r"\.git/index is damaged \(.*\); remove it, and `git reset` makes it again"),
    ],
)
def test_a_damaged_file_of_gits_is_named_with_what_to_do(chain: Toy, name: str, content: str, said: str) -> None:
    chain.ran()
    chain.write(f".git/{name}", content)
    code, text = chain.run(force=True)
    assert (code, chain.ran()) == (2, [])
    assert re.search(said, text), text


def test_a_listing_that_holds_other_json_is_named(chain: Toy) -> None:
    (listing,) = (chain.path / ".dvc/cache/files/md5").rglob("*.dir")
    WAYS["a JSON list"](listing)
    assert "is damaged; remove it" in chain.reasons("turn")[0]
    code, text = chain.run()
    assert code == 1
    assert f"{listing.relative_to(chain.path)}: the listing of turned in DVC's cache is damaged; remove it" in text
    listing.unlink()
    assert chain.run()[0] == 0


@pytest.mark.parametrize("way", ["NULs", "random", "other JSON", "folder", "half"])
def test_dvcs_damaged_databases_are_made_anew(chain: Toy, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(chain.path), Repo() as repo:
        repo.status()
        databases = [Path(cache.directory, "cache.db") for cache in (repo.state.links, repo.state.hashes)]
    for database in databases:
        WAYS[way](database)
        assert is_damaged(database)
    assert set(chain.states().values()) == {"up to date"}
    said = capsys.readouterr().err
    assert all(f"{database} was damaged: DVC recreates it" in said for database in databases)
    assert chain.settled()


def test_a_whole_database_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    make_database(tmp_path / "prefect.db")
    assert not is_damaged(tmp_path / "prefect.db")
    (tmp_path / "empty.db").touch()
    assert not is_damaged(tmp_path / "empty.db")


def test_damaged_lines_of_the_journal_and_of_the_ledger_are_skipped(chain: Toy) -> None:
    before = list(executions(state(chain)))
    ledger = state(chain) / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    other = json.loads(lines[0])
    wrong = [other | change for change in ({"seconds": "long"}, {"began": 5}, {"began": "never"}, {"stage": None})]
    ledger.write_text("\n".join([*LINES, *map(json.dumps, wrong), *lines]) + "\n")
    (state(chain) / "journal").write_text("\n".join(LINES))
    assert list(executions(state(chain))) == before
    code, text = chain.run()
    assert code == 0, text
    assert "nothing to do" in text
    assert not (state(chain) / "journal").exists()


def test_a_damaged_name_of_a_run_is_no_name(chain: Toy) -> None:
    for line in LINES:
        (state(chain) / "run.json").write_text(line)
        assert begun_run(state(chain)) is None


def test_a_damaged_file_of_path_locks_is_removed(chain: Toy) -> None:
    for way in ("empty", "half", "NULs", "random", "other JSON", "a JSON list"):
        WAYS[way](chain.path / ".dvc/tmp/rwlock")
        code, text = chain.run()
        assert code == 0, f"{way}: {text}"


def test_the_present_environments_description_is_written_anew_and_anothers_is_named(chain: Toy) -> None:
    (file,) = (state(chain) / "environments").iterdir()
    whole = file.read_text()
    for way in ("empty", "half", "NULs", "random", "other JSON"):
        WAYS[way](file)
        (finding,) = audit(chain.path).findings
        assert finding.name == str(file.relative_to(chain.path))
        assert "was rewritten" in finding.message
        assert file.read_text() == whole
        assert audit(chain.path).findings == ()
    other = file.rename(file.with_name(f"{'0' * 64}.json"))
    ledger = state(chain) / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace(file.stem, other.stem))
    for state_of_it, words in (("damaged", "ran is not known any more; remove it"), ("lost", "run again with --force")):
        finding, *edited = audit(chain.path).findings
        assert {one.name for one in edited} == {str(ledger.relative_to(chain.path))}
        assert finding.name == str(other.relative_to(chain.path))
        assert finding.message.startswith(state_of_it)
        assert finding.message.endswith(words)
        other.unlink(missing_ok=True)
