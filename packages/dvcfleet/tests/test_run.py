import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from dvc.repo import Repo

from dvcfleet.errors import BUSY_EXIT_CODE
from dvcfleet.loop import RunLoop
from dvcfleet.repository import opened, write_lock
from dvcfleet.terminal.machine_limits import usable_memory
from dvcfleet.worker.termination import GRACE_S
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.support import forking, python, start, wait_until
from tests.tiny import dvc

# Two values of j for each i: seven stages, two of them from a map, four from a matrix over a map and a list.
FAMILY = """
stages:
  each:
    foreach: ${items}
    do:
      cmd: echo each@${key} >> log; mkdir -p each; echo ${item.k} > each/${key}
      params: ["items.${key}"]
      deps: [source]
      outs: ["each/${key}"]
  grid:
    matrix: {i: "${items}", j: [1, 2]}
    cmd: echo grid@${item.i}-${item.j} >> log; mkdir -p grid/${item.i}; echo '{"v":1}' > grid/${item.i}/${item.j}.json
    deps: ["each/${item.i}"]
    metrics: ["grid/${item.i}/${item.j}.json"]
  all:
    cmd: echo all >> log; cat grid/*/*.json > all.txt
    deps: [grid]
    outs: [all.txt]
"""
FAMILY_FILES = {"source": "s", "params.yaml": "items: {a: {k: 1}, b: {k: 2}}\n"}


