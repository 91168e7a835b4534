"""The DVC remote as nodes use it."""

from contextlib import chdir
from pathlib import Path

from dvc.repo import Repo

from dvcfleet.workspaces.nodes.clone import locked, make_node
from dvcfleet.workspaces.nodes.object_store import ObjectStore
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
