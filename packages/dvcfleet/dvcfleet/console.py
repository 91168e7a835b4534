"""What a run prints."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.errors import format_duration, some
from dvcfleet.estimate import estimate
from dvcfleet.messages import Ending, Result
from dvcfleet.placement import Placement
from dvcfleet.planning.orphans import Orphan, orphan_lines
from dvcfleet.planning.plan import Plan, PlannedStage, State
from dvcfleet.project import project_of
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.scheduling.durations import last_cpu_times, last_durations
from dvcfleet.terminal.secrets import printable
from dvcfleet.worker.output import last_line, log_path

_STYLES = {Result.FAILED: "red", Result.BLOCKED: "yellow", Result.STOPPED: "yellow"}
# Seconds without output before the first heartbeat, and the longest time between two.
FIRST_S, LONGEST_S = 60.0, 600.0
_STAGES, _WIDTH = 4, 160


class Heartbeat:
    """A thread that calls `beat` after a minute without output, then after two, four, ... up to ten more minutes."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.restart()

    def restart(self) -> None:
        """Restart the timer: something was printed."""
        self._interval, self._due = FIRST_S, time.monotonic() + FIRST_S

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(max(0.0, self._due - time.monotonic())):
            if time.monotonic() >= self._due:
                # Before the beat: what is printed meanwhile restarts the timer.
                self._interval = min(2 * self._interval, LONGEST_S)
                self._due = time.monotonic() + self._interval
                self._beat()


def describe_longest(root: Path, began: Mapping[str, float], now: float) -> Iterable[str]:
    """Describe the first stages of `began`, which has start times by name: the time since then, and the last line."""
    for name, then in list(began.items())[:_STAGES]:
        line = printable(last_line(log_path(root, name)))
        yield f"{name} is not done after {format_duration(now - then)}{f': {line[:_WIDTH]}' if line else ''}"
    if len(began) > _STAGES:
        yield f"and {len(began) - _STAGES} more"


class Progress:
    """Show a run's progress: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, plan: Plan, name: str, console: Console) -> None:
        self._console = console
        self._total = len(plan.work)
        self._ended = 0
        self._root = Path(next(iter(plan.stages.values())).repo.root_dir)
        # Start times.
        self._running: dict[str, float] = {}
        self._waiting: Sequence[str] = ()
        self._heartbeat = Heartbeat(self._beat)
        self._bar = Bar(
            TextColumn(f"[bold]{name}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[running]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._row = self._bar.add_task("", total=self._total, running="")
        console.print(f"run {name}: {self._total} of {len(plan.planned)} stages are not up to date")

    def __enter__(self) -> "Progress":
        self._bar.start()
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.__exit__()
        self._bar.stop()

    def began(self, name: str) -> None:
        """Record that a stage was started."""
        self._running[name] = time.monotonic()
        self._show()

    def again(self, name: str, why: str) -> None:
        """Print that a stage is started again, and why."""
        self._running.pop(name, None)
        self._say(f"{name} is started again: {why}", "yellow")

    def waits(self, names: Sequence[str], line: str) -> None:
        """Record which of the started stages wait for a node, replacing earlier ones; print a line, if any."""
        for name in {*self._waiting}.intersection(self._running).difference(names):
            self._running[name] = time.monotonic()  # a node has joined
        self._waiting = names
        if line:
            self._say(line, "yellow")

    def ended(self, ending: Ending) -> None:
        """Print how a stage ended, and the last lines of output of one that failed."""
        self._running.pop(ending.name, None)
        self._ended += 1
        self._show()
        width = len(str(self._total))
        line = f"[{self._ended:>{width}}/{self._total}] {ending.name} {_result_in_words(ending)}"
        self._say(line, _STYLES.get(ending.result))
        if ending.result is Result.FAILED:
            for text in ending.outcome.tail:
                self._say(f"    {text}")

    def hastens(self) -> None:
        """Print that the stages that still run are killed."""
        self._say("killing the stages that still run", "yellow")

    def _beat(self) -> None:
        at_work = {name: began for name, began in list(self._running.items()) if name not in self._waiting}
        for line in describe_longest(self._root, at_work, time.monotonic()):
            self._print(line)

    def _say(self, line: str, style: str | None = None) -> None:
        self._heartbeat.restart()
        self._print(line, style)

    def _print(self, line: str, style: str | None = None) -> None:
        if self._console.is_terminal:
            self._console.print(line, style=style, markup=False)
        else:
            # Same output, ten times as fast: there is no colour and no bar.
            self._console.file.write(f"{line}\n")
            self._console.file.flush()

    def _show(self) -> None:
        if not self._console.is_terminal:
            return
        self._bar.update(self._row, completed=self._ended, running=", ".join(list(self._running)[:4]))


def _result_in_words(ending: Ending) -> str:
    if ending.result is Result.DONE:
        return f"done in {ending.outcome.seconds:.1f} s{f'; {ending.why}' if ending.why else ''}"
    return f"{ending.result}: {ending.why}" if ending.why else str(ending.result)


def show_summary(endings: dict[str, Ending], console: Console) -> None:
    """Print why stages failed, each with the last line that it printed, the number by result, and how to continue."""
    counts = Counter(ending.result for ending in endings.values())
    for ending in endings.values():
        if ending.result is Result.FAILED:
            last_line = next((line.strip() for line in reversed(ending.outcome.tail) if line.strip()), "")
            last = f"; its last line: {last_line}" if last_line else ""
            console.print(f"{ending.name} failed: {ending.why}{last}", style="red", markup=False)
    console.print(", ".join(f"{counts[result]} {result}" for result in Result if counts[result]))
    if counts[Result.STOPPED]:
        also = "; failed stages will be tried again" if counts[Result.FAILED] else ""
        console.print(f"Stopped. Finished stages are kept: run the same command again to go on{also}.")
    elif any(counts[result] for result in _STYLES):
        console.print("Finished stages are kept. Fix the failed stages and run the same command again to continue.")


def show_unproven(stages: Sequence[str], console: Console) -> None:
    """Print which stages were restored from the run cache although no ledger has a run that made them."""
    if stages:
        console.print(
            f"restored from the run cache, and no ledger records its run: {some(stages)}; ledgers have no lines for "
            "results of `dvc repro` or other users of the cache. To recreate it: --force with these names; to know who "
            "made it: copy their ledger into .dvcfleet/ledgers",
            style="yellow",
            markup=False,
        )


def show_packages(endings: Iterable[Ending], console: Console) -> None:
    """Print which packages have other versions on some of a cluster's nodes: results may differ by them."""
    starts = [ending.outcome.start for ending in endings]
    described = [(start.host, start.environment) for start in starts if start and start.environment]
    nodes = {(host, frozenset([("Python", about["python"]), *about["packages"].items()])) for host, about in described}
    if len(nodes) < 2:
        return
    hosts: dict[str, dict[str, list[str]]] = {name: {} for _, packages in nodes for name, _ in packages}
    for host, packages in sorted(nodes, key=lambda node: node[0]):
        own = dict(packages)
        for name, by_version in hosts.items():
            by_version.setdefault(own.get(name, "no version"), []).append(host)
    several = [
        f"{name} ({', '.join(f'{version} on {some(those)}' for version, those in by_version.items())})"
        for name, by_version in sorted(hosts.items())
        if len(by_version) > 1
    ]
    if several:
        text = f"stages ran with different packages: {some(several)}; give all nodes the same environment"
        console.print(text, style="yellow", markup=False)


