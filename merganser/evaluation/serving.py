"""Serve a model by the user's command while a block runs: vLLM, SGLang, transformers serve.

The server answers OpenAI's completions on loopback. The command runs without a shell. Its output goes to the stage's
log.
"""

import json
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.evaluation import serving_guard

WHERE = "evaluation.server"
HOST = "127.0.0.1"
START_S = 3600.0  # that a server may take to answer: large models are read from slow disks, and compiled
ANSWER_S = 600.0  # that one answer may take here, where nothing else is asked
STEP_S = 0.2
ENDS_S = 1.0  # in which a server that stopped answering has ended, if it ends
SHOWN = 20  # lines of its output that a message holds
STARTING = {502, 503}  # answers of a server that is not ready yet


@dataclass(frozen=True)
class ModelServer:
    """A running server: its address, and its name for the model."""

    url: str
    model: str

    def complete(self, **asked: Any) -> Mapping[str, Any] | None:
        """Ask for one completion; return None if the server refuses the request."""
        try:
            return _post(self.url, {"model": self.model, "max_tokens": 1, "temperature": 0, **asked})
        except urllib.error.HTTPError:
            return None

    def takes_tokens(self, token: int) -> bool:
        """Tell whether prompts may be token ids."""
        return self.complete(prompt=[[token]]) is not None

    def gives_likelihoods(self, token: int) -> bool:
        """Tell whether the server returns the log-probabilities of a prompt's own tokens."""
        answer = self.complete(prompt=[[token, token]], echo=True, logprobs=1)
        try:
            given = (answer or {})["choices"][0]["logprobs"]["token_logprobs"]
        except (KeyError, IndexError, TypeError):
            return False
        return isinstance(given, list) and len(given) == 3  # and one that it adds


def server_command(command: str, model: Path, port: int) -> list[str]:
    """Split a command into arguments and fill in its placeholders.

    >>> server_command("serve '{model}' --port {port}", Path("a b"), 8000)
    ['serve', 'a b', '--port', '8000']
    """
    return [part.replace("{model}", str(model)).replace("{port}", str(port)) for part in shlex.split(command)]


@contextmanager
def serving(command: str, model: Path) -> Iterator[ModelServer]:
    """Start a server for a model's folder, wait until it answers, and end it and its processes after the block.

    It also ends if this process is killed. Raises InputError with the server's last lines if it does not start, or
    ends by itself.
    """
    model = model.resolve()
    with _own_port() as port:
        parts = server_command(command, model, port)
        if shutil.which(parts[0]) is None:
            raise InputError(f"{WHERE}: no program {parts[0]!r} here; install it, or write the path to it")
        process = subprocess.Popen(
            [sys.executable, serving_guard.__file__, *parts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        said: deque[str] = deque(maxlen=SHOWN)
        reader = threading.Thread(target=_passed_on, args=(process, said), daemon=True)
        reader.start()
        try:
            server = ModelServer(f"http://{HOST}:{port}/v1/completions", str(model))
            _wait(process, server, said)
            try:
                yield server
            except Exception as error:  # whatever comes of a server that is gone
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=ENDS_S)
                    raise _ended(process, said) from error
                raise
        finally:
            assert process.stdin, "it was opened as a pipe"
            process.stdin.close()
            process.wait()
            reader.join(timeout=ENDS_S)


def _wait(process: "subprocess.Popen[bytes]", server: ModelServer, said: deque[str]) -> None:
    """Wait until a server completes a text; raise InputError if it never will."""
    end, answer = time.monotonic() + START_S, "none"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise _ended(process, said)
        try:
            _post(server.url, {"model": server.model, "prompt": "a", "max_tokens": 1, "temperature": 0})
            return
        except urllib.error.HTTPError as error:
            answer = f"{error.code}: {error.read(2000).decode(errors='replace').strip()}"
            if error.code not in STARTING:
                asked = f"to complete a text by the model {server.model} it answers {answer}"
                raise InputError(f"{WHERE}: the server started, and asked {asked}{_shown(said)}") from error
        except (OSError, ValueError) as error:
            answer = str(error)
        time.sleep(STEP_S)
    raise InputError(f"{WHERE}: no completion after {START_S:.0f} s; the last answer: {answer}{_shown(said)}")


def _ended(process: "subprocess.Popen[bytes]", said: deque[str]) -> InputError:
    code = process.wait()
    time.sleep(STEP_S)  # for what it printed last
    return InputError(f"{WHERE}: the server ended by itself, with exit code {code}{_shown(said)}")


def _shown(said: deque[str]) -> str:
    return "; it printed:\n" + "".join(said).rstrip() if said else "; it printed nothing"


def _passed_on(process: "subprocess.Popen[bytes]", said: deque[str]) -> None:
    """Print a server's output as it arrives, and keep the last lines."""
    assert process.stdout, "it was opened as a pipe"
    for line in process.stdout:
        text = line.decode(errors="replace")
        said.append(text)
        print(f"server: {text.rstrip()}", flush=True)


@contextmanager
def _own_port() -> Iterator[int]:
    """Yield a free loopback port that no other stage on this machine gets while the block runs."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        with socket.socket(socket.AF_UNIX) as claim:  # of no file; it ends with this process
            try:
                claim.bind(f"\0merganser-port-{port}")
            except OSError:
                continue
            yield port
            return


def _post(url: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Post JSON to a server on this machine, without any proxy; return its answer."""
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=ANSWER_S) as answer:
        answered = json.loads(answer.read())
    if not isinstance(answered, dict):
        raise ValueError(f"not an answer to a completion: {str(answered)[:100]}")
    return answered
