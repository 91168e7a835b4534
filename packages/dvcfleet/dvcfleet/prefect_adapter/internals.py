"""The Prefect internals that the engine uses, and what replaces them if they are missing."""

import asyncio
import logging
import pickle
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

from dvcfleet.fast_paths import FastPaths, no_shortcut, replaced

PREFECT = FastPaths("Prefect")
# How long to wait after the public calls, which do not tell when all is done.
_GRACE_S = 3.0
_EVENTS_LIMIT_S = 10.0
# How long the end of a run waits for what the server has not received, for logs and for events.
_FLUSH_LIMIT_S = 15.0


_lost_logs: list[str] = []  # the client's methods that failed to send some


class _LossCounter:
    """Prefect's client as its log worker calls it: a request that fails is counted, and raises no error.

    The worker sends logs by another method in each minor release of Prefect, so none is named here.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        request = getattr(self._client, name)

        async def counted(*args: Any, **options: Any) -> Any:
            try:
                return await request(*args, **options)
            except Exception:  # whatever happened to the server, the run goes on
                _lost_logs.append(name)

        return counted


@PREFECT.otherwise("hiding errors of logging", lambda: None)
def count_lost_logs() -> None:
    """Have `flush` report that logs were lost, instead of one Prefect error per batch in the terminal."""
    from prefect.logging.handlers import APILogWorker

    handle_batch = APILogWorker._handle_batch

    async def handle(self: Any, items: list[Any]) -> None:
        if not isinstance(self._client, _LossCounter):
            self._client = _LossCounter(self._client)
        await handle_batch(self, items)

    APILogWorker._handle_batch = handle  # type: ignore[method-assign]


def _flush_handlers() -> bool:
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            handler.flush()
    time.sleep(_GRACE_S)
    return True


@PREFECT.otherwise("ending a run", _flush_handlers)
def flush() -> bool:
    """Wait, but not for long, until the server has all logs and events of this process; return whether it has."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    services: tuple[Any, ...] = (APILogWorker, EventsWorker)
    workers = [(worker._loop, worker._task) for service in services for worker in tuple(service._instances.values())]
    drained = [service.drain_all(timeout=_FLUSH_LIMIT_S, at_exit=False) for service in services]
    is_received = not any(late for _, late in drained) and not _lost_logs
    _lost_logs.clear()
    for loop, sending in workers:
        if loop and sending and not sending.done():
            loop.call_soon_threadsafe(sending.cancel)
    return is_received


@PREFECT.otherwise("ending a flow", no_shortcut)
def heartbeats_left_to_end() -> AbstractContextManager[None]:
    """Within the block a flow does not wait at its end for the thread of its heartbeats, which sleeps for a second."""
    from prefect import flow_engine

    send = flow_engine._send_heartbeats
    signature(send).bind_partial(join_on_exit=False)
    return replaced(flow_engine, "_send_heartbeats", partial(send, join_on_exit=False))


@PREFECT.otherwise("ending a run without its server", lambda: None)
def drop_unsent() -> None:
    """Drop what a lost server has not received, so that this process can end: Prefect would retry for a minute."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    logging.getLogger("prefect._internal").setLevel(logging.CRITICAL)  # it would report the loss again
    services: tuple[Any, ...] = (APILogWorker, EventsWorker)
    for service in services:
        for worker in tuple(service._instances.values()):
            if worker._loop and worker._task:
                worker._loop.call_soon_threadsafe(worker._task.cancel)


class _Sent:
    """An object that is pickled once, and unpickled once in each process that receives it."""

    def __init__(self, value: Any) -> None:
        self._data = pickle.dumps(value)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _received, (self._data,)


@lru_cache(maxsize=8)
def _received(data: bytes) -> Any:
    return pickle.loads(data)


@PREFECT.otherwise("sending a stage to a cluster", no_shortcut)
def settings_sent_once() -> AbstractContextManager[Any]:
    """Send all tasks the same settings within the block: Prefect describes, sends and checks them for each task."""
    from prefect.context import SettingsContext

    @cache
    def sent(context: int) -> dict[str, Any]:
        return {"profile": _Sent(known[context].profile), "settings": _Sent(known[context].settings)}

    known: dict[int, Any] = {}

    def serialize(self: Any, include_secrets: bool = True) -> dict[str, Any]:
        known[id(self)] = self  # kept, so that no other context gets its number
        return sent(id(self))

    _ = SettingsContext.serialize
    return replaced(SettingsContext, "serialize", serialize)


@PREFECT.otherwise("starting a stage on a cluster", lambda: None)
def share_tls_context() -> None:
    """Let all clients of this process share a TLS context: a worker opens one a stage, and reads all certificates."""
    from prefect.client import orchestration

    owner: Any = orchestration
    if owner.ssl is ssl:
        owner.ssl = SimpleNamespace(**(vars(ssl) | {"create_default_context": cache(ssl.create_default_context)}))


def server_app() -> Any:
    """Return the server as an ASGI application."""
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

    # `Access` asks for the secret instead: Prefect's middleware for it takes some tenths of a millisecond a request.
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):
        return create_app()


@PREFECT.otherwise("storing what several runs report", lambda: None)
def one_transaction_at_a_time() -> None:
    """In the server: begin a transaction only when no other is open.

    SQLite has one writer. A second one waits within SQLite for up to a minute. If the event loop frees a cursor of its
    connection meanwhile, the loop waits too, and with it the first one.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin, lock = AioSqliteConfiguration.begin_transaction, asyncio.Lock()
    is_inside = ContextVar("is_inside", default=False)

    @asynccontextmanager
    async def begin_alone(self: Any, session: Any, with_for_update: bool = False) -> AsyncIterator[Any]:
        async with nullcontext() if is_inside.get() else lock:
            token = is_inside.set(True)
            try:
                async with begin(self, session, with_for_update) as transaction:
                    yield transaction
            finally:
                is_inside.reset(token)

    AioSqliteConfiguration.begin_transaction = begin_alone  # type: ignore[method-assign]


@PREFECT.otherwise("storing the last events", lambda: time.sleep(_GRACE_S))
def wait_for_events() -> None:
    """In the server: wait until the events of task runs are stored; Prefect drops pending ones when it ends."""
    from prefect.server.utilities.messaging.memory import METRICS

    deadline = time.monotonic() + _EVENTS_LIMIT_S
    while METRICS["events"]["consumed"] < METRICS["events"]["published"] and time.monotonic() < deadline:
        time.sleep(0.02)
