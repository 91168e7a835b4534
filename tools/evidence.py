"""Write the tables of docs/evidence.md and docs/evidence-tables.md from runs of real suites.

`python -m tools.evidence minilm-0=FOLDER/report ...`

docs/evidence/NAME.json keeps a report's figures, named by its suite and seed: each entry's means, its scores by task,
the published orders, and the commit and the digest of params.yaml that the report names. The pages' tables, each below
a line `<!-- SUITE TABLE -->`, are written from all files that lie there; without a report, from these alone.
A test holds the page to them.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from merganser.measures.scores import LEVEL
from merganser.measures.significance import holm

ROOT = Path(__file__).resolve().parent.parent
PAGES, KEPT = (ROOT / "docs/evidence.md", ROOT / "docs/evidence-tables.md"), ROOT / "docs/evidence"
MEAN, INDIVIDUAL = "mean", "individual"
# What papers report: the lower entry, the higher one, where. All on CLIP ViT-B/32 with eight image tasks.
ORDERS = (
    ("average", "task_arithmetic", "SFTM, table 1: 65.8, 70.1"),
    ("task_arithmetic", "ties", "SFTM, table 1: 70.1, 73.6"),
    ("ties", "pcb", "SFTM, table 1: 73.6, 76.3"),
    ("pcb", "sftm", "SFTM, table 1: 76.3, 77.4"),
    ("drm_v", "drm_h", "DRM, table 1: 72.8, 77.5"),
    ("ties", "drm_h", "DRM, table 1: 72.5, 77.5"),
    ("task_arithmetic", "consensus", "TSV: 70.8, 75.0"),
    ("consensus", "tsv_m", "TSV: 75.0, 85.9"),
    ("ties", "tsv_m", "FusionBench: 72.2, 83.1"),
    ("ties", "iso_c", "FusionBench: 72.2, 82.8"),
    ("pcb", "wudi", "WUDI: 76.3, 85.2"),
    ("regmean", "regmean_plus_plus", "FusionBench: 82.4, 84.4"),
    ("emr", "t_switch", "DTS, table 1: 88.2, 90.2"),
    ("t_switch", "dts_t", "DTS, table 1: 90.2, 90.3"),
)
_TABLE = re.compile(r"(?P<head><!-- (?P<suite>[\w-]+) (?P<table>\w+) -->\n)\n?(?:(?:\|.*\n)+(?:\n|\Z))?")

Run = Mapping[str, Any]


def read_report(report: Path) -> Run:
    """Read a report's tables and origin; a report without scores by task or an origin gives none."""
    behind = {line["entry"]: float(line["corrected"]) < LEVEL for line in _lines(report / "significance.csv")}
    entries = {}
    for line in _lines(report / "results.csv"):
        numbers = {"mean": line["mean"], "error": line["stderr"], "individual": line["normalised_score"]}
        known = {name: round(float(value), 6) for name, value in (numbers | {"memory": line["amr"]}).items()}
        kind = {"group": line["group"], "data": line["data"], "behind": behind.get(line["entry"], False)}
        entries[line["entry"]] = {**kind, **known}
    pairs = {(line["entry"], line["other"]): line for line in _lines(report / "pairs.csv")}
    orders = [found for low, high, _ in ORDERS if (found := _order(pairs, low, high))]
    corrected = holm(np.array([p for *_, p in orders])).tolist() if orders else []
    tested = [[*names, p] for (*names, _), p in zip(orders, corrected, strict=True)]
    run: dict[str, Any] = {"entries": entries, "orders": tested}
    if (report / "plots/scores.csv").is_file():
        run["tasks"] = _by_task(report / "plots/scores.csv")
    if (report / "origin.json").is_file():
        origin = json.loads((report / "origin.json").read_text(encoding="utf-8"))
        run["origin"] = {"commit": origin["commit"], "params": origin["choices"]}
    return run


def _by_task(table: Path) -> dict[str, dict[str, list[float | None]]]:
    """Read each entry's score on each task, its standard error, and the score divided by the individual model's."""
    with table.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    own = {line["task"]: float(line["value"]) for line in lines if line["entry"] == INDIVIDUAL}
    found: dict[str, dict[str, list[float | None]]] = {}
    for line in lines:
        task, score = line["task"], float(line["value"])
        figures = [score, float(line["stderr"]) if line["stderr"] else None, score / own[task] if task in own else None]
        rounded = [None if figure is None else round(figure, 6) for figure in figures]
        found.setdefault(line["entry"], {})[task] = rounded
    return found


def _lines(table: Path) -> list[dict[str, str]]:
    """Read a table; of one with a line a task and one of all, the latter."""
    with table.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if line.get("column", MEAN) == MEAN]


def _order(pairs: Mapping[tuple[str, str], Mapping[str, str]], low: str, high: str) -> list[Any] | None:
    """Return two entries, how much higher the second is, and the p-value of that; None where one was not run."""
    for pair, sign in (((high, low), 1), ((low, high), -1)):
        if pair in pairs:
            return [low, high, round(sign * float(pairs[pair]["difference"]), 6), float(pairs[pair]["p"])]
    return None


def read_runs(folder: Path) -> dict[str, list[Run]]:
    """Read the runs that are kept, by suite, in the order of their seeds."""
    runs: dict[str, list[Run]] = {}
    for file in sorted(folder.glob("*-*.json")):
        runs.setdefault(file.stem.rpartition("-")[0], []).append(json.loads(file.read_text(encoding="utf-8")))
    return runs


def figures(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, float]]:
    """Return each entry's figures in per cent, the means over a suite's runs, by `SUITE.ENTRY` and column."""
    return {
        f"{suite}.{entry}": {name: 100 * value for name, value in _summary(of_suite, entry).items()}
        for suite, of_suite in runs.items()
        for entry in _entries(of_suite)
    }


