"""Tamperings that also change what says where the ledger ends, or who vouches for a result: an anchor finds the first.

The ledger's end stands in `synced` and in the experiments. For an entry of dvc.lock without a line in the ledger,
DVC's run cache or git vouches.
"""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from dvcfleet.crash_recovery import SYNCED
from dvcfleet.dvc_adapter.run_cache import entry_hash, run_key
from dvcfleet.record.environments import sha256
from dvcfleet.record.ledger import Execution, entry_digest, sound_lines
from tests.faults.tamperings.edits import (
    ENTRY,
    LEDGER_FILE,
    STATE,
    edit_json,
    forget_experiments,
    git_commit,
    lock_entry,
    tampering,
)
from tests.faults.tamperings.files import CACHE
from tests.faults.tamperings.ledger import (
    commit_rewritten,
    environment_forged,
    last_line_removed_with_experiments,
    ledger_removed,
    ledger_rewritten_with_experiments,
    line_rewritten,
)
from tests.faults.tamperings.together import (
    SCORED,
    hidden_and_told,
    merge_told,
    plot_told,
    score_reproduced,
    score_told_alone,
    score_told_unsigned,
)

NOTE = STATE / SYNCED
AS_RUN = "it looks like a later run of these stages"
NOBODY = "nothing in the repository says otherwise"


@tampering("another end of the ledger in `synced`")
def synced_edited() -> None:
    edit_json(NOTE, ledger="0" * 64)


@tampering("a new line at the ledger's end, chained correctly", why=AS_RUN)
def line_appended() -> None:
    append("report")


@tampering("a score, all downstream stages, and new lines at the ledger's end", is_consistent=True, why=AS_RUN)
def score_appended() -> None:
    score_reproduced()
    append(SCORED, f"record@{ENTRY}", "report")


@tampering("`synced` removed", why="the ledger is unchanged, and the experiments confirm its end")
def synced_removed() -> None:
    NOTE.unlink()


@tampering("the ledger's last line removed, with experiments and `synced`", is_consistent=True, why=NOBODY)
def last_line_removed_with_ends() -> None:
    last_line_removed_with_experiments()
    name_end()


@tampering(
    "the ledger removed, with experiments and `synced`",
    is_consistent=True,
    why="it looks like a repository run by `dvc repro`",
)
def ledger_removed_with_ends() -> None:
    ledger_removed()
    forget_experiments()
    NOTE.unlink()


@tampering("another host in all lines, with a new chain, experiments and `synced`", is_consistent=True, why=NOBODY)
def ledger_rewritten_with_ends() -> None:
    ledger_rewritten_with_experiments()
    name_end()


@tampering(
    "a stage's time and user in the ledger, with a new chain, experiments and `synced`", is_consistent=True, why=NOBODY
)
def line_rewritten_with_ends() -> None:
    line_rewritten()
    forget_experiments()
    name_end()


@tampering("another commit in all lines, with a new chain, experiments and `synced`", is_consistent=True, why=NOBODY)
def commit_rewritten_with_ends() -> None:
    commit_rewritten()
    name_end()


@tampering(
    "another environment in all lines, with a new chain, experiments and `synced`", is_consistent=True, why=NOBODY
)
def environment_forged_with_ends() -> None:
    environment_forged()
    name_end()


@tampering(
    "a score and all downstream stages, with the ledger's lines, a new chain, experiments and `synced`",
    is_consistent=True,
    why=NOBODY,
)
def score_told_with_ends() -> None:
    score_told_alone()
    name_end()


@tampering(
    "a score and all downstream stages, with ledger, experiments, `synced` and signatures",
    is_consistent=True,
    why=NOBODY,
)
def score_told_unsigned_with_ends() -> None:
    score_told_unsigned()
    name_end()


@tampering("a merge, with the ledger's lines, a new chain, experiments and `synced`", is_consistent=True, why=NOBODY)
def merge_told_with_ends() -> None:
    merge_told()
    name_end()


@tampering("a plot, with the ledger's line, a new chain, experiments and `synced`", is_consistent=True, why=NOBODY)
def plot_told_with_ends() -> None:
    plot_told()
    name_end()


@tampering(
    "a planted file hidden by a committed rule, with that commit in all lines, a new chain, experiments and `synced`",
    is_consistent=True,
    why=NOBODY,
)
def hidden_and_told_with_ends() -> None:
    hidden_and_told()
    name_end()


@tampering(
    "a score and all downstream stages by `dvc repro`; the true score removed from run cache and experiments",
    is_consistent=True,
    why=NOBODY,
)
def run_cache_forged() -> None:
    score_reproduced()
    _forget_true(keeps_forged=True)


@tampering(
    "a score and all downstream stages by `dvc repro`; the run cache and the experiments removed",
    is_consistent=True,
    why="without a run cache there is nothing to compare with",
)
def run_cache_emptied() -> None:
    score_reproduced()
    forget_experiments()
    shutil.rmtree(CACHE / "runs")


@tampering(
    "a score and all downstream stages by `dvc repro`; removed from the run cache, and committed to git",
    is_consistent=True,
    why="git vouches, and names the author of the commit",
)
def score_in_git() -> None:
    score_reproduced()
    _forget_true(keeps_forged=False)
    git_commit("dvc.lock")


def append(*stages: str) -> None:
    """Add lines to the ledger by which a later run made the present entries of stages."""
    for stage in stages:
        last = LEDGER_FILE.read_bytes().splitlines()[-1]
        new = replace(ran(stage), user="somebody", entry=entry_digest(lock_entry(stage)), before=sha256(last))
        with LEDGER_FILE.open("ab") as ledger:
            ledger.write(json.dumps(asdict(new)).encode() + b"\n")


def ran(stage: str) -> Execution:
    """Return a stage's last execution."""
    return [execution for _, execution in sound_lines(LEDGER_FILE) if execution.stage == stage][-1]


def name_end() -> None:
    """Let `synced` name the ledger's present end."""
    edit_json(NOTE, ledger=sha256(LEDGER_FILE.read_bytes().splitlines()[-1]))


def _forget_true(keeps_forged: bool) -> None:
    """Remove the experiments, and the true runs of the scored stage from the run cache."""
    forget_experiments()
    entry = lock_entry(SCORED)
    key = run_key(entry)
    for path in Path(CACHE, "runs", key[:2], key).iterdir():
        if not (keeps_forged and path.name == entry_hash(entry)):
            path.unlink()
