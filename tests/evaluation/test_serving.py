"""Servers of models: started, waited for, ended with all their processes, and blamed for what is theirs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from merganser.errors import InputError
from merganser.evaluation.serving import serving
from tests.support import wait_for, wait_until

ANSWERING = """
import http.server, json, os, pathlib, subprocess, sys, time
model, port, does = sys.argv[1:4]
print("starting", flush=True)
helper = subprocess.Popen(["sleep", "600"])
pathlib.Path(model, "processes").write_text(f"{os.getpid()} {helper.pid}")
if does == "dies":
    sys.exit("no memory for the model")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        late = does == "late" and time.monotonic() < begin + 0.5
        code = 503 if late else 200 if does != "refuses" else 404
        if does == "texts" and not isinstance(asked["prompt"], str):
            code = 400
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"index": 0, "text": asked["prompt"]}]}).encode())
begin = time.monotonic()
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


LATE = """
import subprocess, sys, time
from merganser.evaluation import serving_guard
class Started(subprocess.Popen):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        time.sleep(0.3)
subprocess.Popen = Started
sys.exit(serving_guard.main(["sh", "-c", "exit 7"]))
"""


def command(folder: Path, does: str) -> str:
    (folder / "answering.py").write_text(ANSWERING)
    return f"'{sys.executable}' '{folder}/answering.py' {{model}} {{port}} {does}"


def processes(folder: Path) -> list[int]:
    return [int(number) for number in (folder / "processes").read_text().split()]


def are_gone(numbers: list[int]) -> bool:
    running = [process for process in psutil.process_iter(["status"]) if process.info["status"] != "zombie"]
    return not {process.pid for process in running} & set(numbers)


@pytest.mark.parametrize("does", ["answers", "late"])
def test_a_server_and_its_processes_end_with_the_block(tmp_path: Path, does: str) -> None:
    with serving(command(tmp_path, does), tmp_path) as server:
        found = processes(tmp_path)
        assert not are_gone(found[:1])
        assert server.model == str(tmp_path)
        assert server.complete(prompt="again") == {"choices": [{"index": 0, "text": "again"}]}
    assert are_gone(found)


def test_two_servers_at_a_time_have_ports_of_their_own(tmp_path: Path) -> None:
    with serving(command(tmp_path, "answers"), tmp_path) as one, serving(command(tmp_path, "answers"), tmp_path) as two:
        assert one.url != two.url
        assert one.complete(prompt="a") == two.complete(prompt="a")


def test_a_server_that_dies_is_shown_with_what_it_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = r"(?s)evaluation\.server: the server ended by itself, with exit code 1; it printed:.*no memory for the model"
    with pytest.raises(InputError, match=said), serving(command(tmp_path, "dies"), tmp_path):
        pass
    assert are_gone(processes(tmp_path))
    assert "server: no memory for the model" in capsys.readouterr().out  # which the stage's log keeps


def test_a_server_that_is_gone_is_blamed_for_what_comes_of_it(tmp_path: Path) -> None:
    def stops_answering() -> None:
        with serving(command(tmp_path, "answers"), tmp_path):
            os.kill(processes(tmp_path)[0], signal.SIGKILL)
            raise OSError("no connection")

    with pytest.raises(InputError, match="the server ended by itself, with exit code 137") as raised:
        stops_answering()
    assert str(raised.value.__cause__) == "no connection"
    assert are_gone(processes(tmp_path))


def test_a_mistake_while_the_server_runs_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(command(tmp_path, "answers"), tmp_path):
        raise ZeroDivisionError
    assert are_gone(processes(tmp_path))


def test_a_server_that_knows_no_such_model_is_refused(tmp_path: Path) -> None:
    asked = "asked to complete a text by the model .* it answers 404"
    with pytest.raises(InputError, match=asked), serving(command(tmp_path, "refuses"), tmp_path):
        pass
    assert are_gone(processes(tmp_path))


def test_a_program_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no program 'vllm9' here"), serving("vllm9 {model} {port}", tmp_path):
        pass


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    written = tmp_path / "written"
    with pytest.raises(InputError, match="ended by itself"), serving(f"echo {{model}}; touch {written}", tmp_path):
        pass
    assert not written.exists()


def test_a_command_that_ends_before_its_guard_looks_is_seen_to_have_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", LATE], stdin=subprocess.PIPE) as guard:
        assert guard.wait(timeout=60) == 7


def test_a_server_ends_where_its_stage_is_killed_and_the_next_one_starts(tmp_path: Path) -> None:
    stage = f"""
import pathlib, time
from merganser.evaluation.serving import serving
with serving({command(tmp_path, "answers")!r}, pathlib.Path({str(tmp_path)!r})):
    pathlib.Path({str(tmp_path / "up")!r}).touch()
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", stage], stdout=subprocess.DEVNULL) as process:
        wait_for(tmp_path / "up", process)
        found = processes(tmp_path)
        assert not are_gone(found)
        process.kill()
    wait_until(lambda: are_gone(found))
    with serving(command(tmp_path, "answers"), tmp_path) as server:
        assert server.complete(prompt="a")


@pytest.mark.parametrize(("does", "takes"), [("answers", True), ("texts", False)])
def test_what_a_server_can_is_asked(tmp_path: Path, does: str, takes: bool) -> None:
    with serving(command(tmp_path, does), tmp_path) as server:
        assert server.takes_tokens(3) == takes
        assert not server.gives_likelihoods(3)
