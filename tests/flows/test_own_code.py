"""What code of another version computed is compared if this version computes the same; else the audit says so."""

import shutil
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import merganser
from dvcfleet.lineage.steps import Finding
from merganser.flows.evidence.findings import DifferenceKind
from merganser.flows.evidence.own_code import own_code
from merganser.flows.steps.updating import new_record
from merganser.tasks.code_record import RECORD, Digest, record_text


def test_what_another_version_computes_alike_is_compared_and_the_rest_is_named(tmp_path: Path) -> None:
    for name in ("merganser", "tasks"):
        source = Path(merganser.__file__).parents[1] / name
        shutil.copytree(source, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    differs = Finding(DifferenceKind.REPORT, "report/index.html", "differs from the report that its inputs give")
    with chdir(tmp_path):
        assert own_code().compared("the report", lambda: [differs]) == [differs]
        (tmp_path / "tasks/stray.py").write_text("")
        own = own_code()
    assert own.differing == ("tasks/stray.py",)
    assert own.compared("the report", lambda: []) == []
    (found,) = own.compared("the report", lambda: [differs, differs])
    assert str(found).startswith("not compared: the report: this Merganser has other code than tasks/stray.py here")
    assert "report/index.html" in found.message
    (failed,) = own.compared("the report", lambda: [{}["amr"]])
    assert failed.kind == "not compared"
    assert "KeyError" in failed.message


def test_of_a_comparison_its_record_of_code_says_what_differs(tmp_path: Path) -> None:
    differs = Finding(DifferenceKind.REPORT, "report/index.html", "differs from the report that its inputs give")
    (tmp_path / RECORD).parent.mkdir()
    record = new_record()
    with chdir(tmp_path):
        RECORD.write_text(record_text(record))
        assert own_code().compared("the report", lambda: [differs]) == [differs]
        other = {"report.txt": Digest("0" * 64, "0" * 64)}
        RECORD.write_text(record_text(replace(record, digests={**record.digests, **other})))
        assert own_code().differing == ("report",)
