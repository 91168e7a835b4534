"""What to write so that a merge leaves out the parameters that do not fit."""

from collections.abc import Collection, Sequence

from merganser.checkpoints.kinds import HEADS, ParameterRules, is_head

SHOWN = 4  # patterns, at most


def without(unfit: Sequence[str], names: Collection[str], rules: ParameterRules, by_name: bool = False) -> str:
    """Say how to merge without some parameters: the one prefix of all others where there is one, else their own.

    `names`: all that would be merged; `by_name`: their own in any case. The words are those of params.yaml, or of the
    command line.
    """
    left = {_first(name) for name in unfit}
    heads = [name for name in names if _first(name) in left and is_head(name, HEADS)]  # left out whole
    kept = {_first(name) for name in names if name not in {*unfit, *heads}}
    if len(kept) == 1 and not kept & left and not by_name:
        pattern = f"{kept.pop()}.*"
        written = f"--only '{pattern}'" if rules.flags else f'parameters.merged: ["{pattern}"]'
        return f"merge without it: {written}"
    if not rules.flags:
        return "leave it out of parameters.merged"
    patterns = list(dict.fromkeys(name if _first(name) in kept | {name} else f"{_first(name)}.*" for name in unfit))
    more = f" and {len(patterns) - SHOWN} more" if len(patterns) > SHOWN else ""
    shown = " ".join(f"--except '{pattern}'" for pattern in patterns[:SHOWN])
    return f"merge without it: {shown}{more}"


def _first(name: str) -> str:
    return name.split(".")[0]
