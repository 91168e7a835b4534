"""Estimate a plan's CPU and GPU time, disk and downloads before it runs, from earlier runs of its stages."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rich.filesize import decimal

from dvcfleet.dvc_adapter.objects import is_near_output
from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import is_params, kind_of
from dvcfleet.errors import format_duration, some, stage_count
from dvcfleet.planning.plan import Plan, State
from dvcfleet.planning.resources import Resources
from dvcfleet.project import Expected
from dvcfleet.scheduling.durations import medians
from dvcfleet.scheduling.order import paths
from dvcfleet.terminal.machine_limits import usable_cpus

_NAMED = 4


@dataclass(frozen=True)
class KnownAmounts:
    """An amount per stage: the last one, else the median of its kind, or the expected one."""

    before: Mapping[str, float]
    of_kind: Mapping[str, float]
    expected: Mapping[str, float] = field(default_factory=dict)
    is_new: bool = False  # the stages' sources: then what is expected says more than what others of their kind took

    def of(self, name: str) -> float | None:
        """Return a stage's amount; None if none is expected, and no stage of its kind has run."""
        kind, expected = self.of_kind.get(kind_of(name)), self.expected.get(name)
        others = (expected, kind) if self.is_new else (kind, expected)
        return next((each for each in (self.before.get(name), *others) if each is not None), None)

    def among(self, names: Iterable[str]) -> dict[str, float]:
        """Return the known amounts of these stages."""
        return {name: each for name in names if (each := self.of(name)) is not None}


def estimate(
    plan: Plan,
    seconds: Mapping[str, float],
    cpu_s: Mapping[str, float],
    resources: Callable[[Stage], Resources],
    workers: int | None,
    is_download: Callable[[Path], bool],
    expect: Callable[[Mapping[str, tuple[str, ...]]], Expected],
) -> Iterator[str]:
    """Return lines with the cost of the stages that a run would run; empty if there are none.

    `seconds`, `cpu_s`: of earlier runs; CPU time from the ledger, else threads times seconds; `resources`: returns
    a stage's requests; `workers`: threads at once, None: unknown; `is_download`, `expect`: as in `Project`, for
    files that stages read.
    """
    names = [planned.name for planned in plan.work if planned.state not in (State.RESTORABLE, State.BLOCKED)]
    if not names:
        return
    wanted = {name: resources(plan.stages[name]) for name in names}
    # All stages of the plan that ran, not only those to run again, say what their kind writes.
    sizes = {name: size for name, stage in plan.stages.items() if (size := _written_before(stage)) is not None}
    ran = sizes.keys() & _of_these_sources(plan)
    once = cache(is_download)  # many stages read the same files
    fetched = {name: sources for name in names if (sources := list(filter(once, _sources(plan.stages[name]))))}
    new = list(dict.fromkeys(source for name in fetched if name not in ran for source in fetched[name]))
    of_kind = medians(seconds)
    asks = new or any(kind_of(name) not in of_kind for name in names)
    expected = expect({name: plan.planned[name].needs for name in names}) if asks else Expected()
    before = {name: seconds[name] for name in names if name in seconds and (name in ran or not new)}
    time = KnownAmounts(before, of_kind, expected.seconds, bool(new))
    took = time.among(names)
    amounts = sizes | {name: size for name, size in expected.written.items() if name not in ran}
    written = KnownAmounts(amounts, medians(sizes)).among(names)
    downloaded = float(sum(expected.downloads.get(source, 0) for source in new))
    downloaded += sum(sizes[name] for name in fetched if name in ran)
    if took or written:
        used = KnownAmounts(cpu_s, medians(cpu_s)).among(took)
        yield _total(took, used, wanted, sum(written.values()), downloaded)
    if took:
        yield _at_least(plan, took, wanted, workers)
        yield _basis(time, took)
    away = [name for name in fetched if name not in ran and not expected.downloads.keys() & set(fetched[name])]
    yield from _unknown("time", [name for name in names if name not in took])
    yield from _unknown("disk", [name for name in names if name not in written])
    yield from _unknown("size of the download", away)


def _of_these_sources(plan: Plan) -> set[str]:
    """Name the stages whose last run depended on the current sources, none of which has been replaced."""
    done: set[str] = set()
    for name, planned in plan.planned.items():
        sources = set(map(str, _sources(plan.stages[name])))
        if done.issuperset(planned.needs) and all(
            dep.hash_info for dep in plan.stages[name].deps if dep.fs_path in sources
        ):
            done.add(name)
    return done


def _total(
    took: Mapping[str, float],
    used: Mapping[str, float],
    wanted: Mapping[str, Resources],
    written: float,
    downloaded: float,
) -> str:
    cpu = sum(used.get(name, wanted[name].threads * each) for name, each in took.items())
    gpu = sum(wanted[name].gpus * each for name, each in took.items())
    parts = [f"{format_duration(cpu)} of CPU time"] if took else []
    parts += [f"{format_duration(gpu)} of GPU time"] if any(wanted[name].gpus for name in took) else []
    parts += [f"{decimal(round(written))} of disk"] if written else []
    parts += [f"{decimal(round(downloaded))} downloaded"] if downloaded else []
    return f"expected: {', '.join(parts)}"


def _at_least(plan: Plan, took: Mapping[str, float], wanted: Mapping[str, Resources], workers: int | None) -> str:
    """Return the least time: along the longest path, and with all workers busy."""
    longest = max(paths({name: planned.needs for name, planned in plan.planned.items()}, took).values())
    threads = workers or usable_cpus()
    work = sum(min(wanted[name].threads, threads) * each for name, each in took.items()) / threads
    return f"no less than {format_duration(max(longest, work))} with {threads} workers"


def _basis(time: KnownAmounts, took: Mapping[str, float]) -> str:
    others = [name for name in took if name not in time.before]
    by_rule = [name for name in others if took[name] == time.expected.get(name)]
    parts = [f"what {stage_count(len(took) - len(others))} took before"] if len(others) < len(took) else []
    parts += [f"for {len(others) - len(by_rule)} more the median of their kind"] if len(by_rule) < len(others) else []
    parts += [f"for {len(by_rule)} that never ran, a rule of thumb, up to a factor of three off"] if by_rule else []
    return f"time: {', and '.join(parts)}; stages found up to date are not run"


def _unknown(what: str, names: list[str]) -> Iterator[str]:
    kinds = list(dict.fromkeys(map(kind_of, names)))
    if kinds:
        yield f"not known, and not counted: the {what} of {stage_count(len(names))} ({some(kinds, _NAMED)})"


def _written_before(stage: Stage) -> float | None:
    """Return the bytes of a stage's outputs in its last run; None if it never ran."""
    sizes = [out.meta.size for out in stage.outs if out.hash_info]
    return float(sum(size or 0 for size in sizes)) if sizes else None


def _sources(stage: Stage) -> list[Path]:
    """Return the stage's input files that no stage writes."""
    local = [dep.fs_path for dep in stage.deps if dep.protocol == "local" and not is_params(dep)]
    return [Path(path) for path in local if not is_near_output(stage.repo, path) and os.path.isfile(path)]
