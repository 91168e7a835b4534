"""Plan and simulate a full sweep on a cluster: `python -m benchmarks.scale`.

20 tasks, 45 entries and 3 seeds, an entry for each seed, as stages of the real dvc.yaml. In the simulation each stage
sleeps what the cost model says (`benchmarks.cost_model`), scaled down, on four Dask workers with two GPUs each, which
are made up. What is measured is the engine: the order in which it starts stages, and what it takes between them.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import yaml

from benchmarks import cost_model
from benchmarks.cost_model import CORE, GPU, Model
from benchmarks.harness import RESULTS, ROOT, Measured, Run, as_table, described, machine, measure, write_results
from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.planning.plan import Plan, plan
from dvcfleet.planning.resources import Resources
from dvcfleet.record.ledger import executions
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.scheduling.durations import Durations
from dvcfleet.scheduling.order import Locality, ReadyStages, paths
from dvcfleet.scheduling.resource_pool import Capacity, Machine, ResourcePool
from merganser.config import POINTS_FILE
from merganser.inputs.factors import FactorSettings
from merganser.studies.subsets import all_subsets
from merganser.tasks.stages import STAGES

TASKS, ENTRIES, SEEDS = 20, 45, 3
NODES, GPUS, THREADS = 4, 2, 8
IDEAL_S = 240.0
CLUSTERS = ((4, 2), (20, 8), (100, 8))  # nodes and GPUs of each, in virtual time
NODE_BYTES_S = 1.25e9  # what a node fetches in a second: 10 Gbit/s
# What the 45 entries read.
READS = {"deltas": 19, "svd": 8, "joints": 3, "learned": 5, "searches": 4, "routers": 2, "surgery": 1, "differences": 3}
STATISTICS = 8
CANDIDATES, CANDIDATE_IMAGES = 20, 500  # of a search, and what each is measured on of a task
SUBSETS = 10  # of each size, that the study of tasks merges
INPUTS: dict[str, Any] = {
    "joints": lambda seed: {"side": "left"},
    "learned": lambda seed: {"learner": "adamerging", "of": "deltas"},
    "searches": lambda seed: {"method": "average", "of": f"statistics/s0_{seed}"},
    "routers": lambda seed: {"of": "deltas"},
    "surgery": lambda seed: {"of": f"merged/deltas00_{seed}"},
    "differences": lambda seed: {"merged": f"deltas01_{seed}"},
}
WANTED = {kind: 1 for kind, about in STAGES.items() if about.device} | {"learn": 2}  # a whole node

# ViT-L/14: 24 blocks of width 1024.
WIDTH, BLOCKS, TOKENS, IMAGES = 1024, 24, 257, 5000
SHAPES = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH, WIDTH)) * BLOCKS
MODEL_BYTES = 4 * sum(rows * columns for rows, columns in SHAPES)
MODEL = Model(SHAPES, (WIDTH,) * 16 * BLOCKS, MODEL_BYTES, MODEL_BYTES, MODEL_BYTES)
FACTORS = FactorSettings(rank_fraction=0.3, dtype="float32")
STAND_IN = """
{
    read -r seconds
    sleep "$seconds"
    while read -r path; do
        folder="${path%/*}"
        [ -d "$folder" ] || mkdir -p "$folder"
        echo "$DVC_STAGE" > "$path"
    done
} < "stand-ins/$DVC_STAGE"
"""
RUN = "from merganser.flows.commands.cli import main; main()"
CHAINS = 10  # the longest ones, that are listed
CHAINED = "shared disk, points one after another"
CONTENT = "content"  # a file in each folder that a stage writes


@dataclass(frozen=True)
class Simulated:
    """What a simulated run took (seconds), beside the least that it could."""

    stages: int
    gpu_work_s: float
    critical_path_s: float
    ideal_s: float
    makespan_s: float
    whole_s: float
    cpu_s: float
    scale: float

    @property
    def share(self) -> float:
        """The ideal's share of the time from the first stage's start to the last one's end."""
        return self.ideal_s / self.makespan_s


