"""Stages of which only one runs at a time, in the order of `dvc repro`: they write a file that none of them declares.

A stage's `meta` names its group (`exclusive: NAME`). Stages that use dvclive get one by themselves: dvclive reads and
rewrites dvc.yaml at each step, and of two that do so at the same time one may take the other's half-written file for
the whole.
"""

from collections.abc import Callable, Iterable, Mapping
from os.path import relpath

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import exclusive
from dvcfleet.errors import some

# What changes dvc.yaml: dvclive, and the function of DVC's with which it does.
WRITERS = rb"\b(dvclive|modify_yaml)\b"
_DVCLIVE = "dvclive"


def exclusive_groups(
    stages: Iterable[Stage], rewrites: Callable[[Stage], bool] = lambda stage: False
) -> dict[str, str]:
    """Return the groups of the stages that are in one, by the stages' names.

    `rewrites` tells whether a stage's code changes the dvc.yaml in its working folder. Raises UserError.
    """
    groups = {}
    for stage in stages:
        name = exclusive(stage)
        if name is None and stage.cmd and rewrites(stage):
            folder = relpath(stage.wdir, stage.repo.root_dir)
            name = _DVCLIVE if folder == "." else f"{_DVCLIVE} in {folder}"
        if isinstance(name, str):
            groups[stage.addressing] = name
    return groups


def found_in_code(stages: Iterable[Stage], groups: Mapping[str, str]) -> list[str]:
    """Say which stages take turns without their `meta` asking for it, a line for each group of more than one."""
    members: dict[str, list[str]] = {}
    for stage in stages:
        if stage.addressing in groups and exclusive(stage) is None:
            members.setdefault(groups[stage.addressing], []).append(stage.addressing)
    return [
        f"{some(names)} use dvclive, which rewrites dvc.yaml: they run one at a time, in the order of dvc repro "
        "(meta: {dvcfleet: {exclusive: false}} lets a stage run beside the others)"
        for names in members.values()
        if len(names) > 1
    ]


def predecessors(names: Iterable[str], groups: Mapping[str, str]) -> dict[str, str]:
    """Return which stage each one waits for: the one of its group before it in this order.

    >>> predecessors(["a", "b", "c", "d"], {"a": "x", "c": "x", "d": "y"})
    {'c': 'a'}
    """
    latest: dict[str, str] = {}
    found = {}
    for name in names:
        if group := groups.get(name):
            if group in latest:
                found[name] = latest[group]
            latest[group] = name
    return found
