"""The content of a comparison's MLflow runs: `record` writes it, an audit compares it. MLflow is not imported.

Values that follow from files are computed from them. Measured times and memory are kept in an entry's receipt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from merganser import registry
from merganser.config.params import Params
from merganser.evaluation.scoring import by_data_set
from merganser.hashes import sha256_of, sha256_of_json
from merganser.measures.scores import error_of_mean
from merganser.merging.licences import LICENCES
from merganser.outputs import read_json
from merganser.report.formats import study_tables, wording_of
from merganser.report.scores import Scores, errors_of, read_metrics, spread_of, written_values
from merganser.tasks.stages import EXAMPLES, MERGE_MEASURES, MERGE_PROFILES, METRICS
from merganser.terminal.secrets import masked

COMPARISON, CONTENT, ENTRY, RUN = "merganser.comparison", "merganser.content", "merganser.entry", "merganser.run"
PARTIAL = "merganser.partial"  # of runs whose scores are of some examples
WARNED = "merganser.licences"  # which licences of its models do not go together
REPORTED = "merganser.report"  # the digest of the report's files
PARENT, COMMIT = "mlflow.parentRunId", "mlflow.source.git.commit"
USER, SOURCE_NAME, SOURCE_TYPE = "mlflow.user", "mlflow.source.name", "mlflow.source.type"
SOURCE = {SOURCE_NAME: "merganser", SOURCE_TYPE: "LOCAL"}  # what MLflow's own clients say of a script
MEAN = "score_mean"
TABLE = "comparison.json"
LOGGED_TABLES = "mlflow.loggedArtifacts"  # the tag by which MLflow shows a table
STUDY, STUDY_KEY = "merganser.study", "merganser.study_key"  # of a study's run: its name, a digest of its results
POINTS = "points.json"  # its table
PREFECT = "merganser.prefect_run"
OBSERVED = ("wall_s", "cpu_s", "peak_rss_bytes", "read_bytes", "written_bytes")  # they vary from run to run

Curve = Sequence[tuple[int, float]]  # steps and values


@dataclass(frozen=True)
class Held:
    """The content of an MLflow run: its name, and tags, parameters, metrics and their curves by name."""

    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)


def entry_run(params: Params, entry: str) -> Held:
    """Return the content of an entry's run, as it follows from the entry's files alone."""
    scores, hashes = score_metrics(params, entry), score_hashes(params, entry)
    profile = read_json(MERGE_PROFILES / f"{entry}.json")
    learned = {f"learned.{key}": value for key, value in profile.get("learned", {}).get("settings", {}).items()}
    digests = {f"sha256.{path}": digest for path, digest in hashes.items()}
    licences = {WARNED: "\n".join(profile[LICENCES])} if LICENCES in profile else {}
    return Held(
        name=entry,
        tags={
            CONTENT: content_key(params, entry, hashes, profile),
            ENTRY: entry,
            **digests,
            **_marked(params),
            **licences,
        },
        params=_as_text(parameters(params, entry) | learned),
        metrics=scores | {"amr": float(profile["amr"])},
        curves=curves_of(profile),
    )


def comparison_run(params: Params, name: str) -> Held:
    """Return the content of the run of a comparison of this name, as it follows from params.yaml."""
    choices: dict[str, Any] = {
        "base": params.base.source,
        "tasks": ", ".join(params.tasks),
        "split": params.evaluation.name,
        "family": params.base.family,
        "entries": len(params.methods),
        "merged": params.parameters.merged,
    }
    how = params.evaluation.model_dump(exclude={"split"}, exclude_none=True)
    choices |= {f"evaluation.{key}": value for key, value in how.items()}
    choices |= {"seed": params.seed, "matrices": params.parameters.matrices}
    choices |= {f"trial.{key}": change.shown for key, change in params.trial.items()}
    return Held(name, {COMPARISON: name} | _marked(params), _as_text(choices))


def _marked(params: Params) -> dict[str, str]:
    """Return a tag for results that were not measured on all examples."""
    return {PARTIAL: params.evaluation.partial} if params.evaluation.partial else {}


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: masked(str(value)) for name, value in values.items()}


def score_hashes(params: Params, entry: str) -> dict[str, str]:
    """Return the sha256 of each file with an entry's scores or its examples' results, by path."""
    scores = [METRICS / entry / f"{task}.json" for task in params.tasks]
    files = [*scores, *(EXAMPLES / entry / f"{task}.safetensors" for task in params.tasks)]
    return {str(file): sha256_of(file) for file in files}


def score_metrics(params: Params, entry: str) -> dict[str, float]:
    """Return an entry's scores by their names in MLflow, METRIC/TASK, with their mean, errors and spreads."""
    scores = read_metrics(params.measured, METRICS / entry)
    scores_of_tasks = {f"{one['metric']}/{task}": one["value"] for task, one in scores.items()}
    spreads = {f"{one['metric']}_spread/{task}": one["spread"] for task, one in scores.items() if "spread" in one}
    spread = spread_of(scores)
    whole = {} if spread is None else {f"{MEAN}_spread": spread}
    known = {f"known/{task}": one["known"] for task, one in scores.items() if "known" in one}
    router = {f"router/{task}": one["router"] for task, one in scores.items() if "router" in one}
    data_sets = {
        f"{scores[task]['metric']}/{task}/{name}": value for (task, name), value in by_data_set(scores).items()
    }
    errors = {f"{one['metric']}_stderr/{task}": one["stderr"] for task, one in scores.items()}
    errors[f"{MEAN}_stderr"] = error_of_mean(errors_of(scores))
    mean = {MEAN: sum(scores_of_tasks.values()) / len(scores_of_tasks)}
    known_errors = {name: error for name, error in errors.items() if error is not None}
    return {**scores_of_tasks, **mean, **known_errors, **spreads, **whole, **known, **router, **data_sets}


