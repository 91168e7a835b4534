"""Write the report: the page, the tables, the plots, the scores, and the metrics that DVC shows."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from merganser.config.params import Params
from merganser.config.points import check_points
from merganser.errors import InputError
from merganser.outputs import fresh_folder, write_json
from merganser.report.comparison import Comparison, metrics_of
from merganser.report.formats import write_tables
from merganser.report.page import render_page
from merganser.report.plots import plot_style
from merganser.report.sections import sections
from merganser.tasks import stages
from merganser.tasks.stage import run_main, stage

PAGE = "index.html"
ENTRIES = "entries"  # a file an entry: `dvc metrics show report/entries` prints a row for each


def draw_plots(comparison: Comparison) -> dict[str, str]:
    """Draw the plots of every section; return SVG text by name."""
    plots: dict[str, str] = {}
    with plot_style():
        for name, section in sections().items():
            if (data := comparison.of(section.read)) is not None:
                drawn = section.plots(data, comparison.wording)
                check_new(name, "plot", drawn, plots)
                plots |= drawn
    return plots


def check_new(section: str, what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse what a section calls by the name that an earlier one gave: it would stand in the place of that."""
    if twice := [name for name in names if name in known]:
        where = f"merganser/report/sections/{section}.py"
        raise InputError(f"{where}: another section has a {what} called {twice[0]}; give yours another name")


def write_report(folder: Path, comparison: Comparison, plots: Mapping[str, str]) -> None:
    """Write the tables of every section, the plots, each entry's metrics and the page into an empty folder."""
    (folder / "plots").mkdir()
    for name, section in sections().items():
        data = comparison.of(section.read)
        tables = section.without if data is None else section.tables(data)
        check_new(name, "table", tables, [path.relative_to(folder).as_posix() for path in folder.rglob("*")])
        write_tables(folder, tables)
    for name, svg in plots.items():
        (folder / "plots" / f"{name}.svg").write_text(svg, encoding="utf-8")
    (folder / ENTRIES).mkdir()
    for row in comparison.rows:
        write_json(folder / ENTRIES / f"{row.entry}.json", metrics_of(row))
    (folder / PAGE).write_text(render_page(comparison, plots), encoding="utf-8")


@stage()
def main(params: Params) -> None:
    """Compare every declared entry on every declared task; write `report/`, the scores and `metrics.json`."""
    check_points(params)  # DVC would not have run the stages of a study that was added since
    comparison = Comparison(params, stages)
    plots = draw_plots(comparison)
    with fresh_folder(stages.REPORT) as folder:
        write_report(folder, comparison, plots)
    write_json(stages.SCORES, comparison.numbers)
    write_json(stages.SUMMARY, comparison.summary)
    print(f"{stages.REPORT}/{PAGE}: {len(comparison.rows)} entries on {len(comparison.tasks)} tasks")


if __name__ == "__main__":
    run_main(main)
