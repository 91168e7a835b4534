"""The environment of a stage's commands: who says what, and who wins."""

import os
from collections.abc import Mapping, Sequence

from dvcfleet.messages import Job
from dvcfleet.worker.gpus import GPUS_VARIABLE


def stage_environment(job: Job, project: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Return the variables that a job's commands get besides those of the process that starts them.

    That process's are the user's (`command_environment`). These win over them, and of these the later: what the
    `project` says; what DVC says; the limits of numerical libraries, if the stage asks for a number of threads; the
    `gpus` that the stage was given, if anybody counts them.
    """
    dvc = {"DVC_ROOT": os.environ.get("DVC_ROOT", job.root), "DVC_STAGE": job.name}
    named = {} if gpus is None else {GPUS_VARIABLE: ",".join(gpus)}
    return {**project, **dvc, **job.limits, **named}
