"""The guard for a server that is started by a command: uvicorn's command takes this protocol by UVICORN_HTTP."""

from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dvcfleet.web_guard import Guard

NAME = f"{__name__}:GuardedProtocol"


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's own protocol, whose application is guarded."""

    def __init__(self, config: Config, **others: Any) -> None:
        if not isinstance(config.loaded_app, Guard):
            config.loaded_app = Guard(config.loaded_app)
        super().__init__(config=config, **others)