def exit_code(endings: Iterable[Ending]) -> int:
    """Return 0 if all stages succeeded, 2 if all failures are the user's mistakes, else 1."""
    bad = [ending for ending in endings if ending.result in _STYLES]
    failed = [ending for ending in bad if ending.result is Result.FAILED]
    if not bad:
        return 0
    return 2 if failed and all(ending.outcome.exit_code == 2 for ending in failed) else 1


def show_plan(plan: Plan, place: Placement, root: Path, console: Console) -> None:
    """Print what a run in the repository at `root` would do, and why, and what that takes."""
    seconds = last_durations(root / STATE_FOLDER)
    for line in overview(plan.work, seconds):
        console.print(line, markup=False)
    show_orphans(plan.orphans, console)
    counts = Counter(stage.state for stage in plan.planned.values())
    console.print(", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "no stages")
    project = project_of(root)
    with chdir(root):
        before = seconds, last_cpu_times(root / STATE_FOLDER)
        for line in estimate(plan, *before, place.resources, place.workers, project.is_download, project.expect):
            console.print(line, markup=False)


def overview(work: Iterable[PlannedStage], seconds: Mapping[str, float]) -> Iterator[str]:
    """List the stages that would run, kind by kind, those of one reason on a line; `seconds`: what they took before."""
    stages = list(work)
    for kind in dict.fromkeys(kind_of(stage.name) for stage in stages):
        of_kind = [stage for stage in stages if kind_of(stage.name) == kind]
        if len(of_kind) == 1:
            (stage,) = of_kind
            yield f"{stage.name}: {stage.state} ({'; '.join(stage.reasons)})"
            continue
        counts = Counter(stage.state for stage in of_kind)
        took = sum(seconds.get(stage.name, 0.0) for stage in of_kind)
        spent = f"; took {format_duration(took)} before" if took else ""
        yield f"{kind}: {', '.join(f'{count} {state}' for state, count in counts.items())}{spent}"
        for (state, why), names in _by_reason(of_kind).items():
            yield f"    {state}{f' ({why})' if why else ''}: {', '.join(names)}"


def _by_reason(stages: Iterable[PlannedStage]) -> dict[tuple[State, str], list[str]]:
    """Group stages of a kind by state and reasons; which others a stage waits for is left out."""
    by_reason: dict[tuple[State, str], list[str]] = {}
    for stage in stages:
        why = "" if stage.state is State.WAITING else "; ".join(stage.reasons)
        by_reason.setdefault((stage.state, why), []).append(stage.name.partition("@")[2] or stage.name)
    return by_reason


def show_orphans(orphans: Iterable[Orphan], console: Console) -> None:
    """Print which stages are no longer in dvc.yaml."""
    for line in orphan_lines(list(orphans)):
        console.print(line, style="yellow", markup=False)
