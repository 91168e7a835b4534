"""The resources that a stage's `meta` requests: threads, GPUs, memory, attempts, time."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import own_meta
from dvcfleet.errors import UserError

_BYTES = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# What numerical libraries read when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)


@dataclass(frozen=True)
class Resources:
    """A stage's requested resources; by default one thread, no GPU, no memory or time limit, and one attempt.

    `limits_threads`: whether it asks for a number of threads, so that its libraries may use no more.
    """

    threads: int = 1
    gpus: int = 0
    memory_bytes: int = 0
    retries: int = 0
    timeout_s: float | None = None
    limits_threads: bool = False


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit numerical libraries to so many threads; what is set already stays as it is."""
    return {name: os.environ.get(name, str(threads)) for name in THREAD_VARIABLES}


def resources_of(stage: Stage, more: Mapping[str, Any] | None = None) -> Resources:
    """Return what a stage's `meta` requests, overridden by a profile's `more`; raise UserError for an invalid value."""
    meta, where = own_meta(stage)
    if more:
        meta = {**meta, **more, "resources": {**_resources(meta, where), **_resources(more, where)}}
    return read_resources(meta, where)


def read_resources(meta: Mapping[str, Any], where: str) -> Resources:
    """Return the resources that a `meta` requests; raise UserError, with `where` first, for an invalid value."""
    resources = _resources(meta, where)
    return Resources(
        threads=_whole(resources.get("threads", 1), 1, f"{where}.resources.threads"),
        gpus=_whole(resources.get("gpus", 0), 0, f"{where}.resources.gpus"),
        memory_bytes=round(_amount(resources.get("memory"), _BYTES, f"{where}.resources.memory", "8GB") or 0),
        retries=_whole(meta.get("retries", 0), 0, f"{where}.retries"),
        timeout_s=_amount(meta.get("timeout"), _SECONDS, f"{where}.timeout", "2h"),
        limits_threads="threads" in resources,
    )


def _resources(meta: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    resources = meta.get("resources", {})
    if not isinstance(resources, Mapping):
        raise UserError(f"{where}.resources should be a map such as {{threads: 2}}, got {resources!r}")
    for name in resources:
        if name not in ("threads", "gpus", "memory"):
            raise UserError(f"{where}.resources.{name}: unknown; there are threads, gpus and memory")
    return resources


def _whole(value: Any, least: int, where: str) -> int:
    if type(value) is not int or value < least:
        raise UserError(f"{where} should be a whole number from {least}, got {value!r}")
    return value


def _amount(value: Any, units: Mapping[str, float], where: str, example: str) -> float | None:
    """Parse an amount above 0 with its unit; without a unit it is in bytes or seconds."""
    if value is None:
        return None
    match = _AMOUNT.fullmatch(str(value))
    amount = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    if amount <= 0:
        known = ", ".join(filter(None, units))
        raise UserError(f"{where} should be an amount such as {example} (units: {known}), got {value!r}")
    return amount
