"""Study one entry over the number of tasks: merge subsets of the tasks and measure each merge on them.

Every subset has a file with a fingerprint of what it was computed from, and is measured again only if that changed: a
kill loses one subset.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser import registry
from merganser.checkpoints.reading import open_for_merging
from merganser.code_digest import code_digest
from merganser.config.loading import load_params
from merganser.config.params import Entry, Params, declared
from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.prepared import Prepared
from merganser.hashes import sha256_of_tree
from merganser.inputs.heads import read_head
from merganser.models import Network, open_network
from merganser.models.device import usable
from merganser.studies.merges import ScoringSetup, score_merge, values_for
from merganser.studies.subsets import Subset, all_subsets, file_name
from tasks.merge import open_source
from tasks.paths import BASE, DATA, HEADS, PREPARED, TASK_STUDIES
from tasks.stage import check_family, check_kind, check_method, only_name, run, write_json


@dataclass(frozen=True)
class Origins:
    """The hashes of all files that an entry's subsets are computed from."""

    base: str
    read: dict[str, str]  # by task
    data: dict[str, str]
    code: str


def study_entry(params: Params, key: str) -> None:
    """Measure every subset of one entry that is not there yet; remove what is no subset's."""
    entry, out = declared(params.studies.tasks.methods, key, "studies.tasks.methods"), TASK_STUDIES / key
    check_method(entry.method)
    check_family(params.base.family)
    for kind in sorted({task.kind for task in params.tasks.values()}):
        check_kind(kind)
    method = registry.get(entry.method)
    values = method.validate(f"studies.tasks.methods.{key}", entry.values)
    subsets = all_subsets(params.tasks, params.studies.tasks.subsets, params.seed)
    out.mkdir(parents=True, exist_ok=True)
    _remove_unknown(out, {file_name(subset) for subset in subsets})
    origins = _origins(params, entry)
    fingerprints = {s: _fingerprint(params, entry, values_for(values, s), s, origins) for s in subsets}
    missing = [s for s in subsets if _fingerprint_of(out / file_name(s)) != fingerprints[s]]
    print(f"{key}: {len(subsets) - len(missing)} of {len(subsets)} subsets were there", flush=True)
    setup = _open_setup(params) if missing else None
    for done, subset in enumerate(missing, 1):
        assert setup
        # in the output folder: what a kill leaves there, the next start removes
        with TemporaryDirectory(dir=out) as folder:
            source = open_source(entry, list(subset), params.seed)
            scores = score_merge(method, values_for(values, subset), source, setup, Path(folder))
        write_json(out / file_name(subset), {"fingerprint": fingerprints[subset], "scores": scores})
        mean = sum(found["value"] for found in scores.values()) / len(scores)
        print(f"{key}: {done} of {len(missing)}: {mean:.4f} on {', '.join(subset)}", flush=True)


def _open_setup(params: Params) -> ScoringSetup:
    """Open the base, and every task's architecture and prepared data."""
    prepared = {name: Prepared(PREPARED / name) for name in params.tasks}
    evaluators = {name: evaluator_for(data) for name, data in prepared.items()}
    heads = {name: read_head(HEADS / f"{name}.safetensors") for name in params.tasks}
    for name, head in heads.items():
        evaluators[name].check_head(head.classes, prepared[name].classes, name)
    outputs = {name: evaluators[name].outputs(data.classes) for name, data in prepared.items()}
    device, precision = usable(params.evaluation.device, "evaluation.device"), params.evaluation.precision
    built: dict[int | None, Network] = {
        count: open_network(params.base.family, BASE, outputs=count, device=device, precision=precision)
        for count in dict.fromkeys(outputs.values())
    }
    networks = {name: built[count] for name, count in outputs.items()}
    prepared = {name: data.on(networks[name].device) for name, data in prepared.items()}
    return ScoringSetup(open_for_merging(BASE), networks, evaluators, prepared, heads, params.evaluation.batch_size)


def _origins(params: Params, entry: Entry) -> Origins:
    """Hash every file that an entry's subsets are computed from."""
    return Origins(
        base=sha256_of_tree(BASE),
        read={task: _read_of(DATA / entry.reads, task) for task in params.tasks},
        data={
            task: sha256_of_tree(PREPARED / task) + sha256_of_tree(HEADS / f"{task}.safetensors")
            for task in params.tasks
        },
        code=code_digest(
            "tasks.study_tasks",
            f"merganser.methods.{entry.method}",
            f"merganser.models.families.{params.base.family}",
            *sorted({f"merganser.evaluation.kinds.{task.kind}" for task in params.tasks.values()}),
        ),
    )


def _read_of(folder: Path, task: str) -> str:
    """Hash what an entry reads of a task: a file, a folder, or both."""
    paths = (folder / task, folder / f"{task}.safetensors")
    return "".join(sha256_of_tree(path) for path in paths if path.exists())


def _fingerprint(params: Params, entry: Entry, values: dict[str, Any], subset: Subset, origins: Origins) -> str:
    """Identify all that a subset's numbers come from: contents of files, choices, code."""
    content = {
        "method": [entry.method, values, params.seed],
        "evaluation": [params.base.family, params.evaluation.model_dump()],
        "base": origins.base,
        "tasks": {task: [origins.read[task], origins.data[task]] for task in subset},
        "code": origins.code,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fingerprint_of(path: Path) -> str | None:
    """Read a file's fingerprint; None when there is no whole file."""
    try:
        return str(json.loads(path.read_text())["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove_unknown(folder: Path, known: set[str]) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in known:
            path.unlink()


def main(argv: list[str]) -> None:
    """Study the entry named on the command line."""
    study_entry(load_params(Path("params.yaml")), only_name(argv, "study_tasks"))


if __name__ == "__main__":
    run(main)
