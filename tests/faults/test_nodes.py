"""Nodes that share nothing with the run but a DVC remote: real Dask clusters, clones, and kills.

On Ray, and with whole comparisons: `python -m tests.faults.nodes`.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.dvcfleet.toy import Toy
from tests.faults import nodes
from tests.faults.nodes import Cluster, cluster, git, share
from tests.support import LIMIT_S, wait_until
from tests.tiny import dvc

# A folder read whole, one of its outputs left out by git by name; outputs to persist; a metric that git keeps; a stage
# that stays. Each command writes its name into a log outside of all clones.
DVC_YAML = """
stages:
  part:
    foreach: ${parts}
    do:
      cmd: mkdir -p part/${key} && cat source > part/${key}/all && sleep ${pause} && echo part-${key} >> $LOG
      deps: [source]
      params: [pause]
      outs: ["part/${key}"]
  kept:
    foreach: ${parts}
    do:
      cmd: mkdir -p kept/${key}; echo ${item} >> kept/${key}/grown; sleep ${pause}; echo kept-${key} >> $LOG
      deps: ["part/${key}"]
      params: ["parts.${key}"]
      outs: ["kept/${key}": {persist: true}]
  sum:
    cmd: cat part/*/* kept/*/* > sum.txt; ls -A part kept >> sum.txt; wc -c < sum.txt > bytes.json; echo sum >> $LOG
    deps: [part, kept, own]
    outs: [sum.txt]
    metrics: [bytes.json: {cache: false}]
  stay:
    cmd: cat sum.txt bytes.json own > stay.txt; pwd >> stayed; echo stay >> $LOG
    meta: {dvcfleet: {place: flow}}
    deps: [sum.txt, bytes.json, own]
    outs: [stay.txt]
"""
NAMES = "abcd"
FILES = {
    "source": "s\n",
    "own": "o\n",
    "params.yaml": "pause: 0\nparts: {" + ", ".join(f"{name}: {name}{name}" for name in NAMES) + "}\n",
}
ALL = sorted([f"{stage}-{name}" for stage in ("part", "kept") for name in NAMES] + ["sum", "stay"])


class Field:
    """A toy repository, its clones, and the log of what ran in any of them."""

    def __init__(self, folder: Path, dvc_yaml: str = DVC_YAML, files: dict[str, str] = FILES) -> None:
        self.folder = folder
        self.source = Toy(folder / "source", dvc_yaml, files)
        self.clones: list[Path] = []

    def share(self, count: int) -> Toy:
        """Make the run's clone, which is returned, and those of the nodes."""
        flow, *self.clones = share(self.source.path, self.folder, count)
        return Toy(flow, "", {})

    def ran(self) -> list[str]:
        """The stages whose commands came to their end, in no order, since this was last asked."""
        log = self.folder / "log"
        names = sorted(log.read_text().split()) if log.exists() else []
        log.unlink(missing_ok=True)
        return names


