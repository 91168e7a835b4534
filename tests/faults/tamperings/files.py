"""Tamperings with a file that a stage wrote or read, with DVC's records of it, or with what lies beside it."""

import py_compile
import shutil
from importlib.util import cache_from_source
from pathlib import Path

from tests.faults.tamperings.edits import (
    ENTRY,
    MERGE,
    METRIC,
    MODEL,
    OTHER,
    TASK,
    better,
    edit,
    edit_json,
    edit_lock,
    edit_params,
    flip,
    git_commit,
    tampering,
    write,
)

CHECKPOINT = Path(f"data/checkpoints/{TASK}")
CACHE = Path(".dvc/cache")


@tampering("a byte of a checkpoint, with its old file time")
def checkpoint() -> None:
    flip(CHECKPOINT / "model.safetensors")


@tampering("a byte of a delta")
def delta() -> None:
    flip(Path(f"data/deltas/{TASK}.safetensors"))


@tampering("a byte of a merge")
def merge() -> None:
    flip(MODEL)


@tampering("a score in a metric file")
def metric() -> None:
    better()


@tampering("an example's result")
def example() -> None:
    flip(Path(f"data/examples/{ENTRY}/{TASK}.safetensors"))


@tampering("the MLflow run in a receipt")
def receipt_run() -> None:
    edit_json(Path(f"data/records/{ENTRY}.json"), run_id="0" * 32)


@tampering("the time of a merge in its profile")
def profile() -> None:
    edit_json(Path(f"data/profiles/merge/{ENTRY}.json"), wall_s=0.001)


@tampering("a measure of the tasks")
def measure() -> None:
    write(Path("data/measures/tasks.json"), Path("data/measures/tasks.json").read_text().replace("0.", "0.1", 1))


@tampering("a fetched checkpoint's revision, in its source.json")
def revision() -> None:
    edit_json(CHECKPOINT / "source.json", revision="0" * 40)


@tampering("the report's table")
def table() -> None:
    edit(Path("report/results.csv"), "0.", "0.9")


@tampering("the report's page")
def page() -> None:
    edit(Path("report/index.html"), "</table>", "<tr><td>99.9</td></tr></table>")


@tampering("a plot of the report")
def plot() -> None:
    edit(sorted(Path("report/plots").glob("*.svg"))[0], "</svg>", "<text>99.9</text></svg>")


@tampering("the scores for `dvc metrics`")
def metrics_file() -> None:
    edit(Path("metrics.json"), "0.", "0.9")


@tampering("a metric file removed")
def removed() -> None:
    METRIC.unlink()


@tampering("an output replaced by a link to a copy elsewhere")
def link() -> None:
    copy = Path(shutil.move(MODEL, Path("copy.safetensors"))).absolute()
    MODEL.symlink_to(copy)


@tampering("a merge's folder replaced by a link to a copy elsewhere")
def folder_link() -> None:
    copy = Path(shutil.move(MERGE, Path("copy"))).absolute()
    MERGE.symlink_to(copy)


@tampering("a second model in a merge's folder")
def second_model() -> None:
    shutil.copy(f"data/merged/{OTHER}/model.safetensors", MERGE / "extra.safetensors")


@tampering("a second model in a merge's folder, hidden by a line of .dvcignore", is_consistent=True)
def second_model_hidden() -> None:
    second_model()
    hide("extra.safetensors")


@tampering("a second model in a merge's folder, hidden by a .dvcignore next to it", is_consistent=True)
def second_model_hidden_beside() -> None:
    second_model()
    write(MERGE / ".dvcignore", "extra.safetensors\n.dvcignore\n")


@tampering("a second model in a merge's folder, hidden by a committed .dvcignore above it", is_consistent=True)
def second_model_hidden_in_git() -> None:
    second_model()
    write(Path("data/.dvcignore"), "extra.safetensors\n.dvcignore\n")
    git_commit("data/.dvcignore")


@tampering("metrics of an entry that does not exist")
def planted_entry() -> None:
    shutil.copytree(METRIC.parent, "data/metrics/cheat")


@tampering("metrics of an entry that does not exist, hidden by a line of .dvcignore", is_consistent=True)
def planted_entry_hidden() -> None:
    planted_entry()
    hide("/data/metrics/cheat")


@tampering("a merge of an entry that does not exist")
def planted_merge() -> None:
    shutil.copytree(MERGE, "data/merged/cheat")