def test_a_run_leaves_dvc_nothing_to_do(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    code, text = chain.run()
    assert code == 0, text
    assert chain.ran() == ["cut", "turn", "end"]
    assert "3 done" in text
    assert "public calls" not in text  # all fast paths are on
    assert chain.read("end.txt").strip() == "cba"
    assert chain.settled()


def test_a_second_run_says_that_there_is_nothing_to_do_and_asks_no_server(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.ran()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert chain.run() == (0, "nothing to do: 3 stages are up to date\n")
    assert chain.ran() == []


def test_foreach_and_matrix_over_maps_write_what_dvc_repro_writes(toy: Make) -> None:
    ours, theirs = toy(FAMILY, FAMILY_FILES, "ours"), toy(FAMILY, FAMILY_FILES, "theirs")
    assert ours.run(workers=4)[0] == 0
    with chdir(theirs.path), Repo() as repo:
        repo.reproduce()
    assert ours.read("dvc.lock") == theirs.read("dvc.lock")
    assert ours.read("grid/a/.gitignore") == theirs.read("grid/a/.gitignore")
    assert sorted(ours.ran()) == sorted(theirs.ran())
    assert ours.settled()


def test_a_changed_entry_runs_its_own_stages_only(toy: Make) -> None:
    family = toy.ran(FAMILY, FAMILY_FILES)
    family.ran()
    family.write("params.yaml", "items: {a: {k: 1}, b: {k: 3}}\n")
    assert family.run()[0] == 0
    # The grid's files come out the same, so what reads them is not run.
    assert sorted(family.ran()) == ["each@b", "grid@b-1", "grid@b-2"]
    assert family.settled()


def test_the_same_bytes_from_an_upstream_stage_stop_the_run_there(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.ran()
    chain.write("source", "abcXYZ")
    code, text = chain.run()
    assert (code, chain.ran()) == (0, ["cut"])
    assert "1 done, 2 up to date" in text
    assert chain.settled()


def test_independent_stages_run_at_the_same_time(toy: Make) -> None:
    # Each waits for a file that the other makes: one after the other they would never end.
    meet = """
    stages:
      left: {cmd: 'touch a; while [ ! -e b ]; do sleep 0.05; done; echo l > left', deps: [source], outs: [left]}
      right: {cmd: 'touch b; while [ ! -e a ]; do sleep 0.05; done; echo r > right', deps: [source], outs: [right]}
    """
    assert toy(meet, {"source": ""}).run(workers=2)[0] == 0


def test_threads_asked_for_in_meta_are_slots(toy: Make) -> None:
    wide = """
    stages:
      wide:
        cmd: 'mkdir busy && sleep 0.3 && rmdir busy && echo $OMP_NUM_THREADS > wide'
        deps: [source]
        outs: [wide]
        meta: {dvcfleet: {resources: {threads: 2}}}
      other:
        cmd: 'mkdir busy && sleep 0.3 && rmdir busy && echo "[$OMP_NUM_THREADS]" > other'
        deps: [source]
        outs: [other]
    """
    repository = toy(wide, {"source": ""})
    code, text = repository.run(workers=2)
    assert code == 0, text
    if "OMP_NUM_THREADS" not in os.environ:
        assert (repository.read("wide"), repository.read("other")) == ("2\n", "[]\n")


def test_a_failed_stage_blocks_only_what_reads_from_it(toy: Make) -> None:
    family = toy(FAMILY.replace("echo ${item.k} >", "test ${item.k} -ne 2 && echo ${item.k} >"), FAMILY_FILES)
    code, text = family.run()
    assert code == 1
    assert sorted(family.ran()) == ["each@a", "each@b", "grid@a-1", "grid@a-2"]
    assert "3 done, 1 failed, 3 blocked" in text
    assert "run the same command again" in text
    family.write("params.yaml", "items: {a: {k: 1}, b: {k: 4}}\n")
    assert family.run()[0] == 0
    assert sorted(family.ran()) == ["all", "each@b", "grid@b-1", "grid@b-2"]
    assert family.settled()


def test_the_last_lines_of_a_failed_stage_are_shown(toy: Make) -> None:
    failing = toy("stages: {bad: {cmd: 'echo here; echo there >&2; exit 3', outs: [x]}}", {})
    code, text = failing.run()
    assert code == 1
    assert "bad failed: exit code 3\n    here\n    there\n" in text


def test_exit_code_2_is_the_users_mistake_and_never_tried_again(toy: Make) -> None:
    mistaken = toy(
        "stages: {bad: {cmd: 'echo bad >> log; echo no such; exit 2', outs: [x], meta: {dvcfleet: {retries: 3}}}}",
        {},
    )
    code, text = mistaken.run()
    assert code == 2
    assert mistaken.ran() == ["bad"]
    assert "    no such\n" in text


def test_other_failures_are_tried_again_as_often_as_meta_says_and_start_afresh(toy: Make) -> None:
    flaky = """
    stages:
      flaky:
        cmd: 'echo flaky >> log; mkdir out && echo half > out/f && test $(wc -l < log) -gt 2'
        deps: [source]
        outs: [out]
        meta: {dvcfleet: {retries: 2}}
    """
    repository = toy(flaky, {"source": ""})
    code, text = repository.run()
    assert code == 0, text
    assert repository.ran() == ["flaky"] * 3
    assert text.count("flaky is started again: exit code 1\n") == 2


def test_a_stage_that_fails_at_each_try_says_how_often(toy: Make) -> None:
    failing = toy("stages: {bad: {cmd: 'echo bad >> log; exit 3', outs: [x], meta: {dvcfleet: {retries: 1}}}}", {})
    code, text = failing.run()
    assert (code, failing.ran()) == (1, ["bad", "bad"])
    assert text.count("bad is started again: exit code 3\n") == 1
    assert "bad failed: exit code 3, 2 times" in text


def test_a_wrong_meta_is_refused_before_anything_runs(toy: Make) -> None:
    wrong = toy("stages: {a: {cmd: echo a >> log, outs: [x], meta: {dvcfleet: {retries: many}}}}", {})
    code, text = wrong.run()
    assert (code, wrong.ran()) == (2, [])
    assert "stage a: meta.dvcfleet.retries should be a whole number from 0, got 'many'" in text


def test_a_stage_that_does_not_write_its_output_failed(toy: Make) -> None:
    code, text = toy("stages: {a: {cmd: echo, outs: [x]}}", {}).run()
    assert code == 1
    assert "a failed: output 'x' does not exist" in text


def test_a_dry_run_says_what_would_run_and_runs_nothing(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    code, text = chain.run(dry_run=True)
    assert (code, chain.ran()) == (0, [])
    assert "cut: stale (new stage)" in text
    assert not (chain.path / "dvc.lock").exists()


def test_force_runs_what_is_up_to_date(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.ran()
    assert chain.run("turn", force=True)[0] == 0
    assert chain.ran() == ["cut", "turn"]
    assert chain.settled()


def test_targets_run_with_what_they_read_from_only(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    assert chain.run("turn")[0] == 0
    assert chain.ran() == ["cut", "turn"]
    assert not (chain.path / "end.txt").exists()


def test_a_run_is_refused_where_nothing_would_end_its_stages(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    code, text = chain.run()
    assert (code, chain.ran()) == (2, [])
    assert "runs need Linux" in text


def test_an_unknown_target_or_runner_is_the_users_mistake(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    code, text = chain.run("turns")
    assert code == 2
    assert 'did you mean "turn"?' in text
    assert chain.run(runner="carrier-pigeon") == (
        2,
        "no runner 'carrier-pigeon'; there are dask, processes, ray, slurm, threads\n",
    )


def test_lost_outputs_come_back_from_the_cache(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.ran()
    (chain.path / "turned/text").unlink()
    (chain.path / "end.txt").unlink()
    code, text = chain.run()
    assert (code, chain.ran()) == (0, [])
    assert "1 up to date, 2 restored" in text
    assert chain.settled()


def test_earlier_parameters_come_back_from_the_run_cache(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.write("params.yaml", "turn: {times: 2}\n")
    chain.run()
    assert chain.ran() == ["cut", "turn", "end", "turn"]
    chain.write("params.yaml", "turn: {times: 1}\n")
    assert chain.run()[0] == 0
    assert chain.ran() == []
    assert chain.settled()


PERSIST = """
stages:
  grow:
    cmd: echo grow >> log; mkdir -p kept; cat source >> kept/all; cp kept/all kept/copy.new; mv kept/copy.new kept/copy
    deps: [source]
    outs: [kept: {persist: true}]
"""


def test_a_stage_that_may_not_be_restored_runs_again(toy: Make) -> None:
    chain = toy(
        CHAIN.replace("params: [turn.times]", "params: [turn.times]\n    meta: {dvcfleet: {restore: false}}"),
        CHAIN_FILES,
    )
    assert chain.run()[0] == 0
    chain.write("params.yaml", "turn: {times: 2}\n")
    assert chain.run()[0] == 0
    chain.ran()
    chain.write("params.yaml", "turn: {times: 1}\n")
    code, text = chain.run()
    assert code == 0, text
    assert chain.ran() == ["turn"], text
    assert chain.settled()


def test_a_persisted_output_is_there_when_the_stage_runs_again(toy: Make) -> None:
    growing = toy(PERSIST, {"source": "1\n"})
    assert growing.run()[0] == 0
    growing.write("source", "2\n")
    assert growing.run()[0] == 0
    assert growing.read("kept/copy") == "1\n2\n"
    assert growing.settled()


def test_a_persisted_output_that_was_lost_is_restored(toy: Make) -> None:
    growing = toy(PERSIST, {"source": "1\n"})
    growing.run()
    shutil.rmtree(growing.path / "kept")
    growing.ran()
    assert growing.run()[0] == 0
    assert (growing.ran(), growing.read("kept/all")) == ([], "1\n")


def test_outputs_without_cache_and_stages_without_inputs_are_settled_too(toy: Make) -> None:
    odd = """
    stages:
      plain: {cmd: echo 1 > plain.txt, deps: [source], outs: [plain.txt: {cache: false}]}
      source: {cmd: echo 2 > made.txt, outs: [made.txt]}
      check: {cmd: test -e made.txt, deps: [made.txt]}
    """
    repository = toy(odd, {"source": ""})
    assert repository.run()[0] == 0
    assert repository.settled()
    assert repository.run()[1].startswith("nothing to do")


def test_stages_run_in_their_own_folder_and_know_their_name(toy: Make) -> None:
    inside = toy(
        "stages: {a: {cmd: ['pwd > here', 'echo $DVC_STAGE > name'], wdir: sub, outs: [here, name]}}",
        {"sub/keep": ""},
    )
    assert inside.run()[0] == 0
    assert inside.read("sub/here").strip() == str((inside.path / "sub").resolve())
    assert inside.read("sub/name") == "a\n"
    assert inside.settled()


def test_the_stages_of_another_dvc_yaml_join_the_graph(toy: Make) -> None:
    nested = toy(
        "stages: {b: {cmd: cat sub/a > b, deps: [sub/a], outs: [b]}}",
        {"sub/dvc.yaml": "stages: {a: {cmd: echo 1 > a, outs: [a]}}"},
    )
    assert nested.run()[0] == 0
    assert list(nested.plan().planned) == ["sub/dvc.yaml:a", "b"]
    assert "a:" in nested.read("sub/dvc.lock")
    assert nested.settled()


def test_data_that_dvc_add_keeps_is_restored_and_followed(toy: Make) -> None:
    added = toy("stages: {b: {cmd: cat a > b, deps: [a], outs: [b]}}", {"a": "1"})
    with chdir(added.path), Repo() as repo:
        repo.add("a")
    assert added.run()[0] == 0
    (added.path / "a").unlink()
    assert added.run()[0] == 0
    assert added.read("a") == "1"
    added.write("a", "2")
    assert added.run()[0] == 0
    assert added.read("b") == "2"
    assert added.settled()


def test_a_second_run_is_told_who_runs(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, write_lock(repo):
        code, text = chain.run()
    assert code == BUSY_EXIT_CODE
    assert f"another run is at work in this repository (process {os.getpid()}, since " in text
    assert chain.run()[0] == 0


def test_dvc_cannot_write_during_a_run_nor_a_run_during_a_dvc_command(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    repro = [*python(), "-m", "dvc", "repro"]
    with opened(chain.path) as repo, write_lock(repo):
        refused = subprocess.run(repro, cwd=chain.path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "lock" in refused.stderr
    with opened(chain.path) as repo, repo.lock:
        code, text = chain.run()
    assert code == BUSY_EXIT_CODE
    assert "a dvc command is at work in this repository" in text


def test_a_run_waits_for_no_stage_of_a_running_dvc_repro(toy: Make) -> None:
    # While it runs a command, `dvc repro` gives up its lock and marks the paths only.
    slow = toy("stages: {a: {cmd: touch started; while test ! -e go; do sleep 0.05; done, outs: [x]}}", {})
    process = start(["-m", "dvc", "repro", "-q"], slow.path)
    try:
        wait_until((slow.path / "started").exists)
        code, text = slow.run()
    finally:
        (slow.path / "go").touch()  # ends its command, which outlives it
        process.wait()
    assert code == BUSY_EXIT_CODE
    assert "a dvc command is running a stage of this repository" in text
    assert f"(PID {process.pid})" in text


def test_the_flow_run_carries_names_logs_and_a_table(toy: Make, prefect_api: str) -> None:
    chain = toy(CHAIN.replace("echo cut >> log;", "echo a line of cut;"), CHAIN_FILES)
    _, text = chain.run()
    match = re.search(r"run ([a-z-]+): 3 of 3", text)
    assert match

    with httpx.Client(
        base_url=prefect_api, auth=httpx.BasicAuth(*os.environ["PREFECT_API_AUTH_STRING"].split(":"))
    ) as api:

        def ask(kind: str, filters: dict[str, Any]) -> list[dict[str, Any]]:
            return api.post(f"/{kind}/filter", json=filters).json()

        named = {"flow_runs": {"name": {"any_": [match[1]]}}}
        (flow_run,) = ask("flow_runs", named)
        assert flow_run["state_name"] == "Completed"
        assert flow_run["parameters"]["run"]["repository"] == str(chain.path)
        assert flow_run["parameters"]["run"]["runner"] == "threads"
        expected = {"cut": "Completed", "turn": "Completed", "end": "Completed"}
        # The server writes down what it was told a little later.
        wait_until(lambda: {run["name"]: run["state_name"] for run in ask("task_runs", named)} == expected)
        logs = ask("logs", {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}})
        assert any(log["message"].endswith("\na line of cut") for log in logs)
        (table,) = ask("artifacts", {**named, "artifacts": {"key": {"any_": ["stages"]}}})
        assert [row["stage"] for row in json.loads(table["data"])] == ["cut", "turn", "end"]


def test_a_run_keeps_its_name_until_one_ends_well(toy: Make) -> None:
    failing = toy("stages: {a: {cmd: 'test -e ready && echo 1 > x', outs: [x]}}", {})

    def name() -> str:
        match = re.search(r"run ([a-z-]+):", failing.run()[1])
        assert match
        return match[1]

    first = name()
    assert name() == first
    (failing.path / "ready").touch()
    assert name() == first
    (failing.path / "x").unlink()
    assert name() != first


def test_the_name_can_be_given(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVCFLEET_RUN", "my-own")
    assert "run my-own:" in toy(CHAIN, CHAIN_FILES).run()[1]


def test_an_interrupted_run_ends_its_commands_and_goes_on_later(toy: Make) -> None:
    slow = toy(
        """
        stages:
          quick: {cmd: echo 1 > quick, deps: [source], outs: [quick]}
          slow: {cmd: 'touch started; test -e hurry || sleep 600; echo 2 > slow', deps: [source], outs: [slow]}
        """,
        {"source": ""},
    )
    threading.Thread(target=_interrupt_in_slow, args=[slow.path]).start()
    code, text = slow.run()
    assert code == 128 + signal.SIGINT
    assert "1 done, 1 stopped" in text
    assert "Stopped. Finished stages are kept: run the same command again to go on." in text
    assert "Fix the failed stages" not in text
    assert "sleep 600" not in commands_in(slow.path)
    (slow.path / "hurry").touch()
    assert slow.run()[0] == 0
    assert slow.settled()


@pytest.mark.parametrize("pause_s", [0.0, 0.5])  # before the first signal is handled, and after
def test_a_second_signal_kills_what_ends_slowly_and_the_run_says_what_it_did(toy: Make, pause_s: float) -> None:
    stubborn = toy(
        """
        stages:
          quick: {cmd: echo 1 > quick, deps: [source], outs: [quick]}
          slow: {cmd: 'trap : TERM; touch started; while :; do sleep 0.1; done', deps: [source], outs: [slow]}
        """,
        {"source": ""},
    )
    took: list[float] = []

    def stop_twice() -> None:
        _interrupt_in_slow(stubborn.path, signal.SIGHUP)
        time.sleep(pause_s)
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        while "sleep" in commands_in(stubborn.path):
            time.sleep(0.01)
        took.append(time.monotonic() - sent)

    thread = threading.Thread(target=stop_twice)
    thread.start()
    code, text = stubborn.run()
    thread.join()
    assert took[0] < GRACE_S / 2
    assert code == 128 + signal.SIGHUP
    assert "killing the stages that still run" in text
    assert text.count("1 done, 1 stopped") == text.count("Stopped. Finished stages are kept") == 1
    assert "before any stage" not in text
    assert "sleep" not in commands_in(stubborn.path)
    assert "quick" in stubborn.read("dvc.lock")


def test_a_signal_that_cannot_be_handled_in_order_still_ends_in_a_summary(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(loop: RunLoop) -> None:
        loop.stopping = True
        raise KeyboardInterrupt

    monkeypatch.setattr(RunLoop, "_stop", interrupted)
    waiting = toy(
        """
        stages:
          quick: {cmd: echo 1 > quick, deps: [source], outs: [quick]}
          slow: {cmd: 'touch started; sleep 600', deps: [source], outs: [slow]}
        """,
        {"source": ""},
    )
    threading.Thread(target=_interrupt_in_slow, args=[waiting.path]).start()
    code, text = waiting.run()
    assert code == 128 + signal.SIGINT
    assert "1 done, 1 stopped" in text


def _interrupt_in_slow(repository: Path, number: signal.Signals = signal.SIGINT) -> None:
    """Interrupt the run when it has settled what else was to be done, and waits for the stage `slow`."""
    wait_until(lambda: (repository / "started").exists() and (repository / "dvc.lock").exists())
    time.sleep(0.5)
    os.kill(os.getpid(), number)


def commands_in(folder: Path) -> str:
    """The command lines of the processes at work in a folder."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                lines.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return "\n".join(lines)


def test_gpu_stages_at_the_same_time_have_gpus_of_their_own(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    # Each waits for the other, so that both hold a GPU at the same time.
    meet = """
    stages:
      left:
        cmd: 'touch a; while [ ! -e b ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES > left'
        deps: [source]
        outs: [left]
        meta: {dvcfleet: {resources: {gpus: 1}}}
      right:
        cmd: 'touch b; while [ ! -e a ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES > right'
        deps: [source]
        outs: [right]
        meta: {dvcfleet: {resources: {gpus: 1}}}
      both:
        cmd: 'echo $CUDA_VISIBLE_DEVICES > both'
        deps: [left, right]
        outs: [both]
        meta: {dvcfleet: {resources: {gpus: 2}}}
      none: {cmd: 'echo $CUDA_VISIBLE_DEVICES > none', deps: [left], outs: [none]}
    """
    meeting = toy(meet, {"source": ""})
    code, text = meeting.run(workers=4)
    assert code == 0, text
    assert {meeting.read("left"), meeting.read("right")} == {"3\n", "5\n"}
    assert (meeting.read("both"), meeting.read("none")) == ("3,5\n", "\n")


def test_where_no_stage_asks_for_a_gpu_all_see_what_the_run_sees(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    seeing = toy("stages: {a: {cmd: 'echo $CUDA_VISIBLE_DEVICES > a', deps: [source], outs: [a]}}", {"source": ""})
    assert seeing.run()[0] == 0
    assert seeing.read("a") == "3,5\n"


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ("{gpus: 3}", "stage a: asks for 3 GPUs; this machine has 2"),
        ("{memory: 900TB}", "stage a: asks for 9e+05 GB of memory; this machine has "),
    ],
)
def test_a_stage_that_asks_for_more_than_there_is_is_refused_before_work(
    toy: Make, monkeypatch: pytest.MonkeyPatch, resources: str, told: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    greedy = toy(
        f"""
        stages:
          first: {{cmd: echo first >> log; touch x, deps: [source], outs: [x]}}
          a: {{cmd: echo a >> log, deps: [x], outs: [y], meta: {{dvcfleet: {{resources: {resources}}}}}}}
        """,
        {"source": ""},
    )
    code, text = greedy.run()
    assert (code, greedy.ran()) == (2, [])
    assert told in text


def test_stages_that_ask_for_much_memory_run_one_after_another(toy: Make) -> None:
    half = int(usable_memory() * 0.6)
    wide = f"""
    stages:
      one:
        cmd: mkdir busy && sleep 0.3 && rmdir busy && echo 1 > one
        deps: [source]
        outs: [one]
        meta: {{dvcfleet: {{resources: {{memory: {half}}}}}}}
      two:
        cmd: mkdir busy && sleep 0.3 && rmdir busy && echo 2 > two
        deps: [source]
        outs: [two]
        meta: {{dvcfleet: {{resources: {{memory: {half}}}}}}}
    """
    repository = toy(wide, {"source": ""})
    code, text = repository.run(workers=2)
    assert code == 0, text


def test_a_stage_past_its_timeout_failed_and_may_be_tried_again(toy: Make) -> None:
    late = """
    stages:
      late:
        cmd: 'echo late >> log; test $(wc -l < log) -gt 1 || sleep 600; echo 1 > out'
        deps: [source]
        outs: [out]
        meta: {dvcfleet: {timeout: 1s, retries: 9}}
      never: {cmd: "sleep 600", deps: [source], outs: [never], meta: {dvcfleet: {timeout: 1s}}}
    """
    repository = toy(late, {"source": ""})
    code, text = repository.run()
    assert code == 1
    assert set(repository.ran()) == {"late"}  # twice, unless a busy machine takes a second for the second time too
    assert repository.read("out") == "1\n"
    assert "never failed: took longer than the 1 s of its timeout" in text
    assert "1 done, 1 failed" in text


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_a_stage_whose_host_is_killed_is_started_again(toy: Make, runner: str) -> None:
    killing = toy(
        """
        stages:
          killer:
            cmd: echo killer >> log; [ -e killed ] || { touch killed; kill -9 $PPID; sleep 60; }; echo 1 > out
            deps: [source]
            outs: [out]
          each:
            foreach: [a, b]
            do: {cmd: "echo 2 > each-${item}", deps: [source], outs: ["each-${item}"]}
        """,
        {"source": ""},
    )
    with forking():
        code, text = killing.run(runner=runner)
    assert code == 0, text
    assert killing.ran() == ["killer", "killer"]
    assert "killer is started again: the process that started its command died" in text
    assert killing.settled()


def test_a_stage_that_kills_its_host_each_time_fails_in_the_end(toy: Make) -> None:
    deadly = toy(
        "stages: {deadly: {cmd: echo deadly >> log; kill -9 $PPID; sleep 60, deps: [source], outs: [out]}}",
        {"source": ""},
    )
    code, text = deadly.run()
    assert code == 1
    assert deadly.ran() == ["deadly"] * 4
    advice = "as when memory runs out (use fewer --workers, or declare its memory)"
    died = f"the process that started its command died, {advice}"
    assert text.count(f"deadly is started again: {died}\n") == 3
    assert f"deadly failed: {died}, 4 times" in text


@pytest.mark.drill
def test_a_killed_process_of_the_pool_costs_no_stage(toy: Make) -> None:
    slow = toy(
        """
        stages:
          one: {cmd: 'echo one >> log; touch one.began; sleep 1; echo 1 > one', deps: [source], outs: [one]}
          two: {cmd: 'echo two >> log; sleep 1; echo 2 > two', deps: [source], outs: [two]}
        """,
        {"source": ""},
    )
    killer = threading.Thread(target=_kill_a_pool_process_when, args=[slow.path / "one.began"])
    killer.start()
    code, text = slow.run(runner="processes")
    killer.join()
    assert code == 0, text
    assert "is started again: its worker was lost (BrokenProcessPool" in text
    assert slow.settled()


def _kill_a_pool_process_when(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)
    pool = [each for each in psutil.Process().children() if "multiprocessing.spawn" in " ".join(each.cmdline())]
    pool[0].kill()


ORDERED = """
stages:
  setup: {cmd: "echo setup >> log; sleep 0.3; mkdir -p tools; cat source > tools/x", deps: [source]}
  use: {cmd: "echo use >> log; cat tools/x > use.txt", deps: [source], outs: [use.txt]}
  long: {cmd: "echo long >> log; cat use.txt > long.txt", deps: [use.txt], outs: [long.txt]}
  last: {cmd: "echo last >> log; cat tools/x > last.txt", deps: [source], outs: [last.txt]}
"""


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2, "in_order": True}])
def test_stages_run_one_at_a_time_in_dvcs_order(toy: Make, options: dict[str, Any]) -> None:
    ordered = toy(ORDERED, {"source": "s"})
    theirs = toy.copy_of(ordered)
    dvc(theirs.path, "repro", "-q")
    assert ordered.run(**options)[0] == 0
    assert ordered.ran() == theirs.ran() == ["setup", "use", "long", "last"]
    assert ordered.read("dvc.lock") == theirs.read("dvc.lock")


def test_in_order_nothing_starts_after_a_failure(toy: Make) -> None:
    failing = toy(ORDERED.replace("cat source > tools/x", "exit 3"), {"source": "s"})
    code, text = failing.run(in_order=True)
    assert (code, failing.ran()) == (1, ["setup"])
    for name in ("use", "long", "last"):
        assert f"{name} blocked: setup failed" in text
