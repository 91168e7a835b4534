"""The result of a run in a few lines: the best entries for each budget, changes since the last run, and the report.

The metrics from before a run, and the reasons why its stages ran, are saved for the report's section on changes.
"""

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from math import floor, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from dvcfleet.disk import read_json, write_durably
from dvcfleet.lineage.contents import was_changed
from dvcfleet.repository import STATE_FOLDER
from merganser.config import PARAMS
from merganser.errors import InputError
from merganser.flows.repositories.identity import comparison_of_trial
from merganser.limits import read_yaml
from merganser.report.formats import BUDGETS, p_value
from merganser.tasks.stages import DATA, EXAMPLES, METRICS, PREVIOUS, PREVIOUS_METRICS, SCORES, SUMMARY, UNSEEN


def keep_previous_metrics(folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
    """Save the metrics before the run's first stage changes them, and the reasons why its stages run.

    A run that is resumed after a failure or a kill keeps the metrics of its first start.
    """
    path = folder / PREVIOUS_METRICS.name
    kept = _kept(path)
    if kept.get("run") != run:
        kept = {"run": run, "numbers": read_numbers(), "causes": {}}
        _keep_files(folder / PREVIOUS.name)
    kept["causes"] |= causes
    write_durably(path, json.dumps(kept))


def read_numbers() -> dict[str, Any]:
    """Return each entry's scores from the folder's report, or from an earlier version's metrics.json; else {}."""
    table = read_json(SCORES) or read_json(SUMMARY) or {}
    return table if _is_table(table) else {}


def _keep_files(folder: Path) -> None:
    """Keep the scores and the examples' results as hard links: stages write new files and do not change these."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in (METRICS, EXAMPLES, UNSEEN):
        with suppress(OSError):  # without them the report tests no difference
            shutil.copytree(source, folder / source.relative_to(METRICS.parent), copy_function=link_or_copy)


def link_or_copy(source: str, copy: str) -> None:
    """Hard-link a file, or copy it if the disk has no links."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, copy)


def kept_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics from before the run, by entry; empty if there were none."""
    return dict(_kept(folder / PREVIOUS_METRICS.name).get("numbers", {}))


def _kept(path: Path) -> dict[str, Any]:
    """Read saved metrics; return none if they are damaged, as after a power cut."""
    answer = read_json(path)
    if answer and _is_table(answer.get("numbers")) and isinstance(answer.get("causes"), dict):
        return answer
    if path.exists():
        print(f"{path} was damaged: the report shows no changes since the last run", file=sys.stderr)
    return {}


def _is_table(numbers: Any) -> bool:
    return isinstance(numbers, dict) and all(isinstance(values, dict) for values in numbers.values())


REPORT = "report"  # the stage, and its folder
WORSE = "worse.csv"  # of the report
NAMED = 3
Row = dict[str, str]


def say_answer(done: Set[str], say: Callable[[str], None]) -> None:
    """Print the result if a run wrote the report of the current folder."""
    if REPORT not in done:
        return
    for line in report_lines(Path()):
        say(line)
    for line in changed_lines(kept_metrics(Path(STATE_FOLDER)), read_numbers()):
        say(line)
    for line in _worse_lines(Path()):
        say(line)
    original = comparison_of_trial(Path.cwd())
    if original is not None:
        for line in trial_lines(original, Path.cwd()):
            say(line)
    say(f"the report: {os.path.relpath(REPORT, original)}/index.html")


def trial_lines(original: Path, trial: Path) -> Iterator[str]:
    """Return lines with the differences between a trial's means and the comparison's; empty without scores."""
    from merganser.measures.scores import LEVEL
    from merganser.report.paired import compare_scores  # loads PyTorch
    from merganser.report.run_scores import files_in

    params = read_yaml(trial / PARAMS)
    names = (list(params["methods"]), list(params["tasks"]), list(params.get("unseen", {})))
    lines = compare_scores(*names, files_in(original / DATA), files_in(trial / DATA))
    means = sorted((line for line in lines if line.column == "mean"), key=lambda line: -abs(line.difference))
    for line in means[:NAMED]:
        within = "within" if line.p is None or line.p >= LEVEL else "beyond"
        known = "other examples" if line.p is None else f"{within} the sampling error, p {p_value(line.p)}"
        yield f"compared with the comparison: {line.entry} {100 * line.difference:+.1f} ({known})"


def about_run(path: Path, run: str) -> dict[str, Any]:
    """Return Prefect's description of a run: its comparison, and where its numbers are shown besides Prefect."""
    params = read_yaml(path)
    shown = {"tasks": list(params.get("tasks", {})), "entries": list(params.get("methods", {}))}
    chosen = {key: params[key] for key in ("base", "seed", "evaluation", "trial") if key in params}
    return {**shown, **chosen, "mlflow_run": run, "report": str(Path(REPORT, "index.html").absolute())}


def read_worse_scores(root: Path) -> list[Row]:
    """Return the scores that fell by more than the sampling error, by the last report."""
    return read_table(root, WORSE) if (root / REPORT / WORSE).is_file() else []


def worse_line(entry: str, column: str, before: float, after: float, p: float | None) -> str:
    """Return a line about a score that fell by more than the sampling error."""
    fell = f"{entry} {column} {100 * before:.2f} -> {100 * after:.2f}"
    return f"worse by more than the sampling error: {fell} (p {p_value(p)})"


def _worse_lines(root: Path) -> list[str]:
    """Return a line about each such score of the last report."""
    numbers = ("before", "after", "p")
    rows = read_worse_scores(root)
    return [worse_line(row["entry"], row["column"], *(float(row[name]) for name in numbers)) for row in rows]


def paper_table(root: Path, *, errors: bool) -> str:
    """Return the table of a repository's report as LaTeX; raise InputError if there is none."""
    from merganser.report.rows import latex_table

    names = ("results.csv", "significance.csv", "plots/scores.csv")
    results, verdicts, scores = (read_table(root, name) for name in names)
    partial = "".join(f"% {line}\n" for line in partial_lines(results))
    return partial + latex_table(results, verdicts, scores, errors=errors)


def partial_lines(results: Sequence[Row]) -> list[str]:
    """Return a line if scores are of some examples only; none if they are of all."""
    return [f"Partial: measured on {each}." for each in {row["partial"] for row in results if "partial" in row}]


def markdown_lines(root: Path) -> Iterator[str]:
    """Return the best entries and all entries as Markdown tables; raise InputError without a report."""
    choices, results = read_table(root, "choices.csv"), read_table(root, "results.csv")
    data = {row["entry"]: row["data"] for row in results}
    yield from (f"**{line}**\n" for line in partial_lines(results))
    yield from ["### Best entries", ""]
    yield from _markdown(
        ["memory per task", "data", "best", "mean score", "tied for best"],
        [
            [budget.title, word, members[0]["entry"], _score(members[0]), _some([row["entry"] for row in members[1:]])]
            for word, allowed in (("none", "none"), ("allowed", "any"))
            for budget in BUDGETS
            if (members := [row for row in choices if (row["budget"], row["data"]) == (budget.key, allowed)])
            and (allowed == "none" or data[members[0]["entry"]] != "no data")  # otherwise the same best again
        ],
    )
    yield from ["", "### All entries", ""]
    yield from _markdown(
        ["entry", "method", "mean score", "% of individual", "% memory per task", "data"],
        [
            [
                row["entry"],
                row["method"],
                _score(row),
                _hundredths(row["normalised_score"]),
                _percent(row["amr"]),
                row["data"],
            ]
            for row in sorted(results, key=lambda row: -float(row["mean"]))
        ],
    )
    yield from ["", *_chart([(row["entry"], 100 * float(row["mean"])) for row in results])]
    if worse := _worse_lines(root):
        yield from ["", "### Worse scores", "", *(f"- {line}" for line in worse)]


CHARTED = 20  # entries


def _chart(means: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Return the lines of a bar chart of the best means for Mermaid, which GitHub and GitLab draw in comments."""
    best = sorted((one for one in means if isfinite(one[1])), key=lambda one: -one[1])[:CHARTED]
    low = min([0, *(floor(mean) for _, mean in best)])
    yield from ["```mermaid", "xychart-beta horizontal", '    title "Mean score of the best entries"']
    yield f"    x-axis [{', '.join(json.dumps(name) for name, _ in best)}]"
    yield f'    y-axis "mean, times 100" {low} --> 100'
    yield f"    bar [{', '.join(f'{mean:.1f}' for _, mean in best)}]"
    yield "```"


def _hundredths(value: str) -> str:
    return f"{100 * float(value):.1f}" if value else ""


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a Markdown table."""
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def report_lines(root: Path) -> Iterator[str]:
    """Return lines for the terminal with the top of a repository's report; raise InputError if there is none."""
    choices, results = read_table(root, "choices.csv"), read_table(root, "results.csv")
    yield from partial_lines(results)
    yield from choice_lines(choices, results)


def read_table(root: Path, name: str) -> list[Row]:
    """Read a table of a repository's report; raise InputError if it is missing or was changed after its run."""
    path = root / REPORT / name
    if not path.is_file():
        raise InputError(f"{REPORT}/{name}: missing; `merganser run {REPORT}` writes it")
    if was_changed(root, REPORT, REPORT):
        raise InputError(
            f"{REPORT}: not as its run wrote it, says dvc.lock: its files changed since; `merganser lineage verify "
            f"{REPORT}` names them, and `merganser run {REPORT}` writes it again"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Best(NamedTuple):
    """The best entries within a budget, as rows of `choices.csv`: the best first, then those tied with it."""

    title: str  # of the budget
    alone: list[Row]  # of the entries without data; empty where smaller budgets have them all
    follows: bool  # whether a smaller budget has entries
    with_data: list[Row]  # of all entries; empty unless one that used data is better


def best_by_budget(choices: list[Row]) -> Iterator[Best]:
    """Return each budget's best entries from the lines of `choices.csv`, the smallest budget first."""
    before = 0
    for budget in BUDGETS:
        members = [row for row in choices if row["budget"] == budget.key]
        alone, allowed = ([row for row in members if row["data"] == had] for had in ("none", "any"))
        entries = int(alone[0]["of"]) if alone else 0
        better = allowed if allowed and [row["entry"] for row in alone[:1]] != [allowed[0]["entry"]] else []
        yield Best(budget.title, alone if entries > before else [], before > 0, better)
        before = max(before, entries)


def choice_lines(choices: list[Row], results: list[Row]) -> Iterator[str]:
    """Return a line for each budget with its best entry and those tied with it, from the lines of `choices.csv`."""
    yield "which one to use: mean ± its sampling error, memory per task, seconds; and the entries tied for best with it"
    data = {row["entry"]: row["data"] for row in results}
    budgets, width = list(best_by_budget(choices)), max(len(budget.title) for budget in BUDGETS)
    for budget in budgets:
        none = "no entry but those above" if budget.follows else "no entry"
        yield f"  {budget.title:{width}}  {_told(budget.alone, data) if budget.alone else none}"
    better = [budget for budget in budgets if budget.with_data]
    if any(row["data"] == "any" for row in choices):
        yield f"with data allowed:{'' if better else ' none better'}"
    for budget in better:
        yield f"  {budget.title:{width}}  {_told(budget.with_data, data)}"
    references = [f"{row['entry']} {_score(row)}" for row in results if row["group"] == "reference"]
    if references:
        yield f"references: {', '.join(references)}"


class Card(NamedTuple):
    """A best entry as pages show it."""

    entry: str
    score: str
    memory: str  # per task, in per cent
    seconds: str
    data: str  # what it used, empty if none
    tied: str  # names, the first of them


def as_card(members: list[Row], data: Mapping[str, str]) -> Card:
    """Return the card of the best entry and those tied with it; `data`: the data that each entry used, by name."""
    best, *tied = members
    memory, seconds = _percent(best["amr"]), _two_digits(float(best["seconds"]))
    had = "" if data[best["entry"]] == "no data" else data[best["entry"]]
    return Card(best["entry"], _score(best), memory, seconds, had, _some([row["entry"] for row in tied]))


def _told(members: list[Row], data: Mapping[str, str]) -> str:
    card = as_card(members, data)
    also = f"; tied: {card.tied}" if card.tied else ""
    had = f", {card.data}" if card.data else ""
    return f"{card.entry} {card.score}, {card.memory} %, {card.seconds} s{had}{also}"


def _percent(share: str) -> str:
    return _two_digits(100 * float(share))


def _two_digits(number: float) -> str:
    """Write a number with two significant digits, or all digits before the decimal point."""
    return f"{number:.0f}" if number >= 99.5 else f"{number:.2g}"


def _score(row: Row) -> str:
    error = f" ± {100 * float(row['stderr']):.1f}" if row["stderr"] else ""
    return f"{100 * float(row['mean']):.1f}{error}"


def changed_lines(before: dict[str, dict[str, float]], now: dict[str, dict[str, float]]) -> Iterator[str]:
    """Return lines about entries' means that are new, gone or different; empty if there were none before."""
    if not before:
        return
    moved = {name: now[name]["mean"] - before[name]["mean"] for name in now if name in before}
    moved = {name: by for name, by in sorted(moved.items(), key=lambda pair: -abs(pair[1])) if by}
    parts = {
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
        "changed": [f"{name} {100 * by:+.1f}" for name, by in moved.items()],
    }
    changes = [f"{len(names)} {word} ({_some(names)})" for word, names in parts.items() if names]
    yield f"since the last run: {'; '.join(changes) or 'no score changed'}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