@tampering("a folder linked into a merge")
def linked_folder() -> None:
    (MERGE / "more").symlink_to(Path("data/merged", OTHER).absolute())


@tampering("a page added to the report")
def page_added() -> None:
    write(Path("report/more.html"), "<p>99.9")


@tampering("a byte of a source")
def source() -> None:
    flip(Path(f"hub/{TASK}/open_clip_model.safetensors"))


@tampering("a source's data set")
def source_data() -> None:
    flip(next(path for path in sorted(Path(f"datasets/{TASK}").rglob("*.arrow"))))


@tampering("a method's code")
def method_code() -> None:
    edit(Path("merganser/methods/ties.py"), "scaling *", "2 * scaling *")


@tampering("a stage's code")
def stage_code() -> None:
    write(Path("tasks/merge.py"), Path("tasks/merge.py").read_text() + "EDITED = 1\n")


@tampering("a stray module next to the stages' code")
def stray_module() -> None:
    write(Path("tasks/stray.py"), "")


@tampering("a compiled module that differs from its source")
def bytecode() -> None:
    write(Path("evil.py"), "print('another')\n")
    target = Path(cache_from_source("tasks/merge.py"))
    py_compile.compile("evil.py", str(target))
    Path("evil.py").unlink()
    content, info = target.read_bytes(), Path("tasks/merge.py").stat()
    header = int(info.st_mtime).to_bytes(4, "little") + (info.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    write(target, content[:8] + header + content[16:])


@tampering("the code of `verify` itself", why="the verifying program is changed: verify with another installation")
def audit_code() -> None:
    write(Path("flows/evidence/mlflow_audit.py"), "def check_records(lineage, found):\n    return []\n")


@tampering("a stage's command in dvc.yaml")
def command() -> None:
    edit(Path("dvc.yaml"), "python -m merganser.tasks.report", "python -O -m merganser.tasks.report")


@tampering("an input removed from dvc.yaml")
def input_removed() -> None:
    edit(Path("dvc.yaml"), "data/metrics, data/profiles,", "data/metrics,")


@tampering("outputs marked as varying in dvc.yaml")
def varying() -> None:
    old = "data/metrics/${item.method}/${item.task}.json: {meta: {dvcfleet: {metric: true}}}"
    new = "data/metrics/${item.method}/${item.task}.json: {meta: {dvcfleet: {varies: true}}}"
    edit(Path("dvc.yaml"), old, new)


@tampering("a method's parameter in params.yaml")
def parameter() -> None:
    edit_params("methods", ENTRY, "density", value=0.4)


@tampering("an output's md5 in dvc.lock")
def lock_md5() -> None:
    edit_lock(lambda stages: stages[f"evaluate@{ENTRY}-{TASK}"]["outs"][0].update(md5="0" * 32))


@tampering("a stage's parameters in dvc.lock")
def lock_params() -> None:
    edit_lock(lambda stages: stages[f"merge@{ENTRY}"]["params"]["params.yaml"][f"methods.{ENTRY}"].update(density=0.4))


@tampering("a stage removed from dvc.lock")
def lock_removed() -> None:
    edit_lock(lambda stages: stages.pop(f"merge@{ENTRY}") and None)


@tampering("a stage added to dvc.lock")
def lock_added() -> None:
    edit_lock(lambda stages: stages.update({"merge@cheat": stages[f"merge@{ENTRY}"]}))


@tampering("an object in DVC's cache")
def cached_object() -> None:
    flip(max((path for path in CACHE.glob("files/md5/??/*") if path.suffix != ".dir"), key=lambda path: path.name))


@tampering("a folder's listing in DVC's cache")
def cached_listing() -> None:
    flip(sorted(CACHE.glob("files/md5/??/*.dir"))[0])


def _run_cache_entry() -> Path:
    return next(path for path in sorted(CACHE.glob("runs/*/*/*")) if "merganser.tasks.merge" in path.read_text())


@tampering("a hash in an entry of the run cache")
def run_cache_hash() -> None:
    path = _run_cache_entry()
    head, _, rest = path.read_text().rpartition("md5: ")
    write(path, f"{head}md5: {'2' if rest[0] == '1' else '1'}{rest[1:]}")


@tampering("an entry of the run cache removed", why="no result changes: the next run computes it instead")
def run_cache_removed() -> None:
    _run_cache_entry().unlink()


def hide(line: str) -> None:
    """Add a line to .dvcignore."""
    path = Path(".dvcignore")
    write(path, f"{path.read_text()}{line}\n")
