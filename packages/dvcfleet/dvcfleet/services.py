"""The processes around a run: the fork servers, which start the stages' processes, and a Prefect server."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.prefect_adapter.internals import PREFECT
from dvcfleet.prefect_adapter.server import PrefectServer
from dvcfleet.process_settings import set_own
from dvcfleet.project import project_of
from dvcfleet.repository import state_folder
from dvcfleet.worker.fork_client import ForkServers

FEW = 4  # stages, each of which imports what it needs sooner than all that any stage needs is imported
ANSWER_LIMIT_S = 120.0  # a server that is there may be busy, or its machine reading from a slow disk
OWN_SERVER_RETRIES = 2  # of each call to the run's own server, which is not restarted if it is lost


class Services:
    """The processes around a run, started when there is work."""

    def __init__(self, repo: Repo, stack: ExitStack) -> None:
        self._repo = repo
        self._stack = stack

    def start(self) -> None:
        """Start a Prefect server in the background, where the run needs its own; calling it again does nothing."""
        _ = self._server

    def fork_servers(self, stages: int, run: str) -> ForkServers:
        """Start the fork servers of this machine's stages in the background, for so many of them in this run."""
        root = Path(self._repo.root_dir)
        project = project_of(root)
        servers = ForkServers(root, project.preload if stages > FEW else (), project.variables(run))
        self._stack.callback(servers.stop)
        servers.addresses()
        return servers

    @cached_property
    def _server(self) -> PrefectServer | None:
        if os.environ.get("PREFECT_API_URL"):
            return None
        return self._stack.enter_context(PrefectServer(state_folder(self._repo) / "prefect"))

    @contextmanager
    def prefect(self) -> Iterator[None]:
        """Connect Prefect in this process to the run's server."""
        names = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")
        before = {name: os.environ[name] for name in names if name in os.environ}
        environment = self._server.environment if self._server else before
        if self._server:
            # Before Prefect is imported, and for all threads and processes: without it, each starts its own server.
            for name, value in environment.items():
                set_own(name, value)
        try:
            with ExitStack() as stack:
                # Prefect reads .env, prefect.toml and pyproject.toml of the current folder. The repository's are in
                # whatever form, and for whatever server.
                with chdir(state_folder(self._repo)):
                    stack.enter_context(self._settings(environment))
                yield
        finally:
            for name in environment.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)

    def _settings(self, environment: Mapping[str, str]) -> AbstractContextManager[Any]:
        """Import Prefect, which takes a while, and wait for the server, which starts meanwhile; return its settings."""
        from prefect import settings as known

        import dvcfleet.prefect_adapter.flow  # noqa: F401

        settings: dict[Any, Any] = {getattr(known, name): value for name, value in environment.items()}
        if self._server:
            self._server.wait()
            settings[known.PREFECT_CLIENT_MAX_RETRIES] = OWN_SERVER_RETRIES
        else:
            check_server(environment["PREFECT_API_URL"])
        if all(setting.value() == value for setting, value in settings.items()):
            return nullcontext()  # to validate all of them anew takes a tenth of a second
        return known.temporary_settings(settings)

    def check_prefect(self, say: Callable[[str], object]) -> None:
        """Report the internals that the installed Prefect lacks, in this process and in the run's own server."""
        PREFECT.report(say)
        for line in self._server.notes() if self._server else ():
            say(line)


def check_server(api: str) -> None:
    """Raise UserError if no server answers at an address: Prefect itself would print a traceback."""
    import httpx

    has_certificate = api.lower().startswith("https:")  # else all that this machine trusts would be read for nothing
    try:
        httpx.get(f"{api}/health", timeout=httpx.Timeout(ANSWER_LIMIT_S, connect=30), verify=has_certificate)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UserError(
            f"PREFECT_API_URL: no server answers at {api} ({error}); start it, or unset the variable"
        ) from error
