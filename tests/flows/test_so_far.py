"""The page of the scores that are there while a run goes on."""

import json
from contextlib import chdir
from pathlib import Path

from merganser.flows.pages.so_far import SoFar, first_evaluations
from merganser.report.so_far import PAGE

PARAMS = """
tasks: {dark: {}, light: {}, bare: {kind: unmeasured}}
methods: {ties: {}, average: {}, sum: {}}
"""


def scored(entry: str, task: str, value: float) -> str:
    """Write a score as its stage does; return the stage's name."""
    path = Path("data/metrics", entry, f"{task}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"value": value}))
    return f"evaluate@{entry}-{task}"


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if "<tr><th" in line and "thead" not in line]


def test_the_page_is_there_from_the_first_score_grows_and_goes_with_the_report(tmp_path: Path) -> None:
    said: list[str] = []
    with chdir(tmp_path):
        Path("params.yaml").write_text(PARAMS)
        so_far, ended = SoFar(Path("params.yaml")), {"code", scored("ties", "dark", 0.5)}
        scored("sum", "dark", 0.9)  # of an earlier run, and not up to date
        so_far.note(ended, "code", said.append)
        assert not PAGE.exists()
        for entry, task, value in (("ties", "light", 0.75), ("average", "dark", 0.875)):
            latest = scored(entry, task, value)
            ended.add(latest)
            so_far.note(ended, latest, said.append)
        assert "Partial: 3 of 6 scores" in PAGE.read_text()
        ties, average = rows()  # nothing of `sum`
        assert ">62.5</td><td>50.0</td><td>75.0</td>" in ties
        assert ">1 of 2</td><td>87.5</td><td>–</td>" in average
        latest = scored("average", "light", 0.625)
        so_far.note({*ended, latest}, latest, said.append)
        assert "average" in rows()[0]  # the highest mean first
        assert said == [f"the report so far, marked as partial, grows with each score: {PAGE}"]
        so_far.end({"report"})
        assert not PAGE.exists()


def test_what_fewest_stages_are_run_for_is_evaluated_first(tmp_path: Path) -> None:
    names = {"base": 0, "learned": 3, "average": 1, "ties": 1, "tsv": 2}
    entries = ", ".join(f"{name}: {{}}" for name in names)
    (tmp_path / "params.yaml").write_text(f"tasks: {{dark: {{}}, light: {{}}}}\nmethods: {{{entries}}}")
    needs: dict[str, list[str]] = {f"{name}-{number}": [] for name, count in names.items() for number in range(count)}
    of = {name: [each for each in needs if each.startswith(f"{name}-")] for name in names}
    needs |= {f"evaluate@{name}-{task}": of[name] for name in names for task in ("dark", "light")}
    needs.pop("evaluate@base-dark")  # of a plan without it
    wanted = {f"evaluate@{name}-{task}" for name in ("base", "average", "ties") for task in ("dark", "light")}
    assert first_evaluations(tmp_path / "params.yaml", needs) == wanted - {"evaluate@base-dark"}


def test_a_run_says_where_the_report_so_far_is(tiny_said: str, tiny_run: Path) -> None:
    assert tiny_said.count(f"grows with each score: {PAGE}") == 1
    assert not (tiny_run / PAGE).exists()
