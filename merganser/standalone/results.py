"""Results as frames: the tables of a report, and the scores that stages wrote."""

import json
from pathlib import Path

from pandas import DataFrame, read_csv
from pandas.errors import EmptyDataError, ParserError

from merganser.errors import InputError

RESULTS = ("results.csv", "report/results.csv")  # from a report's folder on, or from a repository's
METRICS = "data/metrics"
# The columns that are text whatever stands in them: an entry may be called 1e5, or nan.
TEXTS = ("entry", "method", "reads", "family", "group", "data", "task", "metric", "budget", "column", "other", "number")
NUMBERS = {"count": "Int64", "peak_rss_bytes": "Int64", "forwards": "Int64", "backwards": "Int64"}
SCORE = ("metric", "value", "stderr", "count", "device", "known", "router", "spread")


def load_results(path: Path) -> DataFrame:
    """Read a table of a report, or a folder of scores, as a frame; raise InputError where there is neither."""
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
        columns = list(read_csv(path, nrows=0).columns)
        types = dict.fromkeys(TEXTS, str) | NUMBERS
        kept = {name: types.get(name, None) for name in columns if name in types}
        return read_csv(path, dtype=kept, keep_default_na=False, na_values=[""])
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
    return DataFrame(rows).astype({**numbers, "count": "Int64"})
