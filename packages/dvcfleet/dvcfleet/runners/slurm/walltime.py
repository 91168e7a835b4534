"""For how long a job of SLURM is asked for: for what its stages took before, with room to spare."""

import math
import re

LEAST_S = 3600.0
_TIMES, _SPARE_S = 3, 300.0
_FORM = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_NO_LIMIT = ("infinite", "UNLIMITED", "INFINITE")


def needed_s(timeout_s: float | None, took_s: float | None, overran_s: float) -> float | None:
    """Return how many seconds a stage may need; None if nothing is known of it.

    `timeout_s`: after which it is ended anyway; `took_s`: what it took before; `overran_s`: what a job had that ended
    at its limit while the stage ran, else 0.

    >>> needed_s(None, 1000.0, 0.0), needed_s(600.0, 1000.0, 0.0), needed_s(None, None, 3600.0)
    (3300.0, 900.0, 7200.0)
    """
    if timeout_s is not None:
        return timeout_s + _SPARE_S
    least = 2 * overran_s
    if took_s is None:
        return least or None
    return max(least, _TIMES * took_s + _SPARE_S)


def walltime_s(need_s: float | None, unknown_s: float, most_s: float) -> float:
    """Return for how many seconds to ask for a job: an hour, doubled until it is enough, and at most `most_s`.

    `unknown_s`: for a stage of which nothing is known.

    >>> walltime_s(900.0, 1800.0, math.inf), walltime_s(9000.0, 1800.0, math.inf), walltime_s(None, 1800.0, math.inf)
    (3600.0, 14400.0, 1800.0)
    """
    wanted = unknown_s if need_s is None else LEAST_S * 2 ** max(0, math.ceil(math.log2(need_s / LEAST_S)))
    return min(wanted, most_s)


def seconds_of(text: str) -> float:
    """Return the seconds of a time as SLURM writes it; raise ValueError for any other text.

    >>> seconds_of("1-02:00:00"), seconds_of("30:00"), seconds_of("90"), seconds_of("2-12"), seconds_of("infinite")
    (93600.0, 1800.0, 5400.0, 216000.0, inf)
    """
    if text in _NO_LIMIT:
        return math.inf
    # Without quotes, YAML reads 12:00:00 as a number.
    if not (match := isinstance(text, str) and _FORM.fullmatch(text)):
        raise ValueError(f"{text!r} is no time of SLURM's, such as '1-12:00:00' in quotes")
    days, *rest = match.groups()
    given = [int(each) for each in rest if each]
    if days:
        hours, minutes, seconds = [*given, 0, 0][:3]
    elif len(given) == 3:
        hours, minutes, seconds = given
    else:
        hours, (minutes, seconds) = 0, [*given, 0][:2]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def in_slurms_form(seconds: float) -> str:
    """Write a time as SLURM reads it, in whole minutes.

    >>> in_slurms_form(3600.0), in_slurms_form(93601.0)
    ('0-01:00:00', '1-02:01:00')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
