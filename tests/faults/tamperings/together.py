"""Consistent edits of several files: an output with DVC's cache, dvc.lock, MLflow, the report and the ledger."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from dvcfleet.dvc_adapter.run_cache import entry_hash, run_key
from tests import PYTHONPATH
from tests.faults.tamperings.edits import (
    ENTRY,
    MERGE,
    MODEL,
    OTHER,
    TASK,
    better,
    commit,
    edit,
    edit_json,
    edit_lock,
    edit_params,
    flip,
    forget_experiments,
    git_commit,
    in_store,
    lock_entry,
    log_metric,
    receipt,
    rewrite_ledger,
    run,
    run_of,
    tampering,
    told,
    write,
)
from tests.faults.tamperings.files import CHECKPOINT, bytecode, hide, second_model, stray_module
from tests.faults.tamperings.mlflow import FORGED, second_result
from tests.tiny import environment

SCORED, MERGED = f"evaluate@{ENTRY}-{TASK}", f"merge@{ENTRY}"
TAKEN_OVER = "`dvc commit` writes the run cache, which vouches for it"
AFTER = ("measure_merged@", "evaluate@", "record@", "report")


@tampering("a score, with cache and dvc.lock", is_consistent=True)
def score() -> None:
    better()
    commit(SCORED)


@tampering("a score with cache, dvc.lock and MLflow", is_consistent=True)
def score_logged() -> None:
    value = better()
    commit(SCORED)
    log_metric(run_of(), f"accuracy/{TASK}", value)


@tampering("a score and all downstream stages by `dvc repro`", is_consistent=True)
def score_reproduced() -> None:
    better()
    commit(SCORED)
    again()


@tampering("a score and all downstream stages, with the ledger's line and a new chain", is_consistent=True)
def score_told() -> None:
    score_reproduced()
    told(SCORED, f"record@{ENTRY}", "report")


@tampering(
    "a score and all downstream stages, with the ledger's line, a new chain and the experiments", is_consistent=True
)
def score_told_alone() -> None:
    score_told()
    forget_experiments()


@tampering("a score and all downstream stages, with ledger, experiments and signatures", is_consistent=True)
def score_told_unsigned() -> None:
    score_told_alone()
    shutil.rmtree("signatures")


@tampering("an example's result with cache and dvc.lock", is_consistent=True)
def example_committed() -> None:
    flip(Path(f"data/examples/{ENTRY}/{TASK}.safetensors"))
    commit(SCORED)


@tampering("a merge with cache and dvc.lock", is_consistent=True)
def merge_committed() -> None:
    flip(MODEL)
    commit(MERGED)


@tampering("a merge, with cache, dvc.lock, and the downstream stages in dvc.lock", is_consistent=True)
def merge_committed_on() -> None:
    flip(MODEL)
    commit(MERGED, f"measure_merged@{ENTRY}", SCORED, f"evaluate@{ENTRY}-light")


@tampering("a merge, with the ledger's lines, a new chain and the experiments", is_consistent=True)
def merge_told() -> None:
    merge_committed_on()
    told(MERGED, f"measure_merged@{ENTRY}", SCORED, f"evaluate@{ENTRY}-light")
    forget_experiments()


@tampering("a merge replaced by another entry's, with cache and dvc.lock", is_consistent=True)
def merge_exchanged() -> None:
    write(MODEL, Path(f"data/merged/{OTHER}/model.safetensors").read_bytes())
    commit(MERGED)


@tampering("two entries' outputs exchanged, with dvc.lock", is_consistent=True)
def entries_exchanged() -> None:
    other = MERGE.with_name(OTHER)
    for source, target in ((MERGE, Path("moved")), (other, MERGE), (Path("moved"), other)):
        source.rename(target)

    def exchange(stages: dict[str, dict[str, list[dict[str, object]]]]) -> None:
        one, two = (stages[f"merge@{name}"]["outs"][0] for name in (ENTRY, OTHER))
        for key in ("md5", "size", "nfiles"):
            one[key], two[key] = two[key], one[key]

    edit_lock(exchange)


@tampering("a file edited through its link, so that DVC's cache changes too", is_consistent=True)
def linked() -> None:
    flip(MODEL, is_linked=True)


@tampering("a second model in a merge, with cache and dvc.lock", is_consistent=True)
def second_model_committed() -> None:
    second_model()
    commit(MERGED)


@tampering("a checkpoint with its source.json, cache and dvc.lock", is_consistent=True)
def checkpoint_committed() -> None:
    import hashlib

    path = CHECKPOINT / "model.safetensors"
    flip(path)
    about = json.loads((CHECKPOINT / "source.json").read_text())
    about["files"]["model.safetensors"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    write(CHECKPOINT / "source.json", json.dumps(about))
    commit(f"fetch@{TASK}")


@tampering("a source, with dvc.lock", is_consistent=True, why=TAKEN_OVER)
def source_committed() -> None:
    flip(Path(f"hub/{TASK}/open_clip_model.safetensors"))
    commit(f"fetch@{TASK}")


@tampering("a checkpoint's revision with cache and dvc.lock", is_consistent=True)
def revision_committed() -> None:
    edit_json(CHECKPOINT / "source.json", revision="0" * 40)
    commit(f"fetch@{TASK}")


@tampering("a parameter in params.yaml and dvc.lock", is_consistent=True)
def parameter_committed() -> None:
    edit_params("methods", ENTRY, "density", value=0.4)
    commit(MERGED)


@tampering(
    "a parameter, with MLflow, receipt, dvc.lock and report",
    is_consistent=True,
    why=TAKEN_OVER,
)
def parameter_everywhere() -> None:
    edit_params("methods", ENTRY, "density", value=0.4)
    commit(MERGED)
    again()


@tampering("a method's code with its digest, cache and dvc.lock", is_consistent=True)
def code_committed() -> None:
    edit(Path("merganser/methods/ties.py"), "scaling *", "2 * scaling *")
    run("python", "-m", "merganser.tasks.code", environment=_own())
    commit("code", MERGED)


@tampering("a stray module, with its hash in dvc.lock", is_consistent=True, why=TAKEN_OVER)
def stray_committed() -> None:
    stray_module()
    commit("code")


@tampering("a stray module and the report's table, with cache and dvc.lock", is_consistent=True)
def stray_and_report() -> None:
    stray_committed()
    table_committed()


@tampering("a compiled module, with its source's digest in dvc.lock", is_consistent=True)
def bytecode_committed() -> None:
    bytecode()
    commit("code")


@tampering("a command in dvc.yaml and dvc.lock", is_consistent=True, why=TAKEN_OVER)
def command_committed() -> None:
    edit(Path("dvc.yaml"), "python -m merganser.tasks.record --report", "python -O -m merganser.tasks.record --report")
    commit("report")


@tampering("an input removed from dvc.yaml and dvc.lock", is_consistent=True, why=TAKEN_OVER)
def input_committed() -> None:
    edit(Path("dvc.yaml"), "data/metrics, data/profiles,", "data/metrics,")
    commit("report")


@tampering("the report's table with cache and dvc.lock", is_consistent=True)
def table_committed() -> None:
    edit(Path("report/results.csv"), "0.", "0.9")
    commit("report")


@tampering("the report's page and MLflow's copy, with cache and dvc.lock", is_consistent=True)
def page_committed() -> None:
    edit(Path("report/index.html"), "</table>", "<tr><td>99.9</td></tr></table>")
    commit("report")
    run("python", "-m", "merganser.tasks.record", "--report", environment=_own())


@tampering("a plot, MLflow's copy and dvc.lock", is_consistent=True)
def plot_committed() -> None:
    edit(sorted(Path("report/plots").glob("*.svg"))[0], "</svg>", "<text>99.9</text></svg>")
    commit("report")
    run("python", "-m", "merganser.tasks.record", "--report", environment=_own())


@tampering(
    "a plot, with MLflow's copy, dvc.lock, the ledger's line, a new chain and the experiments", is_consistent=True
)
def plot_told() -> None:
    plot_committed()
    told("report")
    forget_experiments()


@tampering(
    "an observed time, with profile, receipt, MLflow and dvc.lock",
    is_consistent=True,
    why="times are observed once, never computed again",
)
def time_committed() -> None:
    edit_json(Path(f"data/profiles/merge/{ENTRY}.json"), wall_s=0.001)
    log_metric(run_of(), "wall_s", 0.001)
    edit_json(Path(f"data/records/{ENTRY}.json"), observed=receipt()["observed"] | {"wall_s": 0.001})
    commit(MERGED, f"record@{ENTRY}")
    run("python", "-m", "merganser.tasks.report", environment=_own())
    commit("report")
    run("python", "-m", "merganser.tasks.record", "--report", environment=_own())


@tampering("the start of a run, with MLflow, receipt and dvc.lock", is_consistent=True)
def start_committed() -> None:
    in_store("UPDATE runs SET start_time = 1 WHERE run_uuid = ?", run_of())
    details = receipt()["details"]
    details[run_of()]["start_time"] = 1
    edit_json(Path(f"data/records/{ENTRY}.json"), details=details)
    commit(f"record@{ENTRY}")


@tampering("a forged run in a receipt, with cache and dvc.lock", is_consistent=True)
def receipt_committed() -> None:
    second_result()
    edit_json(Path(f"data/records/{ENTRY}.json"), run_id=FORGED, content="0" * 64)
    commit(f"record@{ENTRY}")


@tampering("two entries' runs exchanged in their receipts, with cache and dvc.lock", is_consistent=True)
def receipts_exchanged() -> None:
    one, two = (Path(f"data/records/{name}.json") for name in (ENTRY, OTHER))
    texts = one.read_text(), two.read_text()
    write(one, texts[1])
    write(two, texts[0])
    commit(f"record@{ENTRY}", f"record@{OTHER}")


@tampering(
    "a run cache entry with its right name and another stage's outputs",
    is_consistent=True,
    why="no result changes: a run that restores it says `unproven`",
)
def run_cache_planted() -> None:
    entry = lock_entry(MERGED)
    entry["params"]["params.yaml"][f"methods.{ENTRY}"]["density"] = 0.25
    for own, other in zip(entry["outs"], lock_entry(f"merge@{OTHER}")["outs"], strict=True):
        own.update({key: value for key, value in other.items() if key != "path"})
    import yaml

    key = run_key(entry)
    write(Path(".dvc/cache/runs", key[:2], key, entry_hash(entry)), yaml.safe_dump(entry, sort_keys=False))


@tampering("a planted file hidden by a committed rule, with that commit in the ledger", is_consistent=True)
def hidden_and_told() -> None:
    second_model()
    hide("extra.safetensors")
    git_commit(".dvcignore")
    head = Path(".git", Path(".git/HEAD").read_text().split()[1]).read_text().strip()
    rewrite_ledger(lambda one: replace(one, commit=head), from_first=True)
    forget_experiments()


@tampering("a signature by another key", is_consistent=True)
def signed_by_another() -> None:
    import subprocess

    from merganser.flows.evidence.keys import PrivateKey
    from merganser.flows.evidence.signing import sign

    better()
    commit(SCORED)
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", "other.pem"], check=True, capture_output=True)
    key = PrivateKey(Path("other.pem"))
    sign(Path(), key, key)
    Path("other.pem").unlink()


def again() -> None:
    """Run by dvc repro what follows from the present score: the receipt, MLflow and the report."""
    run("dvc", "repro", "-q", f"record@{ENTRY}", "report", environment=_own())


def _own() -> dict[str, str]:
    return environment() | {"PYTHONPATH": PYTHONPATH, "DVC_NO_ANALYTICS": "1"}
