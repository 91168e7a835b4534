"""Wait for what other processes do."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.warm import Fork

LIMIT_S = 240.0  # long enough for a busy machine: what is waited for takes seconds


def wait_for(file: Path, process: "subprocess.Popen[Any] | Fork") -> None:
    """Wait until a process has written a file; raise AssertionError as soon as it has ended without."""
    wait_until(lambda: file.exists() or process.poll() is not None)
    streams = () if isinstance(process, Fork) else (process.stdout, process.stderr)
    said = [stream.read() for stream in streams if stream and not file.exists()]
    assert file.exists(), f"exit code {process.returncode}: {said}"


def wait_until(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until something holds; raise AssertionError if it does not within some seconds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come to hold within {limit_s:g} s"
        time.sleep(0.05)
