"""Outputs without a stage are named, and removed from the workspace by --prune."""

from pathlib import Path

from dvcfleet.lineage.audit import audit
from dvcfleet.lineage.steps import FindingKind
from dvcfleet.project import Project
from tests.dvcfleet.test_run import FAMILY, FAMILY_FILES
from tests.dvcfleet.toy import Make, Toy

LESS = "items: {a: {k: 1}}\n"
NAMED = (
    "3 stages are no longer in dvc.yaml: each@b, grid@b-1, grid@b-2; --prune removes their outputs from the workspace"
)


def reduced(toy: Make) -> Toy:
    """A repository that ran, and of whose stages three are no longer declared."""
    family = toy.ran(FAMILY, FAMILY_FILES)
    family.ran()
    family.write("params.yaml", LESS)
    return family


def test_a_run_names_them_and_leaves_them_where_they_are(toy: Make) -> None:
    family = reduced(toy)
    for options in ({"dry_run": True}, {}):
        code, text = family.run(**options)
        assert code == 0
        assert NAMED in text
        assert "warning: all read whole folders with such outputs in them (grid/b/1.json, grid/b/2.json)" in text
    assert (family.read("each/b"), family.read("grid/b/1.json")) == ("2\n", '{"v":1}\n')
    assert "each@b" in family.read("dvc.lock")
    assert family.settled()
    assert NAMED in family.run()[1]
    assert "no longer" not in family.run("all")[1]


def test_those_that_have_nothing_in_the_workspace_are_not_announced(toy: Make) -> None:
    family = reduced(toy)
    (family.path / "each/b").unlink()
    assert "2 stages are no longer in dvc.yaml: grid@b-1, grid@b-2; --prune removes" in family.run(dry_run=True)[1]


def test_prune_takes_them_out_but_they_stay_in_the_cache(toy: Make) -> None:
    family = reduced(toy)
    assert [orphan.name for orphan in family.plan().orphans] == ["each@b", "grid@b-1", "grid@b-2"]
    code, text = family.run(prune=True)
    assert (code, family.ran()) == (0, ["all"])
    assert "grid@b-1: no longer in dvc.yaml, removed" in text
    assert not (family.path / "grid/b").exists()
    assert "each@b" not in family.read("dvc.lock")
    assert family.settled()
    family.write("params.yaml", FAMILY_FILES["params.yaml"])
    assert family.run()[0] == 0
    assert family.ran() == []


def test_an_output_without_a_stage_that_was_edited_is_left_alone(toy: Make) -> None:
    family = reduced(toy)
    family.write("each/b", "my own words")
    _, text = family.run(prune=True)
    assert family.read("each/b") == "my own words"
    assert "each/b was changed, or is not in the cache: not removed" in text


class Follows(Project):
    """A project that takes out of the root's dvc.lock what is no longer declared."""

    def takes_out(self, lock_file: Path) -> bool:
        return lock_file.parent == Path.cwd()


FOLLOWS = Follows()


def test_what_the_next_run_takes_out_by_itself_is_said_to_go_then(toy: Make) -> None:
    family = reduced(toy)
    family.write("pyproject.toml", '[tool.dvcfleet]\nproject = "tests.dvcfleet.test_orphans:FOLLOWS"\n')
    assert NAMED.replace("--prune", "the next run") in family.run(dry_run=True)[1]
    found = [each.message for each in audit(family.path).findings if each.kind is FindingKind.UNDECLARED]
    assert found == ["dvc.lock has it, dvc.yaml does not; the next run removes it"] * 3
