"""A study is its settings, its merges and a section of the report."""

import json
from pathlib import Path

import pytest

from merganser.config.text import with_values
from tests.chapters import Copy
from tests.tasks.comparison import TASKS

SETTINGS = "    leave_one_out: dict[str, Entry] = Field(default={})\n"
MERGES = '''    def leave_one_out(self, name: str) -> dict[str, Point]:
        """Return the merges of all tasks but one by an entry, each measured on the task that is left out."""
        entry, tasks = self.params.studies.leave_one_out[name], sorted(self.params.tasks)
        rest = {left: tuple(task for task in tasks if task != left) for left in tasks}
        where = f"studies.leave_one_out.{name}"
        return {left: self._point(where, entry, tasks=rest[left], others=(left,)) for left in tasks}

'''
LISTED = "        yield from (self.leave_one_out(name).values() for name in studies.leave_one_out)\n"
SECTION = '''
"""The study of tasks that are left out: what the other tasks' merge scores on each."""

from merganser.config.points import SCORES, Points
from merganser.outputs import read_json
from merganser.report.sections import Section


def read(comparison):
    folder, points = comparison.paths.POINTS, Points(comparison.params)
    return {
        name: [
            {"left_out": task, "score": read_json(folder / point.folder / SCORES)["scores"][task]["value"]}
            for task, point in points.leave_one_out(name).items()
        ]
        for name in comparison.params.studies.leave_one_out
    } or None


TEMPLATE = """
<section id="left-out">
{% for name, rows in study_leave_one_out.items() %}<p>{{ name }}: {{ rows | length }} tasks</p>{% endfor %}
</section>
"""
SECTION = Section(read=read, numbers=lambda found: found, inside="studies", template=TEMPLATE)
'''
STUDY = """
from pathlib import Path
from merganser.config.loading import complete_file, load_params
from merganser.config.points import write_points
from merganser.errors import InputError
from merganser.tasks import record
from tests.tasks.comparison import METHODS, measure_points, report_without_plots

complete_file(Path("params.yaml"))
write_points(load_params())
measure_points()
for entry in METHODS:
    record.main([entry])
report_without_plots()
content = Path("params.yaml").read_text()
for mistake in ("b/d: {}", "bad: {method: tiess, reads: deltas}"):
    Path("params.yaml").write_text(content.replace("leave_one_out: {", f"leave_one_out: {{{mistake}, "))
    try:
        load_params()
    except InputError as error:
        print(error)
"""


def test_a_study_is_its_settings_its_merges_and_a_section(folder: Path, tmp_path: Path) -> None:
    copy, points = Copy(tmp_path / "code", "Add a study"), "merganser/config/points.py"
    copy.insert("merganser/config/sections.py", SETTINGS, "    ablations: dict[")
    copy.insert("merganser/config/sections.py", '"leave_one_out", ', '"sweeps", "ablations"')
    copy.insert(points, MERGES, "    def search(self")
    copy.insert(points, LISTED, "        yield from (self.budgets(name)")
    copy.add("merganser/report/sections/study_leave_one_out.py", SECTION)
    added = {("studies", "leave_one_out"): {"average": {}}, ("studies", "tasks", "methods", "average", "unseen"): True}
    params = folder / "params.yaml"
    params.write_text(with_values(params.read_text(), added.items()))
    done = copy.run("-c", STUDY, folder=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "points.yaml").read_text().count('"of": "studies.leave_one_out.average"') == len(TASKS)
    found = json.loads((folder / "report/studies.json").read_text())
    scores = {row["left_out"]: row["score"] for row in found["leave_one_out"]["average"]}
    assert list(scores) == list(TASKS)
    for row in found["tasks"]["subsets"]:
        if row["entry"] == "average" and row["tasks"] == 2:
            (left,) = set(TASKS) - set(row["subset"])
            own = json.loads((folder / f"data/metrics/individual/{left}.json").read_text())["value"]
            assert scores[left] == pytest.approx(row["unseen"] * own)
    assert "<p>average: 3 tasks</p>" in (folder / "report/index.html").read_text()
    assert "leave_one_out.b/d: not a name" in done.stdout
    assert 'leave_one_out.bad: unknown method "tiess"; did you mean "ties"?' in done.stdout