def relative_metrics(scores: Scores, entry: str) -> dict[str, float]:
    """Return an entry's scores relative to other entries, its share of each delta, and its scores on unseen tasks."""
    relative = {"normalised_score": scores.normalised, "score_drop_rate": scores.drop_rate}
    unseen = {"unseen_mean": scores.unseen_mean, "unseen_mean_stderr": scores.unseen_error}
    for task, one in scores.unseen.items():
        unseen |= {
            f"unseen_{one['metric']}/{task}": one["value"],
            f"unseen_{one['metric']}_stderr/{task}": one["stderr"],
        }
    return {name: value for name, value in (relative | unseen).items() if value is not None} | _of_tasks(entry)


def _of_tasks(entry: str) -> dict[str, float]:
    """Return the mean over tasks of the share of its delta in a merge: SAR of one model, relative error of parts."""
    measures = read_json(MERGE_MEASURES / f"{entry}.json")
    name = "error" if measures["parts"] else "sar"
    values = [value for value in measures[name] if value is not None]
    return {f"{name}_mean": sum(values) / len(values)} if values else {}


def parameters(params: Params, entry: str) -> dict[str, Any]:
    """Return an entry's parameters, with its method's defaults filled in, by their names in MLflow."""
    declared = params.methods[entry]
    written = written_values(declared, read_json(MERGE_PROFILES / f"{entry}.json"))
    values = registry.get(declared.method).validate(f"methods.{entry}", written)
    return {"method": declared.method, "reads": declared.reads, **values}


def content_key(params: Params, entry: str, hashes: Mapping[str, str], profile: Mapping[str, Any]) -> str:
    """Identify a result: entry, parameters, learned or searched values, and the hashes of its files of numbers."""
    content = {"entry": entry, **params.methods[entry].model_dump(), "seed": params.seed, "inputs": dict(hashes)}
    content |= {key: profile[key] for key in ("learned", "search") if key in profile}
    return sha256_of_json(content)


def curves_of(profile: Mapping[str, Any]) -> dict[str, Curve]:
    """Return the losses of learned values by step: on each step's batches, and on the fixed examples."""
    learned = profile.get("learned")
    if not learned:
        return {}
    checks = [(check["step"], check["loss"]) for check in learned["checks"]]
    return {"loss": list(enumerate(learned["losses"])), "fixed_loss": checks}


def summary_table(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the scores of all entries in MLflow's format of tables."""
    rows = [
        [
            entry,
            row.mean,
            row.error,
            row.normalised,
            row.drop_rate,
            row.profile["amr"],
            *row.values.values(),
        ]
        for entry, row in scores.items()
    ]
    tasks = next(iter(scores.values())).values
    return {"columns": ["entry", MEAN, "stderr", "normalised_score", "score_drop_rate", "amr", *tasks], "data": rows}


def logged(path: str) -> str:
    """Return the value of MLflow's tag for a table among a run's artifacts."""
    return json.dumps([{"path": path, "type": "table"}])


def study_runs(comparison: str, studies: Mapping[str, Any]) -> dict[str, tuple[Held, dict[str, Any]]]:
    """Return the content of each study's run in a comparison's run, and its table of points, by the study's name."""
    tables = {}
    for name, table in study_tables(studies).items():
        key = sha256_of_json([comparison, name, table])
        tags = {RUN: comparison, STUDY: name, STUDY_KEY: key, LOGGED_TABLES: logged(POINTS)}
        columns = table["columns"]
        of_mean = "score" in columns and "task" not in columns  # a point of one task has no mean
        place = columns.index("score") if of_mean else None
        curves = {} if place is None else {MEAN: [(step, float(row[place])) for step, row in enumerate(table["data"])]}
        tables[name] = Held(f"study {name}", tags, {}, curves=curves), table
    return tables


def comparison_metrics(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the numbers of a comparison's run: each entry's mean score, `score_mean/ENTRY`."""
    return {f"{MEAN}/{entry}": score.mean for entry, score in scores.items()}


def run_details(info: Any) -> dict[str, Any]:
    """Return a run's status, times (ms since 1970) and user, which only a receipt keeps."""
    return {name: getattr(info, name) for name in ("status", "start_time", "end_time", "user_id")}


def run_description(scores: Mapping[str, Scores], flow_run: str | None) -> str:
    """Write the run's description in Markdown: the scores as a table, and links to other pages about the run."""
    beside = f"Prefect's flow run {flow_run}, t" if flow_run else "T"
    note = f"{beside}he report in the artifact report/index.html: `merganser ui` opens them beside this run."
    return f"{_score_table(scores)}\n\n{note}"


def _score_table(scores: Mapping[str, Scores]) -> str:
    wording = wording_of(metric for score in scores.values() for metric in score.metrics.values())
    lines = [f"| entry | mean {wording.axis} | of individual, % |", "|---|---|---|"]
    for entry, score in scores.items():
        normalised = "" if score.normalised is None else f"{100 * score.normalised:.1f}"
        lines.append(f"| {entry} | {100 * score.mean:.1f} | {normalised} |")
    return "\n".join(lines)
