"""A section of the report, a module that nothing else names: its table, its plot and its place on the page."""

import csv
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from merganser.code_digest import ROOT
from merganser.errors import InputError
from merganser.report import sections
from merganser.tasks import record, report
from tests.tasks.comparison import METHODS, inside, plots_of, report_without_plots

MODULE = '''
"""How long the entries' names are."""

from merganser.report.sections import Section
from merganser.report.plots import canvas, to_svg


def read(comparison):
    return {row.entry: len(row.entry) for row in comparison.rows}


def plots(lengths, wording):
    figure, axes = canvas(3, 2)
    axes.bar(list(lengths), list(lengths.values()))
    axes.set_title(f"{wording.name} is not shown")
    return {"lengths": to_svg(figure)}


TEMPLATE = """
<section id="toy">
  <p>{{ toy | length }} names, {{ longest }} letters; {{ params.tasks | length }} {{ term("mean", "tasks") }}</p>
  {{ plots.lengths }}
</section>
"""
SECTION = Section(
    read=read,
    tables=lambda lengths: {"lengths.csv": (["entry", "letters"], lengths.items())},
    plots=plots,
    page=lambda lengths: {"longest": max(lengths.values())},
    template=TEMPLATE,
)
'''


@pytest.fixture(scope="module")
def recorded(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("recorded") / "comparison"))
    with inside(made):
        for entry in METHODS:
            record.main([entry])
    return made


@pytest.fixture
def place(recorded: Path, tmp_path: Path) -> Iterator[Path]:
    """Work in a recorded comparison, where sections are looked for in a further folder."""
    sections.__path__.append(str(tmp_path))
    with inside(recorded):
        yield tmp_path
    sections.__path__.remove(str(tmp_path))
    for name in ("toy", "alphabet"):
        sys.modules.pop(f"{sections.PACKAGE}.{name}", None)
        vars(sections).pop(name, None)


def test_a_section_is_one_file(place: Path) -> None:
    (place / "toy.py").write_text(MODULE)
    report_without_plots(lambda found: plots_of(found, "toy"))
    with Path("report/lengths.csv").open() as file:
        assert {line["entry"]: int(line["letters"]) for line in csv.DictReader(file)} == {n: len(n) for n in METHODS}
    assert "accuracy is not shown" in Path("report/plots/lengths.svg").read_text()
    page = Path("report/index.html").read_text()
    section = page[page.index('<section id="toy">') :].partition("</section>")[0]
    assert "5 names, 10 letters; 3 <button" in section
    assert "accuracy is not shown" in section
    assert page.index('id="entries"') < page.index('id="toy"') < page.index('id="terms"')


def test_its_template_may_be_a_file_beside_it(place: Path) -> None:
    head, _, rest = MODULE.partition('TEMPLATE = """\n')
    template, _, end = rest.partition('"""\n')
    (place / "toy.py").write_text(head + end.replace("    template=TEMPLATE,\n", ""))
    (place / "toy.html.j2").write_text(template)
    report_without_plots(lambda found: plots_of(found, "toy"))
    assert "5 names, 10 letters" in Path("report/index.html").read_text()


def test_a_section_that_reads_nothing_is_left_out(place: Path) -> None:
    (place / "toy.py").write_text(MODULE.replace("    return {row", "    return None and {row"))
    report_without_plots()
    assert not Path("report/lengths.csv").exists()
    assert 'id="toy"' not in Path("report/index.html").read_text()


def test_the_section_in_contributing_is_one_too(place: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (found,) = re.findall(r"<!-- contributing: section -->\n```python\n(.*?)```", page, re.DOTALL)
    (place / "alphabet.py").write_text(found)
    report_without_plots()
    assert f"<p>{', '.join(sorted(METHODS))}</p>" in Path("report/index.html").read_text()


@pytest.mark.parametrize(
    ("given", "taken", "what"),
    [
        ("lengths.csv", "results.csv", "table"),
        ("lengths.csv", "plots/scores.csv", "table"),
        ('"lengths"', '"memory"', "plot"),
    ],
)
def test_a_table_or_plot_of_another_sections_name_is_refused(place: Path, given: str, taken: str, what: str) -> None:
    (place / "toy.py").write_text(MODULE.replace(given, taken).replace("plots.lengths", f"plots[{taken}]"))
    write = report_without_plots if what == "table" else lambda: report.main([])
    with pytest.raises(InputError, match=rf"sections/toy\.py: another section has a {what} called "):
        write()
