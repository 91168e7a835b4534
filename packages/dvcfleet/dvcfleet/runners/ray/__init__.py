"""Ray, through prefect-ray: a cluster at an address, or one of this machine for the time of a run."""

from contextlib import AbstractContextManager

from dvcfleet.process_settings import set_own
from dvcfleet.runners import Runner, RunnerRequest

TAKES_ADDRESS = True
# No usage statistics; a stage that requests no GPU sees none.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Otherwise Ray uses the address of a network interface, even on one machine.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def open_runner(asked: RunnerRequest) -> AbstractContextManager[Runner]:
    """Connect to the cluster at the address, or start one."""
    from dvcfleet.scheduling.resource_pool import LOOPBACK

    is_here = asked.address is None or asked.address.rpartition(":")[0] in LOOPBACK
    for variable, value in (_SETTINGS | (_ON_LOOPBACK if is_here else {})).items():
        set_own(variable, value)  # before Ray is imported
    from dvcfleet.runners.ray.cluster import at, local

    return at(asked.address, asked.workers) if asked.address else local(asked.threads_here)