def _entries(runs: Sequence[Run]) -> dict[str, Any]:
    """Return all entries by name: a later seed may have more, or fewer."""
    return {name: each for run in runs for name, each in run["entries"].items()}


def _summary(runs: Sequence[Run], entry: str) -> dict[str, float]:
    """Return an entry's means over the runs, the sampling error of its mean, and their sample standard deviation."""
    found = [run["entries"][entry] for run in runs if entry in run["entries"]]
    numbers = {name: mean(each[name] for each in found) for name in ("mean", "individual", "memory")}
    errors = sqrt(sum(each["error"] ** 2 for each in found)) / len(found)
    return numbers | {"error": errors, "spread": stdev(each["mean"] for each in found) if len(found) > 1 else 0.0}


def scores(runs: Sequence[Run], parts: bool) -> Iterator[str]:
    """Give the lines of a table of entries, the lowest mean first: those with a part a task, or the other ones."""
    head = "entry | data | mean, % | sampling error | spread over seeds | of individual, % | memory, % | below the best"
    yield f"| {head} |"
    yield "|---|---|---|---|---|---|---|---|"
    entries = _entries(runs)
    shown = [name for name, each in entries.items() if (each["group"] == "parts" or name == INDIVIDUAL) is parts]
    for name in sorted(shown, key=lambda name: _summary(runs, name)["mean"]):
        of = {key: f"{100 * value:.1f}" for key, value in _summary(runs, name).items()}
        behind = [run["entries"][name]["behind"] for run in runs if name in run["entries"]]
        spread = of["spread"] if len(behind) > 1 else ""
        told = "" if entries[name]["group"] == "reference" else f"{sum(behind)} of {len(behind)}"
        data = "" if entries[name]["data"] == "no data" else entries[name]["data"].partition(",")[0]
        cells = [f"`{name}`", data, of["mean"], of["error"], spread, of["individual"], of["memory"], told]
        yield f"| {' | '.join(cells)} |"


def by_task(runs: Sequence[Run]) -> Iterator[str]:
    """Give the lines of a table of entries by task, the lowest mean first, from the runs whose files have tasks."""
    runs = [run for run in runs if "tasks" in run]
    if not runs:
        return
    tasks = list(next(iter(runs[0]["tasks"].values())))
    yield f"| {' | '.join(['entry', *tasks])} |"
    yield "|---" * (1 + len(tasks)) + "|"
    names = dict.fromkeys(name for run in runs for name in run["tasks"])
    for name in sorted(names, key=lambda name: _summary(runs, name)["mean"]):
        scored = [run["tasks"][name] for run in runs if name in run["tasks"]]
        cells = [f"{100 * mean(each[task][0] for each in scored):.1f}" for task in tasks]
        yield f"| {' | '.join([f'`{name}`', *cells])} |"


def orders(runs: Sequence[Run]) -> Iterator[str]:
    """Give the lines of a table of published orders: what each run has of them."""
    told_apart = "holds | reversed | not told apart"
    yield f"| lower | higher | published | difference here, points, by seed | {told_apart} | over seeds |"
    yield "|---|---|---|---|---|---|---|---|"
    for low, high, where in ORDERS:
        found = [order[2:] for run in runs for order in run["orders"] if order[:2] == [low, high]]
        if found:
            by_seed = ", ".join(f"{100 * difference:+.1f}" for difference, _ in found)
            told = [difference > 0 for difference, p in found if p < LEVEL]
            counts = f"{sum(told)} | {len(told) - sum(told)} | {len(found) - len(told)}"
            over_seeds = _over_seeds([difference for difference, _ in found])
            yield f"| `{low}` | `{high}` | {where} | {by_seed} | {counts} | {over_seeds} |"


def _over_seeds(differences: Sequence[float]) -> str:
    """Say the mean difference with its 95 % interval by Student's t, each seed one observation; of one seed nothing.

    >>> _over_seeds([0.104, 0.084, 0.035])  # t = 3.62, where two degrees of freedom ask for 4.30
    '+7.4 ± 8.8: not told apart'
    """
    if len(differences) == 1:
        return ""
    middle, count = mean(differences), len(differences)
    half = float(student_t.ppf(1 - LEVEL / 2, count - 1)) * stdev(differences) / sqrt(count)
    told = "not told apart" if abs(middle) <= half else "holds" if middle > 0 else "reversed"
    return f"{100 * middle:+.1f} ± {100 * half:.1f}: {told}"


TABLES: Mapping[str, Callable[[Sequence[Run]], Iterator[str]]] = {
    "single": partial(scores, parts=False),
    "parts": partial(scores, parts=True),
    "tasks": by_task,
    "orders": orders,
}


def with_tables(page: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the page with its tables as the runs have them; those of a suite without a run are empty."""

    def table(found: re.Match[str]) -> str:
        of_suite = runs.get(found["suite"])
        lines = list(TABLES[found["table"]](of_suite)) if of_suite else []
        return found["head"] + "\n" + "".join(f"{line}\n" for line in [*lines, ""] if lines)

    return _TABLE.sub(table, page).rstrip("\n") + "\n"


def main(reports: Sequence[str]) -> None:
    """Keep the reports' figures, and write the pages."""
    for name, _, report in (each.partition("=") for each in reports):
        kept = json.dumps(read_report(Path(report)), indent=1)
        compact = re.sub(r"\{([^{}]*)\}|\[([^\[\]{}]*)\]", lambda part: " ".join(part[0].split()), kept)
        (KEPT / f"{name}.json").write_text(compact + "\n", encoding="utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), read_runs(KEPT)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
