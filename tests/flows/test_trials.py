"""Trials: other values without an edit, in a workspace of their own."""

import hashlib
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvcfleet.git import git
from dvcfleet.record.ledger import executions
from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.repositories.comparisons import copy_ledgers
from merganser.flows.repositories.identity import TRIALS
from merganser.flows.repositories.trials import Wish, changed, make_trial
from merganser.flows.steps.answer import trial_lines
from tests.report.test_changes import write_scores
from tests.tiny import ROOT, is_clean, merganser

OWN = ("params.yaml", "dvc.lock", "report/index.html", "metrics.json")


@pytest.fixture
def content() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text()))


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in OWN]


def test_a_trial_says_each_change_with_its_value_before(content: dict[str, Any]) -> None:
    wish = Wish(("methods.ties.density=0.3", "methods.ties.scaling=2"), "ties,dts_d", "dark", 5)
    found = changed(content, wish)
    assert found["methods"]["ties"] == {"method": "ties", "reads": "deltas", "density": 0.3, "scaling": 2}
    assert list(found["methods"]) == ["ties", "average", "dts_d"]  # difference vectors start from average
    assert "learned" not in found
    assert list(found["tasks"]) == ["dark"]
    assert found["evaluation"]["split"] == {"name": "test", "examples": 5}
    assert found["trial"] == {
        "methods.ties.density": {"before": 0.5, "now": 0.3},
        "methods.ties.scaling": {"before": None, "now": 2},
        "methods": {"before": list(content["methods"]), "now": ["ties", "average", "dts_d"]},
        "tasks": {"before": ["dark", "light"], "now": ["dark"]},
        "evaluation.split": {"before": "test", "now": {"name": "test", "examples": 5}},
    }
    assert content["methods"]["ties"]["density"] == 0.5


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(("methods.teis.density=1",)), r'--set: params.yaml has no methods.teis; did you mean "ties"\?'),
        (Wish(("methods.ties.density",)), "--set: expected KEY=VALUE"),
        (Wish(only="teis"), r'--only: params.yaml has no \'teis\'; did you mean "ties"\?'),
        (Wish(tasks="drak"), r'--tasks: params.yaml has no \'drak\'; did you mean "dark"\?'),
    ],
)
def test_what_is_not_there_is_named(content: dict[str, Any], wish: Wish, said: str) -> None:
    with pytest.raises(InputError, match=said):
        changed(content, wish)


@pytest.mark.parametrize("text", ["", "methods: [ties]", "tasks: {}\nmethods: {ties: 3}"])
def test_a_trial_of_a_file_that_is_refused_says_what_is_wrong_with_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(InputError, match=r"params.yaml.*"):
        make_trial(tmp_path, Wish(only="ties"))


def test_a_trial_is_compared_with_the_comparison_by_paired_tests(tmp_path: Path) -> None:
    trial = tmp_path / TRIALS / "a1"
    for folder, right in ((tmp_path, {"ties": 100, "average": 150}), (trial, {"ties": 160, "average": 151})):
        for entry, count in right.items():
            write_scores(folder / "data", entry, {"dark": count})
    (trial / "params.yaml").write_text("tasks: {dark: {}}\nmethods: {ties: {}, average: {}}\n")
    said = list(trial_lines(tmp_path, trial))
    assert said[0].startswith("compared with the comparison: ties +30.0 (beyond the sampling error, p ")
    assert said[1].startswith("compared with the comparison: average +0.5 (within the sampling error, p ")
    write_scores(trial / "data", "average", {"dark": 40}, 50)
    assert "average +5.0 (other examples)" in list(trial_lines(tmp_path, trial))[1]


@pytest.mark.drill
def test_a_trial_leaves_the_comparison_as_it_is_and_says_what_it_changed(tiny_copy: Path, prefect_api: str) -> None:
    before = digests(tiny_copy)
    options = ("run", "--set", "methods.ties.density=0.25", "--only", "ties", "--examples", "5", "--workers", "2")
    said = merganser(tiny_copy, *options, PREFECT_API_URL=prefect_api).stdout
    assert digests(tiny_copy) == before
    assert is_clean(tiny_copy)
    (trial,) = (tiny_copy / ".dvcfleet/trials").iterdir()
    assert is_clean(trial)
    assert f"a trial in .dvcfleet/trials/{trial.name}" in said
    assert "methods.ties.density: 0.5 -> 0.25" in said
    assert "fetch@dark restored" in said
    assert "no ledger records its run" not in said
    assert said.splitlines()[-1] == f"the report: .dvcfleet/trials/{trial.name}/report/index.html"
    assert "compared with the comparison: ties " in said
    assert yaml.safe_load((trial / "dvc.lock").read_text())["stages"]["merge@ties"]["params"]["params.yaml"][
        "methods.ties"
    ] == {"method": "ties", "reads": "deltas", "density": 0.25}
    page = (trial / "report/index.html").read_text()
    assert "methods.ties.density</code>: 0.5 -&gt; 0.25" in page
    assert '<b class="mark">density 0.25</b>' in page
    assert "at most 5 examples" in page
    assert "params.yaml  trial" in merganser(trial, "lineage", "show", "report").stdout
    with closing(sqlite3.connect(tiny_copy / "mlflow.db")) as store:
        tags = store.execute("SELECT value FROM tags WHERE key = 'merganser.trial'").fetchall()
        values = store.execute("SELECT value FROM params WHERE key = 'trial.methods.ties.density'").fetchall()
    assert "methods.ties.density: 0.5 -> 0.25" in tags[0][0]
    assert values == [("0.5 -> 0.25",)]
    (experiment,) = git(tiny_copy, "for-each-ref", "--format=%(refname:lstrip=4)", "refs/exps").split()
    found = json.loads(merganser(tiny_copy, "diff", experiment, trial.name, "--json").stdout)
    assert found["parameters"]["methods.ties.density"] == [0.5, 0.25]
    assert found["code"] == []
    assert found["environment"] == {}
    assert found["only"][experiment]
    lines = {(line["entry"], line["column"]): line for line in found["scores"]}
    assert lines["ties", "dark"]["p"] is None  # not the same examples
    metrics = json.loads((trial / "data/metrics/ties/dark.json").read_text())
    assert lines["ties", "dark"]["second"] == metrics["value"]
    same = merganser(tiny_copy, "diff", experiment, "workspace", "--page", "diff.html").stdout
    assert "parameters: the same" in same
    assert re.search(r"ties/mean +(\S+) -> +\1 +\+0.00  p 1.000", same)
    assert f"<h1>{experiment} and workspace</h1>" in (tiny_copy / "diff.html").read_text()
    refused = merganser(tiny_copy, "diff", "no-such-run", "workspace", check=False)
    assert refused.returncode == 2
    assert experiment in refused.stderr
    with opened(tiny_copy) as repo:
        copy_ledgers(repo)
    (execution,) = (one for one in executions(tiny_copy / ".dvcfleet") if one.ledger and one.stage == "merge@ties")
    assert execution.ledger.startswith(trial.name)
    again = merganser(tiny_copy, *options, PREFECT_API_URL=prefect_api).stdout
    assert "nothing to do" in again
