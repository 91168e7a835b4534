"""The DVC remote as nodes use it."""

import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.repo import Repo

from dvcfleet.dvc_adapter.objects import file_hash, in_cache
from dvcfleet.dvc_adapter.run_cache import entry_hash
from dvcfleet.workspaces.nodes.clone import locked, make_node
from dvcfleet.workspaces.nodes.object_store import MissingError, ObjectStore
from tests.dvcfleet.test_make_node import commit
from tests.dvcfleet.toy import Make
from tests.tiny import dvc


def test_dvcs_data_index_is_created_under_the_nodes_lock_as_two_that_create_it_at_once_fail(toy: Make) -> None:
    made = toy("stages: {one: {cmd: cat a > one, deps: [a], outs: [one]}}", {"a": "1"})
    dvc(made.path, "remote", "add", "-q", "-d", "store", str(made.path.parent / "remote"))
    commit(made.path)
    make_node(made.path)
    with chdir(made.path), Repo() as repo:
        index = Path(repo.site_cache_dir, "index/data/db.db")
        index.unlink(missing_ok=True)
        store = ObjectStore(repo, print)
        assert not index.exists()
        with locked(repo):
            store.open()
        assert index.exists()


# What may be wrong with an object of a remote, as after a power cut there.
DAMAGES = {"cut off": b"on", "empty": b"", "other": b"two\n", "gone": None}


@pytest.fixture
def store(toy: Make) -> Iterator[ObjectStore]:
    """The remote of a repository with a file and a folder, both of which it holds."""
    outs = {"file": "echo one > file", "folder": "mkdir folder; echo one > folder/one; echo three > folder/three"}
    stages = [f"{name}: {{cmd: {cmd}, deps: [a], outs: [{name}]}}" for name, cmd in outs.items()]
    made = toy(f"stages: {{{', '.join(stages)}}}", {"a": "1"})
    dvc(made.path, "remote", "add", "-q", "-d", "store", str(made.path.parent / "remote"))
    assert made.run()[0] == 0
    with chdir(made.path), Repo() as repo:
        store = ObjectStore(repo, pytest.fail)  # called if it waits
        store.open()
        store.push(repo.index.outs)
        yield store


def empty_cache(store: ObjectStore) -> None:
    """Remove all objects, but no folders, of which DVC remembers that they are there."""
    for path in Path(store._repo.cache.local.path).glob("*/*"):
        path.unlink()


def damage(store: ObjectStore, oid: str, content: bytes | None) -> None:
    path = Path(store._remote.odb.oid_to_path(oid))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o444)  # else DVC would read it, which it does for a remote that is a folder here


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["file", "folder", "listing"])
def test_a_damaged_object_is_not_taken_for_whole_and_is_made_again(
    store: ObjectStore, name: str, content: bytes | None
) -> None:
    (out,) = (out for out in store._repo.index.outs if out.def_path == name.replace("listing", "folder"))
    value = oid = str(out.hash_info.value)
    if name == "folder":
        oid = str(file_hash(store._repo, "folder/three"))
    damage(store, oid, content)
    shutil.copytree(store._repo.cache.local.path, "kept")
    empty_cache(store)
    assert store.held({value}) == set() if content is None and name != "folder" else {value}
    with pytest.raises(MissingError, match="run the same command again" if store.held({value}) else "does not hold"):
        store.fetch([out])
    assert not in_cache(out)
    assert store.held({value}) == set()
    shutil.copytree("kept", store._repo.cache.local.path, dirs_exist_ok=True)  # as if its stage had run again
    store.push([out])
    empty_cache(store)
    store.fetch([out])
    assert in_cache(out)


@pytest.mark.parametrize("content", [content for name, content in DAMAGES.items() if name != "other"])
def test_a_push_replaces_what_is_there_in_part(store: ObjectStore, content: bytes | None) -> None:
    outs = list(store._repo.index.outs)
    for out in outs:
        listing = {info.value for _, _, info in out.get_obj()} if out.hash_info.isdir else set()
        for oid in listing or {out.hash_info.value}:
            damage(store, str(oid), content)
        store.push([out])
        empty_cache(store)
        store.fetch(outs)
        assert all(map(in_cache, outs))


def test_a_damaged_entry_of_the_run_cache_restores_nothing(store: ObjectStore) -> None:
    file = next(out for out in store._repo.index.outs if out.def_path == "file")
    entry = {"cmd": "c", "outs": [{"path": "file", "hash": "md5", "md5": str(file.hash_info.value)}]}
    store.save_run("key", entry)
    assert store.find_run("key") == entry
    path = Path(store._run_folder("key"), entry_hash(entry))
    for content in (b"", path.read_bytes().partition(b"outs")[0], b"\xff\xfe"):
        path.write_bytes(content)
        assert store.find_run("key") is None
