"""Where downloads are kept: a folder for each address of a hub, since file names hold repository and commit alone."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PUBLIC_HUB = "https://huggingface.co"
OTHERS = "endpoints"  # in a cache: those of other addresses


def hub_cache() -> Path:
    """Return the folder of what huggingface_hub downloads from the address in HF_ENDPOINT."""
    from huggingface_hub import constants

    return _of_address(Path(constants.HF_HUB_CACHE))


def data_set_cache() -> Path:
    """Return the folder of what `datasets` makes of downloads from the address in HF_ENDPOINT."""
    from datasets import config

    return _of_address(Path(config.HF_DATASETS_CACHE))


@contextmanager
def in_hub_cache() -> Iterator[None]:
    """Have libraries that take no folder for their downloads, as `datasets` does, use that of HF_ENDPOINT's address."""
    from huggingface_hub import constants

    before = constants.HF_HUB_CACHE
    constants.HF_HUB_CACHE = str(hub_cache())
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before


def _of_address(cache: Path) -> Path:
    """Return the public hub's cache as it is, so that all programs share it, and a folder in it for any other hub."""
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or PUBLIC_HUB
    if address == PUBLIC_HUB:
        return cache
    readable = re.sub(r"\W+", "-", address.partition("://")[2])[:60]
    return cache / OTHERS / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
