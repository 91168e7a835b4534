"""What to write so that a merge leaves out the parameters that do not fit."""

from collections.abc import Collection

from merganser.checkpoints.kinds import HEADS, ParameterRules, is_head
from merganser.checkpoints.tensors import parameter_of

SHOWN = 4  # patterns, at most


def without(unfit: Collection[str], names: Collection[str], rules: ParameterRules, by_name: bool = False) -> str:
    """Say how to merge without some parameters: the one prefix of all others where there is one, else their own.

    `names`: all that would be merged; `by_name`: their own in any case. The words are those of params.yaml, or of the
    command line.
    """
    unfit, names = (dict.fromkeys(map(parameter_of, each)) for each in (unfit, names))
    left = {_first(name) for name in unfit}
    heads = [name for name in names if _first(name) in left and is_head(name, HEADS)]  # left out whole
    kept = {_first(name) for name in names if name not in {*unfit, *heads}}
    own = ", ".join(dict.fromkeys(f'"{_first(name)}.*"' for name in unfit if is_head(name, HEADS)))
    each = f"where each task has a head of its own, base.heads: [{own}], else " if own and not rules.flags else ""
    if len(kept) == 1 and not kept & left and not by_name:
        pattern = f"{kept.pop()}.*"
        written = f"--only '{pattern}'" if rules.flags else f'parameters.merged: ["{pattern}"]'
        return f"{each}merge without it: {written}"
    if not rules.flags:
        return f"{each}leave it out of parameters.merged"
    patterns = list(dict.fromkeys(name if _first(name) in kept | {name} else f"{_first(name)}.*" for name in unfit))
    more = f" and {len(patterns) - SHOWN} more" if len(patterns) > SHOWN else ""
    shown = " ".join(f"--except '{pattern}'" for pattern in patterns[:SHOWN])
    return f"merge without it: {shown}{more}"


def _first(name: str) -> str:
    return name.split(".")[0]
