from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from merganser.evaluation.examples import Results
from merganser.report.formats import Wording, write_tables
from merganser.report.plots import plot_style
from merganser.report.sections.confusions import MOST, TEMPLATE, Confusions, class_name, confusion, plots, tables
from merganser.report.templates import open_templates


def test_a_confusion_matrix_has_a_row_for_each_label_and_its_diagonal_is_the_recall() -> None:
    generator = np.random.default_rng(0)
    label, prediction = generator.integers(0, 4, 200) * 10, generator.integers(0, 4, 200) * 10
    found = confusion(Results(prediction=prediction, label=label))
    assert found is not None
    assert found.sum(1) == pytest.approx(1)
    recalls = [(prediction[label == each] == each).mean() for each in np.unique(label)]
    assert found.diagonal() == pytest.approx(recalls)


def test_an_answer_that_is_no_label_has_a_column_and_an_empty_row() -> None:
    found = confusion(Results(prediction=np.array([1, 7]), label=np.array([1, 1])))
    assert found is not None
    assert found[0].tolist() == [0.5, 0.5]
    assert np.isnan(found[1]).all()


def test_no_class_name_is_a_formula_for_a_spreadsheet(tmp_path: Path) -> None:
    names = ["=HYPERLINK()", "@SUM(1)", "+a", "-1", "a=b"]
    write_tables(tmp_path, tables(Confusions("ties", {"dark": np.eye(5)}, {"dark": names})))
    lines = pandas.read_csv(tmp_path / "confusions.csv", dtype=str)
    assert list(lines.label_name) == ["'=HYPERLINK()", "'@SUM(1)", "'+a", "-1", "a=b"]
    assert list(lines.share) == ["1.0"] * 5


@pytest.mark.parametrize(
    "results",
    [
        Results(score=np.ones(3)),
        Results(prediction=np.array([0.5]), label=np.array([0.25])),
        Results(prediction=np.arange(MOST + 1), label=np.arange(MOST + 1)),
        Results(prediction=np.array([], dtype=np.int64), label=np.array([], dtype=np.int64)),
    ],
)
def test_what_has_no_classes_or_too_many_has_none(results: Results) -> None:
    assert confusion(results) is None


def test_an_answer_that_is_no_class_is_named_and_not_counted() -> None:
    names = [class_name(["no", "yes"], label) for label in (-1, 0, 1, 2)]
    assert names == ["no class", "no", "yes", "2"]
    with plot_style():
        drawn = plots(Confusions("ties", {"one": np.eye(3)}, {"one": names[:3]}), Wording("accuracy", "%"))
    assert "one, 2 classes" in drawn["confusions"]


def test_each_task_has_a_panel_that_names_its_classes() -> None:
    with plot_style():
        names = {"one": ["cat", "$^$", "hen"], "two": ["no", "a name of many letters"]}
        found = Confusions("ties", {"one": np.eye(3), "two": np.eye(2)}, names)
        drawn = plots(found, Wording("accuracy", "%"))["confusions"]
    assert drawn.count(">cat</text>") == drawn.count(">a name of many…</text>") == 2  # a row and a column
    assert drawn.count(">$^$</text>") == 2
    assert "one, 3 classes" in drawn
    assert "two, 2 classes" in drawn


@pytest.mark.parametrize(("tasks", "left_out"), [(["one"], False), (["one", "means"], True)])
def test_the_tasks_without_a_panel_are_named(tasks: list[str], left_out: bool) -> None:
    shown = Confusions("dare", {"one": np.eye(2)}, {"one": ["a", "b"]})
    template = open_templates("merganser.report").from_string(TEMPLATE)
    said = template.render(confusions=shown, params=SimpleNamespace(measured=tasks), plots={"confusions": ""})
    assert ("Left out: means (" in said) == left_out
