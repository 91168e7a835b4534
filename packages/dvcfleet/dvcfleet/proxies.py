"""Reach the servers of this machine directly, whatever proxy the environment names for all others."""

import os

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_HERE = "127.0.0.1,localhost,::1"


def reach_this_machine() -> None:
    """Have this process, and all that it starts, ask no proxy for a server on loopback."""
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if any(name.lower() in _PROXIES for name in os.environ) and without != "*":
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (without, _HERE)))
