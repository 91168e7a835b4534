"""Do what `python ARGUMENT ...` does in a fork of the process that listens at SOCKET: see tests/warm.py.

It is started for each fork, and imports only what Python has built in: `socket` alone would double its time.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import array
import marshal
import os
import sys
from typing import NoReturn

_REQUEST_BYTES = 1 << 20


def run(address: str, arguments: list[str]) -> NoReturn:
    """Have it fork a process, and end as that one ends."""
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # of the terminal, which the fork gets too
    files = sorted(_inherited())
    about = {"arguments": arguments, "files": files, "folder": os.getcwd(), "leads": False}
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _REQUEST_BYTES)
    connection.connect(address)
    data = marshal.dumps(about | {"environment": dict(os.environ)})
    connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))])
    connection.recv(64)  # its number
    code = int(connection.recv(64) or 1)
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _inherited() -> list[int]:
    """List the open files that this process was started with."""
    names = os.listdir("/proc/self/fd")  # that of this list too
    return [int(name) for name in names if os.path.exists(f"/proc/self/fd/{name}") and os.get_inheritable(int(name))]


run(sys.argv[1], sys.argv[2:])