def main() -> None:
    """Measure planning, simulate, measure planning again; print a report, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"how many tasks ({TASKS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many seeds ({SEEDS})")
    parser.add_argument("--ideal", type=float, default=IDEAL_S, metavar="S", help=f"scaled so that it is ({IDEAL_S:g})")
    parser.add_argument("--only-plan", action="store_true", help="simulate in virtual time only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    print(described(machine()), "\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        folder = Path(temporary) / "sweep"
        write_repository(folder, options.tasks, options.seeds)
        first = planned(folder)
        scale = write_stand_ins(folder, options.ideal)
        virtual = [virtual_share(folder, are_known) for are_known in (False, True)]
        print(
            f"In virtual time, where the engine itself takes none: {100 * virtual[0]:.1f} % of the ideal in a first "
            f"run, {100 * virtual[1]:.1f} % when the stages' durations are known.\n",
            flush=True,
        )
        heads = ("nodes x GPUs", "inputs", "s", "GPUs busy", "made, TB", "pulled, TB")
        print(as_table(heads, clusters := simulated_clusters(folder)), "\n", flush=True)
        print(as_table(("longest chains, s", "stages"), chains := longest_chains(folder)), "\n", flush=True)
        simulated = None if options.only_plan else simulate(folder, scale)
        again = None if options.only_plan else planned(folder)
    print(report(first, simulated, again))
    figures = {
        "first": first,
        "virtual_shares": virtual,
        "clusters": clusters,
        "chains": chains,
        "simulated": simulated,
        "again": again,
    }
    write_results(options.json or RESULTS / "scale.json", figures)


def planned(folder: Path) -> Measured:
    """Measure what it takes to say what would run."""
    return measure(Run([sys.executable, "-c", RUN, "run", "--dry-run", "--repo", str(folder)]))


def report(first: Measured, simulated: Simulated | None, again: Measured | None) -> str:
    """Return the figures as Markdown."""
    rows = [["planned, nothing ran yet", f"{first.wall_s:.1f}", f"{first.cpu_s:.1f}"]]
    if again:
        rows.append(["planned, all is up to date", f"{again.wall_s:.1f}", f"{again.cpu_s:.1f}"])
    parts = [as_table(("", "wall s", "CPU s"), rows)]
    if simulated:
        heads = ("stages", "GPU work / 8, s", "critical path, s", "first start to last end, s", "ideal / that")
        gpus = simulated.gpu_work_s / (NODES * GPUS)
        times = [f"{each:.0f}" for each in (gpus, simulated.critical_path_s, simulated.makespan_s)]
        parts.append(as_table(heads, [[str(simulated.stages), *times, f"{100 * simulated.share:.0f} %"]]))
        parts.append(
            f"One second stands for {1 / simulated.scale:.0f} s. The whole command took {simulated.whole_s:.0f} s, and "
            f"{simulated.cpu_s:.0f} s of CPU time with the cluster's processes."
        )
    return "\n\n".join(parts)


def params(tasks: int, seeds: int) -> dict[str, Any]:
    """Return the sweep's params.yaml, as far as dvc.yaml reads it: an entry for each seed."""
    source = {"source": "sources/one", "data": {"source": "sources/one"}}
    found: dict[str, Any] = {
        "seed": 0,
        "base": {"source": "sources/one", "family": "clip"},
        "parameters": {},
        "tasks": dict.fromkeys((f"t{number:02}" for number in range(tasks)), source),
        "decompose": {},
        "merge": {},
        "evaluation": {"split": "test"},
        "validation": {"split": "train"},
        "statistics": {},
        "studies": {
            "tasks": {"methods": {"average": {"method": "average", "reads": "deltas"}}, "subsets": {}},
            "rank": {"fractions": []},
        },
        "methods": {},
    }
    for seed in range(seeds):
        found["statistics"] |= {f"s{number}_{seed}": {} for number in range(STATISTICS)}
        for kind, count in READS.items():
            for number in range(count):
                name = f"{kind}{number:02}_{seed}"
                reads = f"{kind}/{name}" if kind in INPUTS else kind
                found["methods"][name] = {"method": "average", "reads": reads}
                if kind in INPUTS:
                    found.setdefault(kind, {})[name] = INPUTS[kind](seed)
    return found


