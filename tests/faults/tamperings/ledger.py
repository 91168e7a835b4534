"""Tamperings with the ledger, the environments and the experiments, which say who ran what, when and where."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from tests.faults.tamperings.edits import (
    LEDGER_FILE,
    STATE,
    edit_lines,
    forget_experiments,
    rewrite_ledger,
    tampering,
    write,
)

ENVIRONMENTS = STATE / "environments"
WHO = "another-host"


@tampering("a line of the ledger removed")
def line_removed() -> None:
    edit_lines(lambda lines: [*lines[:3], *lines[4:]])


@tampering("another host in a line of the ledger")
def line_edited() -> None:
    edit_lines(lambda lines: [lines[0].replace(b'"host": "', b'"host": "x'), *lines[1:]])


@tampering("the ledger's first line, added again at the end", why="a repeated line says nothing new")
def line_added() -> None:
    edit_lines(lambda lines: [*lines, lines[0]])


@tampering("the ledger removed")
def ledger_removed() -> None:
    LEDGER_FILE.unlink()


@tampering("the ledger's last line removed, with the experiments")
def last_line_removed_with_experiments() -> None:
    edit_lines(lambda lines: lines[:-1])
    forget_experiments()


@tampering("the chain removed from all lines of the ledger")
def chain_stripped() -> None:
    edit_lines(lambda lines: [json.dumps(json.loads(line) | {"before": None}).encode() for line in lines])


@tampering("the chain removed from all lines, with the experiments", is_consistent=True)
def chain_stripped_with_experiments() -> None:
    chain_stripped()
    forget_experiments()


@tampering("another host in all lines, with a new chain", is_consistent=True)
def ledger_rewritten() -> None:
    rewrite_ledger(lambda one: replace(one, host=WHO), from_first=True)


@tampering("another host in all lines, with a new chain and the experiments", is_consistent=True)
def ledger_rewritten_with_experiments() -> None:
    ledger_rewritten()
    forget_experiments()


@tampering("a stage's time and user in the ledger, with a new chain", is_consistent=True)
def line_rewritten() -> None:
    rewrite_ledger(lambda one: replace(one, seconds=0.001, user="somebody") if one.stage == "merge@ties" else one)


@tampering("another commit in all lines, with a new chain and the experiments", is_consistent=True)
def commit_rewritten() -> None:
    rewrite_ledger(lambda one: replace(one, commit="0" * 40), from_first=True)
    forget_experiments()


@tampering(
    "a planted ledger of another host, claiming the results",
    is_consistent=True,
    why="the repository's own ledger counts first",
)
def ledger_planted() -> None:
    content = LEDGER_FILE.read_bytes()
    rewrite_ledger(lambda one: replace(one, host=WHO, began=f"2020{one.began[4:]}"), from_first=True)
    write(STATE / "ledgers/node.jsonl", LEDGER_FILE.read_bytes())
    write(LEDGER_FILE, content)


@tampering("an environment's description")
def environment_edited() -> None:
    path = _environment()
    write(path, path.read_bytes() + b" ")


@tampering(
    "an environment's description removed",
    why="`verify` writes the description of its own environment again, as a run does",
)
def environment_removed() -> None:
    _environment().unlink()


@tampering("another environment in all lines, with a new chain and the experiments", is_consistent=True)
def environment_forged() -> None:
    path = _environment()
    content = path.read_bytes().replace(b'"torch"', b'"torch2"', 1)
    digest = hashlib.sha256(content).hexdigest()
    path.unlink()
    write(path.with_name(f"{digest}.json"), content)
    rewrite_ledger(lambda one: replace(one, environment=digest), from_first=True)
    forget_experiments()


@tampering(
    "the experiments removed",
    why="they are copies of results that are still here",
)
def experiments_removed() -> None:
    forget_experiments()


def _environment() -> Path:
    return max(ENVIRONMENTS.glob("*.json"), key=lambda path: path.stat().st_size)
