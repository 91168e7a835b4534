"""A node that is cut off from the network in the middle: two network namespaces of this machine, joined by a cable."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import nodes
from tests.faults.nodes import Cluster
from tests.faults.test_nodes import ALL, FILES, Field, field
from tests.support import LIMIT_S, wait_until
from tests.tiny import environment

__all__ = ["field"]
HEAD, FAR = "198.18.77.1", "198.18.77.2"  # addresses that are for tests (RFC 2544)
ANSWERS = """
import sys, time, urllib.request
for _ in range(600):
    try:
        sys.exit(urllib.request.urlopen(sys.argv[1], timeout=5).status != 200)
    except OSError:
        time.sleep(0.2)
sys.exit(1)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def within(namespace: str) -> tuple[str, ...]:
    """What goes before a command that is to run in a namespace."""
    return ("ip", "netns", "exec", namespace)


@pytest.fixture
def net() -> Iterator[tuple[str, str]]:
    """Give the names of two namespaces, and of the ends of the cable, which are the same."""
    if not shutil.which("ip") or os.geteuid():
        pytest.skip("takes root and the command `ip`")
    head, far = names = (f"mh{os.getpid()}", f"mf{os.getpid()}")
    try:
        ip("netns", "add", head)
    except subprocess.CalledProcessError as error:  # a container may forbid it; anything else is a failure
        if b"not permitted" not in error.stderr:
            raise
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    try:
        ip("netns", "add", far)
        ip("-n", head, "link", "add", head, "type", "veth", "peer", "name", far, "netns", far)
        for name, address in zip(names, (HEAD, FAR), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def api(net: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    """Start a Prefect server that both namespaces reach."""
    head = within(net[0])
    variables = environment() | {"PREFECT_HOME": str(tmp_path / "prefect"), "DO_NOT_TRACK": "1"}
    command = [*head, sys.executable, "-m", "prefect", "server", "start", "--host", HEAD, "--port", "4200", "--no-ui"]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        address = f"http://{HEAD}:4200/api"
        subprocess.run([*head, sys.executable, "-c", ANSWERS, f"{address}/health"], check=True)
        yield address
    finally:
        server.terminate()
        server.wait()


@pytest.mark.drill
def test_a_node_that_is_cut_off_is_done_without(
    net: tuple[str, str], api: str, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "12s")  # silence is taken for a cut after that
    field.source.write("params.yaml", FILES["params.yaml"].replace("pause: 0", "pause: 2"))
    flow = field.share(2)
    head, far = net
    cluster = Cluster("dask", field.folder / "cluster", HEAD, within(head))
    cluster.folder.mkdir()
    try:
        cluster.start_head()
        cluster.add(field.clones[0], "near", HEAD, within(head))
        cluster.add(field.clones[1], "far", FAR, within(far))
        process = nodes.run(flow.path, "--runner", "dask", "--address", cluster.address, prefix=within(head))
        wait_until(lambda: process.poll() is not None or len(nodes.left(field.clones[1])) >= 2)
        ip("-n", far, "link", "set", far, "down")
        done = set(nodes.left(field.clones[0]))
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        cluster.stop()
    assert process.returncode == 0, text
    assert "Traceback" not in text
    assert set(field.ran()) == set(ALL)
    assert done < set(nodes.left(field.clones[0])), "nothing was left to do when the cable was cut"
    monkeypatch.delenv("PREFECT_API_URL")
    assert field.source.run()[0] == 0
    assert flow.read("dvc.lock") == field.source.read("dvc.lock")