def points(tasks: int, seeds: int) -> dict[str, dict[str, Any]]:
    """Return the sweep's points.yaml: the candidates of its searches, and the subsets of tasks; and their tasks."""
    individual = {"place": "individual", "method": "individual", "reads": "checkpoints", "split": "validation"}
    found: dict[str, dict[str, Any]] = {"individual": individual}
    for seed in range(seeds):
        for number in range(READS["searches"]):
            about = individual | {"place": f"searches/searches{number:02}_{seed}", "method": "average"}
            own = about | {"reads": f"statistics/s0_{seed}"}
            found |= {f"searches{number:02}_{seed}-{each:02}": own for each in range(CANDIDATES)}
    subset = {"place": "studies", "method": "average", "reads": "deltas", "split": "prepared"}
    names = [f"t{number:02}" for number in range(tasks)]
    for number, chosen in enumerate(all_subsets(names, SUBSETS, 0)):
        found[f"subset{number:03}"] = subset | {"tasks": len(chosen)}
    return {"points": found, "steps": {}}


def write_repository(folder: Path, tasks: int, seeds: int) -> None:
    """Write a DVC repository with the stages of dvc.yaml, whose commands are stand-ins."""
    folder.mkdir(parents=True)
    content = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    del content["plots"]
    for stage in content["stages"].values():
        stage.get("do", stage)["cmd"] = ". ./stand-in.sh"
    content["stages"]["code"]["deps"] = ["sources/one"]
    (folder / "sources").mkdir()
    (folder / "sources/one").write_text("one\n")
    (folder / "dvc.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "params.yaml").write_text(yaml.safe_dump(params(tasks, seeds), sort_keys=False))
    (folder / POINTS_FILE).write_text(yaml.safe_dump(points(tasks, seeds), sort_keys=False))
    (folder / "stand-in.sh").write_text(STAND_IN)
    stages = {kind: {"resources": {"gpus": count}} for kind, count in WANTED.items()}
    (folder / "profiles.yaml").write_text(yaml.safe_dump({"gpus": {"runner": "dask", "stages": stages}}))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")


def seconds_of(names: Iterable[str], listed: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return what each stage takes by the cost model: those that ask for GPUs on these, others on a core.

    `listed`: the points.
    """
    found = list(names)
    by_kind = seconds_by_kind(tasks := len([name for name in found if kind_of(name) == "fetch"]))
    seconds = {name: by_kind.get(kind_of(name), CORE.start) for name in found}
    for name in (name for name in found if kind_of(name) == "point"):
        about = listed[name.partition("@")[2]]
        images = about["tasks"] * IMAGES if "tasks" in about else tasks * CANDIDATE_IMAGES
        seconds[name] = GPU.start_evaluate + cost_model.evaluate(MODEL, TOKENS, images, GPU).seconds
    return seconds


def seconds_by_kind(tasks: int) -> dict[str, float]:
    """Return what a stage of each kind takes, but for points."""
    evaluation = GPU.start_evaluate + cost_model.evaluate(MODEL, TOKENS, IMAGES, GPU).seconds
    forward = cost_model.evaluate(MODEL, TOKENS, 1, GPU).seconds - cost_model.evaluate(MODEL, TOKENS, 0, GPU).seconds
    on_core = {
        "fetch": cost_model.fetch(MODEL, CORE),
        "extract": cost_model.extract(MODEL, CORE),
        "decompose": cost_model.decompose(MODEL, FACTORS, CORE),
        "join": cost_model.join(MODEL, tasks, CORE),
    }
    found = {kind: CORE.start + cost.seconds for kind, cost in on_core.items()}
    found |= {"fetch_base": found["fetch"], "extract_difference": found["extract"]}
    found["merge"] = GPU.start + cost_model.merge_svd(MODEL, tasks, FACTORS, GPU).seconds
    found |= dict.fromkeys(("evaluate", "study_rank", "route", "statistics", "surgery"), evaluation)
    found["learn"] = evaluation + 300 * 8 * tasks * 3 * forward / WANTED["learn"]  # steps, images, backwards too
    return found


def write_stand_ins(folder: Path, ideal_s: float) -> float:
    """Write what each stage sleeps and writes; return the scale: seconds slept for a second of the cost model."""
    found = plan(folder)
    seconds = seconds_of(found.planned, yaml.safe_load((folder / POINTS_FILE).read_text())["points"])
    scale = ideal_s / ideal(seconds, {name: node.needs for name, node in found.planned.items()})[2]
    read = {dep.def_path for stage in found.stages.values() for dep in stage.deps}
    (folder / "stand-ins").mkdir()
    for name, stage in found.stages.items():
        written = [path for out in stage.outs for path in files_of(out.def_path, read)]
        lines = [f"{scale * seconds[name]:.4f}", *(f"./{path}" for path in written)]
        (folder / "stand-ins" / name).write_text("\n".join(lines) + "\n")
    return scale


def files_of(out: str, read: set[str]) -> list[str]:
    """Return the files to write for an output: itself, or those in the folder that stages read, and one more."""
    if Path(out).suffix:
        return [out]
    inside = sorted(path for path in read if path.startswith(f"{out}/"))
    return [f"{out}/{CONTENT}", *(path for path in inside if not any(each.startswith(f"{path}/") for each in inside))]


def ideal(seconds: Mapping[str, float], needs: Mapping[str, tuple[str, ...]]) -> tuple[float, float, float]:
    """Return the GPUs' work, the critical path, and the least that all can take."""
    work = sum(WANTED.get(kind_of(name), 0) * each for name, each in seconds.items())
    path = max(paths(needs, seconds).values())
    return work, path, max(work / (NODES * GPUS), path)


def simulate(folder: Path, scale: float) -> Simulated:
    """Run all stages on a cluster on loopback."""
    with cluster() as (address, cpu_of_cluster):
        words = ["run", "--profile", "gpus", "--address", address, "--repo", str(folder)]
        run = measure(Run([sys.executable, "-c", RUN, *words], environment={"DVC_NO_ANALYTICS": "1"}))
        cpu_s = run.cpu_s + cpu_of_cluster()
    found = plan(folder)
    seconds = {name: float((folder / "stand-ins" / name).read_text().split()[0]) for name in found.planned}
    work, path, least = ideal(seconds, {name: node.needs for name, node in found.planned.items()})
    began = [
        (datetime.fromisoformat(each.began).timestamp(), each.seconds) for each in executions(folder / STATE_FOLDER)
    ]
    makespan = max(start + took for start, took in began) - min(start for start, _ in began)
    return Simulated(len(began), work, path, least, makespan, run.wall_s, cpu_s, scale)


def virtual_share(folder: Path, are_known: bool) -> float:
    """Return the ideal's share of the time that the stages take in the engine's order, if nothing else took any time.

    `are_known`: whether the stages' durations are known from an earlier run.
    """
    needs = {name: node.needs for name, node in plan(folder).planned.items()}
    seconds = {name: float((folder / "stand-ins" / name).read_text().split()[0]) for name in needs}
    durations = Durations(seconds if are_known else {})
    return ideal(seconds, needs)[2] / in_virtual_time(needs, seconds, durations, NODES, GPUS)


@dataclass
class Transfers:
    """What nodes fetch of outputs that they do not hold; `inputs`, `outputs`: of each stage, bytes by path."""

    inputs: Mapping[str, Mapping[str, float]]
    outputs: Mapping[str, Mapping[str, float]]
    pulled: float = 0.0
    _held: dict[str, set[str]] = field(default_factory=dict)

    def fetch(self, name: str, machine: str) -> float:
        """Fetch what a machine lacks of a stage's inputs; return the seconds that it takes."""
        held = self._held.setdefault(machine, set())
        lacking = sum(size for path, size in self.inputs[name].items() if path not in held)
        held.update(self.inputs[name])
        self.pulled += lacking
        return lacking / NODE_BYTES_S

    def keep(self, name: str, machine: str) -> None:
        """Keep what a stage wrote on a machine."""
        self._held[machine].update(self.outputs[name])


def sizes_of(found: Plan) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return what each stage reads of other stages' outputs, and what it writes: bytes by path."""
    written = {
        name: {out.def_path: _bytes(kind_of(name), out.def_path) for out in stage.outs}
        for name, stage in found.stages.items()
    }
    outs = sorted((path, size) for each in written.values() for path, size in each.items())
    paths_of = [path for path, _ in outs]
    read: dict[str, dict[str, float]] = {}
    for name, stage in found.stages.items():
        read[name] = {}
        for dep in stage.deps:
            start = bisect_left(paths_of, dep.def_path)
            for path, size in outs[start:]:
                if path != dep.def_path and not path.startswith(f"{dep.def_path}/"):
                    if not path.startswith(dep.def_path):
                        break
                    continue
                read[name][path] = size
    return read, written


def _bytes(kind: str, path: str) -> float:
    """Return about how many bytes a stage of a kind writes at a path, for ViT-L/14; links are none."""
    factors = 1.5 * FACTORS.rank_fraction * MODEL_BYTES
    by_kind = {
        "decompose": factors,
        "join": 3.5 * MODEL_BYTES,
        "prepare": IMAGES * 3 * 224**2,
        "statistics": MODEL_BYTES,
    }
    of_model = ("fetch_base", "fetch", "extract", "difference", "extract_difference", "merge")
    by_kind |= dict.fromkeys(of_model, MODEL_BYTES) | {"prepare_validation": by_kind["prepare"] / 5}
    is_small = path.endswith((".json", "/deltas", "/read", "/state", "/result"))
    return 1e4 if is_small or "/heads/" in path or "/companions/" in path else by_kind.get(kind, 1e5)


def simulated_clusters(folder: Path) -> list[list[str]]:
    """Return a row a cluster, in virtual time: with a shared disk, and with nodes that fetch what they lack.

    Beside them, on a shared disk, what it takes where the points of a study or a search are one after another.
    """
    found = plan(folder)
    needs = {name: node.needs for name, node in found.planned.items()}
    listed = yaml.safe_load((folder / POINTS_FILE).read_text())["points"]
    seconds = seconds_of(needs, listed)
    read, written = sizes_of(found)
    made = sum(size for each in written.values() for size in each.values())
    work = ideal(seconds, needs)[0]
    rows = []
    for nodes, gpus in CLUSTERS:
        for where in (CHAINED, "shared disk", "fetched", "fetched, placed by what nodes hold"):
            transfers = Transfers(read, written) if where.startswith("fetched") else None
            locality = Locality(read.__getitem__) if where.startswith("fetched,") else None
            order = chained(needs, listed) if where == CHAINED else needs
            took = in_virtual_time(order, seconds, Durations(seconds), nodes, gpus, transfers, locality)
            pulled = f"{transfers.pulled / 1e12:.2f}" if transfers else ""
            busy = f"{100 * work / (took * nodes * gpus):.0f} %"
            rows.append([f"{nodes} x {gpus}", where, f"{took:.0f}", busy, f"{made / 1e12:.2f}", pulled])
    return rows


def longest_chains(folder: Path) -> list[list[str]]:
    """Return the longest chains of stages that wait for each other, one for each sequence of kinds, at most ten."""
    needs = {name: node.needs for name, node in plan(folder).planned.items()}
    seconds = seconds_of(needs, yaml.safe_load((folder / POINTS_FILE).read_text())["points"])
    ends, found = dict[str, float](), dict[tuple[str, ...], float]()
    before = dict[str, str | None]()

    def end(name: str) -> float:
        if name not in ends:
            before[name] = max(needs[name], key=end, default=None)
            ends[name] = seconds[name] + (end(last) if (last := before[name]) else 0.0)
        return ends[name]

    for name in needs:
        chain, took, each = list[str](), end(name), name
        while each:
            chain.append(kind_of(each))
            each = before[each] or ""
        kinds = tuple(reversed(chain))
        found[kinds] = max(took, found.get(kinds, 0.0))
    whole = [(took, kinds) for kinds, took in found.items() if kinds[-1] != "report"]
    return [[f"{took:.0f}", " > ".join(kinds)] for took, kinds in sorted(whole, reverse=True)[:CHAINS]]


def chained(needs: Mapping[str, tuple[str, ...]], listed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Have each point wait for the one before it of the same study or search."""
    found, last = dict[str, Any](needs), dict[str, str]()
    for name in (name for name in needs if kind_of(name) == "point"):
        place = listed[name.partition("@")[2]]["place"]
        found[name] = (*needs[name], *([last[place]] if place in last else []))
        last[place] = name
    return found


def in_virtual_time(
    needs: Mapping[str, tuple[str, ...]],
    seconds: Mapping[str, float],
    durations: Durations,
    nodes: int,
    gpus: int,
    transfers: Transfers | None = None,
    locality: Locality | None = None,
) -> float:
    """Start the stages in the engine's order on so many nodes; return when the last one ends."""
    resources = {name: Resources(gpus=WANTED.get(kind_of(name), 0)) for name in needs}
    machines = [Machine(str(number), "", Capacity(THREADS, gpus=gpus)) for number in range(nodes)]
    pool = ResourcePool(nodes * THREADS, machines=machines)
    ends: list[tuple[float, str]] = []
    now = 0.0
    ready = ReadyStages(needs, resources, durations, pool, lambda: now, locality=locality)
    waiting = {name: len(each) for name, each in needs.items()}
    readers: dict[str, list[str]] = {name: [] for name in needs}
    for name, each in needs.items():
        for need in each:
            readers[need].append(name)
        if not each:
            ready.add(name)
    while ready or ends:
        for name, share in ready.startable():
            pool.give(name, share)
            fetching = transfers.fetch(name, share.machine) if transfers else 0.0
            heappush(ends, (now + fetching + seconds[name], name))
        now, ended = heappop(ends)
        machine = pool.given[ended].machine
        if transfers:
            transfers.keep(ended, machine)
        if locality:
            locality.note(machine, transfers.outputs[ended] if transfers else ())
        pool.take_back(ended)
        ready.note(ended, seconds[ended])
        for name in readers[ended]:
            waiting[name] -= 1
            if not waiting[name]:
                ready.add(name)
    return now


@contextmanager
def cluster() -> Iterator[tuple[str, Any]]:
    """Start a Dask scheduler and the nodes; yield its address, and a function that returns their CPU seconds."""
    import psutil  # type: ignore[import-untyped]
    from distributed import Client

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    dask = [str(Path(sys.executable).with_name("dask"))]
    worker = ["worker", address, "--nthreads", str(THREADS), "--nworkers", "1", "--no-dashboard", "--no-nanny"]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="merganser-bench-"))
        commands = [[*dask, "scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]]
        commands += [[*dask, *worker, "--local-directory", folder] for _ in range(NODES)]
        processes = []
        for number, command in enumerate(commands):
            own = ",".join(str(GPUS * (number - 1) + gpu) for gpu in range(GPUS))
            environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": own}
            log = stack.enter_context(open(Path(folder) / f"log{number}", "wb"))
            processes.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))
            stack.callback(processes[-1].wait, 30)
            stack.callback(processes[-1].terminate)
        with Client(address, set_as_default=False, timeout="60s") as client:
            client.wait_for_workers(NODES, timeout=60)

        def cpu_s() -> float:
            times = [psutil.Process(process.pid).cpu_times() for process in processes]
            return sum(each.user + each.system + each.children_user + each.children_system for each in times)

        yield address, cpu_s


if __name__ == "__main__":
    main()