@pytest.fixture
def field(tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Field:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    return Field(tmp_path)


def on(nodes: Cluster, flow: Toy, **options: bool) -> tuple[int, str]:
    """Run on a cluster."""
    return flow.run(runner=nodes.kind, address=nodes.address, workers=None, **options)


@pytest.mark.drill  # the sample of the drill `nodes` does it with a node that is killed
def test_nodes_leave_what_a_local_run_leaves_and_fetch_nothing_twice(field: Field) -> None:
    flow = field.share(2)
    for clone in field.clones:  # left over from stages that are no more, in a folder that is read whole
        (clone / "part/gone").mkdir(parents=True)
        (clone / "part/gone/all").write_text("left over")
        (clone / "part/.gitignore").write_text("/gone\n")
    assert field.source.run()[0] == 0
    assert field.ran() == ALL
    with cluster("dask", field.folder / "cluster", field.clones) as dask:
        code, text = on(dask, flow)
        assert code == 0, text
        assert field.ran() == ALL
        assert flow.read("dvc.lock") == field.source.read("dvc.lock")
        assert flow.read("bytes.json") == field.source.read("bytes.json")
        # What stages that stay read is here, and nothing else.
        assert sorted(path.name for path in flow.path.glob("*") if path.name in ("part", "kept")) == []
        assert flow.read("stay.txt") == field.source.read("stay.txt")
        assert "Data and pipelines are up to date" in dvc(flow.path, "repro", "--dry", "--allow-missing")

        before = [objects(clone) for clone in field.clones]
        flow.write("params.yaml", FILES["params.yaml"].replace("a: aa", "a: other"))
        assert on(dask, flow, fetch_results=True)[0] == 0
        assert field.ran() == ["kept-a", "stay", "sum"]
        assert all(objects(clone).items() >= held.items() for clone, held in zip(field.clones, before, strict=True))
        assert flow.read("kept/a/grown") == "aa\nother\n"  # it went on from what dvc.lock had
        assert flow.settled()
        code, text = on(dask, flow)
        assert "nothing to do" in text


# What is made first is used last, when the run's own machine has seen that all is made.
CHAINS = """
stages:
  make:
    foreach: ${parts}
    do:
      cmd: yes ${key} | head -c 1000000 > made-${key}; sleep 0.5; echo ${key} > mark-${key}
      deps: [source]
      outs: ["made-${key}", "mark-${key}"]
  gate:
    cmd: cat mark-* > all
    meta: {dvcfleet: {place: flow}}
    deps: [mark-a, mark-b, mark-c, mark-d]
    outs: [all]
  use:
    foreach: [d, c, b, a]
    do: {cmd: "wc -c made-${item} > used-${item}; sleep 0.5", deps: [all, "made-${item}"], outs: ["used-${item}"]}
"""


@pytest.mark.slow
def test_a_stage_goes_to_the_node_that_holds_most_of_what_it_reads(field: Field) -> None:
    chains = Field(field.folder / "chains", CHAINS)
    flow = chains.share(2)
    with cluster("dask", chains.folder / "cluster", chains.clones) as dask:
        code, text = on(dask, flow)
    assert code == 0, text
    for clone in chains.clones:
        made, used = ({name[-1] for name in nodes.left(clone) if name.startswith(kind)} for kind in ("make@", "use@"))
        assert made == used != set()


def objects(clone: Path) -> dict[str, int]:
    """The files of a clone's cache; one that was fetched again is another."""
    cache = clone / ".dvc/cache/files/md5"
    return {str(path): path.stat().st_ino for path in cache.glob("*/*")}


@pytest.mark.slow
def test_a_node_at_another_commit_or_with_other_code_is_refused_by_name(field: Field) -> None:
    flow = field.share(1)
    (clone,) = field.clones
    commit = git(clone, "rev-parse", "HEAD").strip()
    git(clone, "commit", "-q", "--allow-empty", "-m", "other")
    with cluster("dask", field.folder / "cluster", field.clones) as dask:
        code, text = on(dask, flow)
        assert code == 2
        assert str(clone) in text
        assert commit in text
        assert git(clone, "rev-parse", "HEAD").strip() in text
        git(clone, "reset", "-q", "--hard", commit)
        (clone / "source").write_text("edited")
        code, text = on(dask, flow)
        assert code == 2
        assert "source differs from the run's machine" in text
        assert field.ran() == []
        git(clone, "checkout", "-q", "source")
        assert on(dask, flow)[0] == 0
    assert field.ran() == ALL


@pytest.mark.drill
def test_code_is_upgraded_one_node_after_the_other_and_no_run_mixes_two(field: Field) -> None:
    flow = field.share(2)
    with cluster("dask", field.folder / "cluster", field.clones) as dask:
        assert on(dask, flow)[0] == 0
        assert field.ran() == ALL
        flow.write("source", "new\n")
        git(flow.path, "commit", "-qm", "upgrade", "source")
        upgraded, old = field.clones
        upgrade(upgraded, flow)
        code, text = on(dask, flow)
        assert (code, str(old) in text, str(upgraded) in text) == (2, True, False), text
        first = field.ran()
        upgrade(old, flow)
        code, text = on(dask, flow)
        assert code == 0, text
        assert sorted(first + field.ran()) == ALL  # what the upgraded node had done is not done again
        flow.write("own", "new\n")
        git(flow.path, "commit", "-qm", "upgrade", "own")
        for clone in field.clones:
            upgrade(clone, flow)
        assert on(dask, flow)[0] == 0
        assert field.ran() == ["stay", "sum"]  # which read it


def upgrade(clone: Path, flow: Toy) -> None:
    """Bring a node's clone to the run's commit."""
    git(clone, "pull", "-q", "--ff-only", str(flow.path))


@pytest.mark.slow
def test_a_clone_that_was_not_made_a_node_keeps_its_edits_and_untracked_files(field: Field) -> None:
    flow = field.share(0)
    clone = nodes.clone(field.source.path, field.folder / "own")
    work = {"params.yaml": FILES["params.yaml"].replace("a: aa", "a: mine"), "part/notes": "mine"}
    for name, text in work.items():
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).write_text(text)
    with cluster("dask", field.folder / "cluster", [clone]) as dask:
        code, text = on(dask, flow)
    assert code == 2, text
    assert f"{clone} is not a node; `dvcfleet node init {clone}` makes it one" in text
    assert {name: (clone / name).read_text() for name in work} == work
    assert field.ran() == []


