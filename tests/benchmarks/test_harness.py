import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import MB, Measured, Run, alternate, as_table, as_text, machine, measure, ratio, spread
from tests.support import forking

HOLD = "held = bytearray(200_000_000); held[::4096] = b'x' * len(held[::4096]); import time; time.sleep(1)"


def python(code: str) -> Run:
    """Run Python code in a process of its own."""
    return Run([sys.executable, "-c", code])


def test_memory_that_a_process_holds_is_seen() -> None:
    found = measure(python(HOLD))
    assert 200 * MB <= found.peak_anonymous_bytes <= found.peak_rss_bytes <= 300 * MB
    assert found.wall_s >= 1


def test_memory_of_a_process_and_what_it_starts_is_added_up() -> None:
    found = measure(python(f"{HOLD}; import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"))
    assert found.peak_anonymous_bytes >= 390 * MB


def test_the_resident_peak_of_a_process_is_not_missed_between_two_looks() -> None:
    brief = (
        "held = bytearray(300_000_000); held[::4096] = b'x' * len(held[::4096]); del held; import time; time.sleep(0.1)"
    )
    assert measure(python(brief)).peak_rss_bytes >= 300 * MB


def test_the_memory_of_the_measuring_process_does_not_count() -> None:
    held = bytearray(200_000_000)
    held[::4096] = b"x" * len(held[::4096])
    assert measure(python("import time; time.sleep(0.1)")).peak_rss_bytes < 100 * MB
    assert len(held) == 200_000_000


def test_the_time_of_what_a_process_started_is_its_time() -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    found = measure(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}], check=True)"))
    assert 0.4 <= found.cpu_s <= found.wall_s * 2


def test_a_failure_says_what_the_command_said() -> None:
    with pytest.raises(RuntimeError, match=r"ended with 1.*no such luck"):
        measure(python("raise SystemExit('no such luck')"))


def test_a_process_is_ended_when_asked_for_and_what_it_held_is_known() -> None:
    for until_s in (2.0, 20.0, 100.0):  # a busy machine takes its time to start one
        found = measure(replace(python(f"{HOLD}; time.sleep(600)"), until_s=until_s))
        if found.peak_anonymous_bytes >= 200 * MB:
            break
    assert found.peak_anonymous_bytes >= 200 * MB
    assert until_s <= found.wall_s < 500


def test_the_end_of_a_process_is_noticed_at_once() -> None:
    started = time.perf_counter()
    found = measure(python("pass"))
    assert found.wall_s <= time.perf_counter() - started


def test_sides_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sides = {name: python(f"open({str(log)!r}, 'a').write({name!r})") for name in "ab"}
    heard: list[str] = []
    found = alternate(sides, {"a": 3, "b": 1}, lambda side, _: heard.append(side))
    assert log.read_text() == "abaa" == "".join(heard)
    assert [len(found[side]) for side in "ab"] == [3, 1]


def test_a_run_is_preceded_by_what_it_asks_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    measure(Run([sys.executable, "-c", f"open({str(out)!r}, 'x')"], before=out.unlink))
    assert out.read_text() == ""


def test_medians_and_ratios_come_with_their_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    assert ratio([10.0, 12.0, 30.0], [2.0]) == (6.0, 5.0, 15.0, 1)
    assert as_text(spread([3.0, 1.0, 2.0])) == "2.0 (1.0–3.0)"
    assert as_text(spread([3.0]), 2) == "3.00"


def test_a_table_is_markdown() -> None:
    assert as_table(["side", "s"], [["ours", "1.0"], ["plain", "10.0"]]).splitlines() == [
        "| side  |    s |",
        "|-------|-----:|",
        "| ours  |  1.0 |",
        "| plain | 10.0 |",
    ]


def test_the_machine_is_described_without_names_or_paths() -> None:
    with forking():
        found = machine()
    assert {"cpu", "cores", "memory_gib", "os", "python", "torch", "scipy", "blas", "commit"} == set(found)
    assert "/" not in json.dumps(found).replace("GNU/Linux", "")


def test_a_measurement_is_plain_numbers() -> None:
    assert [type(value) for value in vars(Measured(1.0, 2.0, 3, 4)).values()] == [float, float, int, int]
