"""DVC remotes of other kinds than a folder, each by a real server on loopback: S3's protocol by moto, ssh by sshd."""

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.dvcfleet.cluster import answers, free_port
from tests.support import LIMIT_S, wait_until

# What a remote is in DVC's configuration.
Remote = Mapping[str, str]

_SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
Subsystem sftp internal-sftp
"""


@contextmanager
def s3(folder: Path) -> Iterator[Remote]:
    """Give a bucket of a server that speaks S3's protocol."""
    for package in ("moto", "dvc_s3"):
        if not find_spec(package):
            pytest.skip(f"there is no {package} (moto[server] and dvc-s3)")
    import boto3  # type: ignore[import-not-found]

    port = free_port()
    with _server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], folder / "s3.log", port):
        url = f"http://127.0.0.1:{port}"
        keys = {"access_key_id": "somebody", "secret_access_key": "secret", "region": "us-east-1"}
        words = {"aws_access_key_id": keys["access_key_id"], "aws_secret_access_key": keys["secret_access_key"]}
        boto3.client("s3", endpoint_url=url, region_name=keys["region"], **words).create_bucket(Bucket="store")
        yield {"url": "s3://store/data", "endpointurl": url, **keys}


@contextmanager
def ssh(folder: Path) -> Iterator[Remote]:
    """Give a folder of a server that speaks ssh, for a key of its own."""
    if not find_spec("dvc_ssh"):
        pytest.skip("there is no dvc_ssh (dvc-ssh)")
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd:
        pytest.skip("there is no sshd (Debian's package openssh-server)")
    if not os.geteuid():
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, as root, goes to be apart
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    port = free_port()
    (folder / "sshd.conf").write_text(_SSHD.format(port=port, folder=folder))
    with _server([sshd, "-D", "-e", "-f", str(folder / "sshd.conf")], folder / "ssh.log", port):
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{port}{folder}/store"
        yield {"url": url, "keyfile": str(folder / "user")}


REMOTES: dict[str, Callable[[Path], AbstractContextManager[Remote]]] = {"s3": s3, "ssh": ssh}


@contextmanager
def _server(command: list[str], log: Path, port: int) -> Iterator[None]:
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)
