"""Study one entry over the number of tasks: merge subsets of the tasks and measure each merge on them.

Every subset has a file with a fingerprint of what it was computed from, and is measured again only if that changed: a
kill loses one subset.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser import registry
from merganser.config.params import Params
from merganser.config.sections import StudyEntry
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.outputs import remove_others, write_json
from merganser.studies.merges import score_merge, values_for
from merganser.studies.subsets import Subset, all_subsets, subset_file_name
from merganser.tasks.kept import FINGERPRINT, digest_of_code, read_kept
from merganser.tasks.opening import open_source
from merganser.tasks.scoring import open_tasks
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, DATA, HEADS, PREPARED, TASK_STUDIES


@stage("studies.tasks.methods")
def main(params: Params, key: str) -> None:
    """Measure every subset of one entry that is not there yet; remove what is not a subset's."""
    entry, out = params.studies.tasks.methods[key], TASK_STUDIES / key
    check_found("methods", entry.method)
    check_found("families", params.base.family)
    method = registry.get(entry.method)
    values = method.validate(f"studies.tasks.methods.{key}", entry.values)
    subsets = all_subsets(params.tasks, params.studies.tasks.subsets, params.first_seed)
    out.mkdir(parents=True, exist_ok=True)
    remove_others(out, {subset_file_name(subset) for subset in subsets})
    origins = subset_fingerprints(params, entry, {subset: values_for(values, subset) for subset in subsets})
    missing = [s for s in subsets if read_kept(out / subset_file_name(s), origins[s]) is None]
    print(f"{key}: {len(subsets) - len(missing)} of {len(subsets)} subsets were there", flush=True)
    setup = open_tasks(params, PREPARED) if missing else None
    for done, subset in enumerate(missing, 1):
        assert setup
        # in the output folder: what a kill leaves there, the next start removes
        with TemporaryDirectory(dir=out) as folder:
            source = open_source(entry, entry.reads, list(subset), params.first_seed)
            others = unseen_of(params, entry, subset)
            found = score_merge(method, values_for(values, subset), source, setup, Path(folder), others)
        scores = {"scores": {task: found[task] for task in subset}}
        unseen = {"unseen": {task: found[task] for task in others}} if others else {}
        write_json(out / subset_file_name(subset), {FINGERPRINT: origins[subset], **scores, **unseen})
        mean = sum(found[task]["value"] for task in subset) / len(subset)
        print(f"{key}: {done} of {len(missing)}: {mean:.4f} on {', '.join(subset)}", flush=True)


def unseen_of(params: Params, entry: StudyEntry, subset: Subset) -> list[str]:
    """Return the tasks that a merge of a subset is measured on beside its own."""
    return [task for task in sorted(params.tasks) if task not in subset] if entry.unseen else []


def subset_fingerprints(
    params: Params, entry: StudyEntry, values: Mapping[Subset, dict[str, Any]]
) -> dict[Subset, str]:
    """Return of each subset a digest of all that its numbers come from: files, choices, the values it has, code."""
    code = digest_of_code(params, "merganser.tasks.study_tasks", f"merganser.methods.{entry.method}")
    chosen = [entry.method, params.first_seed, params.base.family, params.evaluation.model_dump()]
    common = [*chosen, code, sha256_of_tree(BASE)]
    read = {task: _read_of(DATA / entry.reads, task) for task in params.tasks}
    data = {task: [*map(sha256_of_tree, (PREPARED / task, HEADS / f"{task}.safetensors"))] for task in params.tasks}
    found = {}
    for subset, own in values.items():
        tasks = {task: [read[task], data[task]] for task in subset}
        unseen = {task: data[task] for task in unseen_of(params, entry, subset)}
        found[subset] = sha256_of_json([own, common, tasks, unseen])
    return found


def _read_of(folder: Path, task: str) -> str:
    """Hash what an entry reads of a task, a file, a folder, or both; raise InputError where there is neither."""
    file = folder / f"{task}.safetensors"
    return "".join(sha256_of_tree(path) for path in (folder / task, file) if path.exists()) or sha256_of_tree(file)


if __name__ == "__main__":
    run_main(main)
