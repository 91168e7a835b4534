"""Results as pandas frames: a report's tables, and the stages' scores."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pandas import DataFrame, read_csv, read_parquet
from pandas.errors import EmptyDataError, ParserError

from merganser.errors import InputError, refusing
from merganser.report.formats import study_tables

HIDDEN = ("reads", "family", "group", "data", "forwards", "backwards", "before_s", "peak_rss_bytes")
RESULTS = ("results.csv", "report/results.csv")  # from a report's folder on, or from a repository's
METRICS = "data/metrics"
# The columns that are text whatever stands in them: an entry may be called 1e5, or nan.
TEXTS = ("entry", "method", "reads", "family", "group", "data", "task", "metric", "budget", "column", "other", "number")
NUMBERS = {"count": "Int64", "peak_rss_bytes": "Int64", "forwards": "Int64", "backwards": "Int64"}
SCORE = ("metric", "value", "stderr", "count", "device", "known", "router", "spread")


@dataclass(frozen=True)
class Report:
    """A report's tables as frames, each read on first use."""

    folder: Path

    @cached_property
    def results(self) -> DataFrame:
        """Return one row per entry: its method, its scores by task, `mean`, costs."""
        return _table(self.folder / "results.csv")

    @cached_property
    def pairs(self) -> DataFrame:
        """Return one row per pair of entries: the difference of their scores, and a paired test's p-value."""
        return read_parquet(self.folder / "pairs.parquet")

    @cached_property
    def studies(self) -> dict[str, DataFrame]:
        """Return one frame per study, with a row per point; a sweep `scaling` is called `sweeps.scaling`."""
        content = json.loads((self.folder / "studies.json").read_text(encoding="utf-8"))
        return {
            name: DataFrame(table["data"], columns=table["columns"]) for name, table in study_tables(content).items()
        }

    def _repr_html_(self) -> str:
        """Show the entries and their scores, best mean first, in a notebook."""
        shown = self.results.drop(columns=[name for name in HIDDEN if name in self.results])
        html: str = shown.sort_values("mean", ascending=False).to_html(index=False, float_format="{:.3f}".format)
        return html


def report_folder(path: Path) -> Path:
    """Return a report's folder, given it or a comparison's; raise InputError if there is none."""
    for folder in (path, path / "report"):
        if (folder / "results.csv").is_file():
            return folder
    raise InputError(f"{path}: no report there; name a comparison's folder or its report's; `merganser run` writes it")


def load_results(path: Path) -> DataFrame:
    """Read a report's table, or a folder of scores, as a frame; raise InputError if there is neither."""
    if path.is_file():
        return _table(path)
    tables = [path / name for name in RESULTS if (path / name).is_file()]
    if tables:
        return _table(tables[0])
    folder = path / METRICS if (path / METRICS).is_dir() else path
    files = sorted(folder.glob("*/*.json"))
    if not files:
        wanted = f"a report's folder or one of its tables, a repository with a report, or {METRICS}"
        raise InputError(f"{path}: holds no results; name {wanted}; `merganser run` writes them")
    return _scores(files)


def _table(path: Path) -> DataFrame:
    try:
        # Only what is empty is missing: "nan" and "NA" are names that a task may have.
        return read_csv(path, dtype=dict.fromkeys(TEXTS, str) | NUMBERS, keep_default_na=False, na_values=[""])
    except (EmptyDataError, ParserError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: not a table of a report ({error})") from error


def _scores(files: list[Path]) -> DataFrame:
    rows = []
    for file in files:
        try:
            score = json.loads(file.read_text(encoding="utf-8"))
            rows.append({"entry": file.parent.name, "task": file.stem, **{name: score.get(name) for name in SCORE}})
        except (ValueError, AttributeError) as error:
            raise InputError(f"{file}: not the score of an evaluation ({error})") from error
    numbers = dict.fromkeys(("value", "stderr", "known", "router", "spread"), "float64")
    with refusing(f"{files[0].parents[1]}: not the scores of evaluations", "evaluate again"):
        return DataFrame(rows).astype({**numbers, "count": "Int64"})
