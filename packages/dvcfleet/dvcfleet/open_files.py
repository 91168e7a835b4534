"""The limit of open files (`ulimit -n`): a run has some open for each stage that it waits for."""

import os
import resource

from dvcfleet.errors import UserError

# What a run was seen to have open: 4 for each stage, and 23 besides; a database or a client may open more.
PER_STAGE, BESIDES = 5, 80
# Tells a fork server, whose limit is as this process's, which limit its commands get.
_GIVEN = "DVCFLEET_OPEN_FILES"
_given: dict[str, str] = {}


def room_for(stages: int) -> int:
    """Raise this process's limit as far as so many stages at once need; return how many it then has room for.

    Raises UserError if there is no room for a single one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = BESIDES + PER_STAGE * stages
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return stages
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    fitting = (limit - BESIDES) // PER_STAGE
    if fitting < 1:
        raise UserError(
            f"a process may open {limit} files here (ulimit -n), a run needs {BESIDES + PER_STAGE}: raise it"
        )
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        _given.setdefault(_GIVEN, str(soft))
    return min(stages, fitting)


def given_limit() -> dict[str, str]:
    """Return the variable that tells a fork server the limit that was raised; nothing if none was."""
    return dict(_given)


def restore_limit() -> None:
    """Give a process that becomes a command the limit that the run was given."""
    if given := os.environ.pop(_GIVEN, ""):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(given), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