@pytest.mark.drill
def test_a_node_killed_in_the_middle_loses_nothing_that_had_ended(field: Field) -> None:
    field.source.write("params.yaml", FILES["params.yaml"].replace("pause: 0", "pause: 1"))
    flow = field.share(2)
    with cluster("dask", field.folder / "cluster", field.clones) as made:
        process = nodes.run(flow.path, "--runner", "dask", "--address", made.address)
        wait_until(lambda: process.poll() is not None or nodes.entries(flow.path) >= 2)
        made.kill(0)
        text, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, text
    assert "Traceback" not in text
    assert set(field.ran()) == set(ALL)
    twice = [name for clone in field.clones for name in nodes.left(clone)]
    assert len(twice) == len(set(twice)), twice
    assert field.source.run()[0] == 0
    assert flow.read("dvc.lock") == field.source.read("dvc.lock")


@pytest.mark.drill
def test_what_ended_on_nodes_before_the_run_was_killed_is_not_run_again(field: Field) -> None:
    field.source.write("params.yaml", FILES["params.yaml"].replace("pause: 0", "pause: 1"))
    flow = field.share(1)
    with cluster("dask", field.folder / "cluster", field.clones) as dask:
        process = nodes.run(flow.path, "--runner", "dask", "--address", dask.address)
        wait_until(lambda: process.poll() is not None or nodes.entries(flow.path) >= 3)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(8)  # what was at work ends, and its result finds nobody
        # Even what the run had taken note of: as if its machine were gone.
        for path in (".dvcfleet/journal", "dvc.lock"):
            (flow.path / path).unlink(missing_ok=True)
        code, text = on(dask, flow)
    assert code == 0, text
    ran = field.ran()
    assert sorted(set(ran)) == ALL
    assert len(ran) <= len(ALL) + 2  # two at most were at work, of which one may have been ended with the run
    assert "restored" in text


@pytest.mark.drill
def test_a_remote_that_is_away_is_waited_for(field: Field) -> None:
    flow = field.share(1)
    remote, away = field.folder / "remote", field.folder / "away"
    with cluster("dask", field.folder / "cluster", field.clones) as dask:
        assert on(dask, flow)[0] == 0
        flow.write("params.yaml", FILES["params.yaml"].replace("a: aa", "a: other"))
        remote.rename(away)
        process = nodes.run(flow.path, "--runner", "dask", "--address", dask.address)
        time.sleep(12)
        assert process.poll() is None
        away.rename(remote)
        text, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, text
    assert "waiting for the DVC remote store" in text
    assert flow.read("bytes.json") != ""
